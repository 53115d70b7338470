"""Every error of the API as an RFC 9457 problem: a stable ``type`` for programs, a sentence for people."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import structlog
from botocore.exceptions import BotoCoreError
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pymongo.errors import ConnectionFailure, ExecutionTimeout, PyMongoError, WTimeoutError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from asset_api.errors import CannotSign
from asset_api.rounds import RoundBrokenOff

log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 2
MAX_ERRORS = 20

FieldError = dict[str, str]
"""``{"field": …, "message": …}``."""


@dataclass(frozen=True)
class Kind:
    """One type of problem."""

    slug: str
    status: int
    title: str

    @property
    def type(self) -> str:
        """The ``type`` member: it never changes its meaning."""
        return f"urn:darkroom:problem:{self.slug}"


class Problems(Enum):
    """All types there are. New ones may be added; a client treats an unknown one by its status."""

    BAD_REQUEST = Kind("bad-request", 400, "The request cannot be understood")
    MALFORMED_BODY = Kind("malformed-body", 400, "The body is not JSON in UTF-8")
    MISSING_KEY = Kind("missing-idempotency-key", 400, "The Idempotency-Key header is missing")
    INVALID_KEY = Kind("invalid-idempotency-key", 400, "The Idempotency-Key header is not valid")
    UNAUTHENTICATED = Kind("unauthenticated", 401, "A valid bearer token is needed")
    INSUFFICIENT_SCOPE = Kind("insufficient-scope", 403, "The token does not allow this")
    NOT_FOUND = Kind("not-found", 404, "There is no such thing here")
    METHOD_NOT_ALLOWED = Kind("method-not-allowed", 405, "The method is not allowed here")
    HEAD_TIMEOUT = Kind("head-timeout", 408, "The request did not arrive in time")
    BODY_TIMEOUT = Kind("body-timeout", 408, "The body did not arrive in time")
    WRONG_STATE = Kind("wrong-state", 409, "The asset's state does not allow this")
    BODY_TOO_LARGE = Kind("body-too-large", 413, "The body is too large")
    UNSUPPORTED_MEDIA_TYPE = Kind("unsupported-media-type", 415, "The body must be application/json")
    INVALID_REQUEST = Kind("invalid-request", 422, "The request breaks a rule")
    KEY_REUSED = Kind("idempotency-key-reused", 422, "The Idempotency-Key was used with another request")
    TOO_MANY_REGISTRATIONS = Kind("too-many-registrations", 429, "Too many uploads were registered in this minute")
    TOO_MANY_UPLOADS = Kind("too-many-uploads", 429, "Too many uploads are registered and not done")
    HEAD_TOO_LARGE = Kind("head-too-large", 431, "The header fields are too large")
    INTERNAL = Kind("internal", 500, "The service failed")
    UNAVAILABLE = Kind("unavailable", 503, "The service cannot answer now")


class Problem(Exception):
    """Ends a request with this problem."""

    def __init__(
        self,
        kind: Problems,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, str] | None = None,
    ) -> None:
        """``members`` are further ones of this problem, by their names."""
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.members = dict(members or {})
        self.errors = errors
        self.headers = dict(headers or {})


def to_response(problem: Problem, *, request_id: str | None) -> Response:
    """The problem as an answer."""
    kind = problem.kind.value
    content: dict[str, Any] = {
        "type": kind.type,
        "title": kind.title,
        "status": kind.status,
        "detail": problem.detail,
        **problem.members,
    }
    if problem.errors:
        content["errors"] = list(problem.errors[:MAX_ERRORS])
    if request_id is not None:
        content["request_id"] = request_id
    return Response(json.dumps(content), status_code=kind.status, media_type=MEDIA_TYPE, headers={**problem.headers})


def unavailable(what: str) -> Problem:
    """Something that the API needs does not answer: trying again later with the same key is safe."""
    return Problem(
        Problems.UNAVAILABLE,
        f"{what} Try again: the same request, with its Idempotency-Key if it has one, does nothing twice.",
        headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
    )


def invalid(errors: Sequence[FieldError]) -> Problem:
    """What breaks a rule, field by field."""
    names = ", ".join(dict.fromkeys(one["field"] for one in errors[:5]))
    return Problem(Problems.INVALID_REQUEST, f"Wrong: {names}.", errors=errors)


def install(app: FastAPI) -> None:
    """Let every error that leaves a route, and the framework's own, end as a problem."""

    async def on_problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)  # noqa: S101 -- registered for this type alone
        return to_response(error, request_id=_request_id(request))

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 -- registered for this type alone
        problem = _of_http(error)
        if error.status_code == 405 and (methods := _methods(request)):
            problem.headers["Allow"] = ", ".join(methods)
        return to_response(problem, request_id=_request_id(request))

    async def on_validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101 -- registered for this type alone
        found = [
            # Without where it stands (query, path), which the route says.
            {"field": ".".join(str(part) for part in one["loc"][1:])[:100], "message": str(one["msg"])[:200]}
            for one in error.errors()
        ]
        problem = invalid(found)
        return to_response(problem, request_id=_request_id(request))

    async def on_mongo(request: Request, error: Exception) -> Response:
        assert isinstance(error, PyMongoError)  # noqa: S101 -- registered for this type alone
        if not out_of_reach(error):
            raise error
        log.warning("mongodb_out_of_reach", error=type(error).__name__, reason=str(error)[:300])
        return to_response(unavailable("The database cannot be reached."), request_id=_request_id(request))

    async def on_aws(request: Request, error: Exception) -> Response:
        log.error("signing_failed", error=type(error).__name__, reason=str(error)[:300])
        return to_response(unavailable("Upload and download URLs cannot be signed."), request_id=_request_id(request))

    async def on_broken_round(request: Request, error: Exception) -> Response:
        log.warning("round_broken_off", reason=str(error))
        return to_response(unavailable("The answer was broken off."), request_id=_request_id(request))

    app.add_exception_handler(Problem, on_problem)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(PyMongoError, on_mongo)
    app.add_exception_handler(RoundBrokenOff, on_broken_round)
    app.add_exception_handler(BotoCoreError, on_aws)
    app.add_exception_handler(CannotSign, on_aws)


def out_of_reach(error: PyMongoError) -> bool:
    """Whether the error tells of MongoDB's state rather than of our request."""
    return (
        error.timeout
        or isinstance(error, ConnectionFailure | ExecutionTimeout | WTimeoutError)
        or error.has_error_label("TransientTransactionError")
        or error.has_error_label("RetryableWriteError")
        or error.has_error_label("UnknownTransactionCommitResult")
    )


def _of_http(error: HTTPException) -> Problem:
    by_status = {
        404: (Problems.NOT_FOUND, "There is nothing at this address."),
        405: (Problems.METHOD_NOT_ALLOWED, "Another method is meant; the Allow header names those there are."),
        413: (Problems.BODY_TOO_LARGE, "The body is too large."),
        415: (Problems.UNSUPPORTED_MEDIA_TYPE, "Send the body as application/json."),
    }
    fallback = (Problems.BAD_REQUEST, "The request cannot be understood.")
    kind, detail = by_status.get(error.status_code, fallback)
    return Problem(kind, detail, headers=error.headers)


def _methods(request: Request) -> list[str]:
    """The methods of every route at this path; the framework tells those of the first one alone."""
    matches = ((route, route.matches(request.scope)[0]) for route in request.app.routes if isinstance(route, Route))
    return sorted({method for route, match in matches if match is not Match.NONE for method in route.methods or ()})


def _request_id(request: Request) -> str | None:
    given = request.scope.get("state", {}).get("request_id")
    return given if isinstance(given, str) else None
