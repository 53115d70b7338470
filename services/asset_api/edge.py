"""What happens around every request: its id and trace, its line in the log, its safe headers, its end in any case."""

import re
import time
import uuid
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from asset_api.problems import Problem, Problems, to_response
from darkroom.contracts.events import UUID_PATTERN
from darkroom.tracing import spans
from darkroom.tracing.traceparent import Traceparent, of_uuid, parse, trace_id

log = structlog.get_logger()

REQUEST_ID = "X-Request-ID"
_REQUEST_ID, _TRACEPARENT = b"x-request-id", b"traceparent"
"""As ASGI has them: in lower case."""
UNMATCHED = "none"
"""The route of a request that no route is for."""
Answered = Callable[[Scope, int, float], None]
"""Told of a request, with the scope that its route is in, the status (0: there was none) and the seconds it took."""
QUIET_PATHS = frozenset({"/healthz", "/readyz"})
_OF_AN_ASSET = re.compile(rf"/assets/({UUID_PATTERN.strip('^$')})(?:/|$)")
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    # Answers carry URLs that work without a token.
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


class Edge:
    """ASGI middleware. A client's X-Request-ID is kept when it is sane, and made otherwise; its traceparent likewise.

    Leaves in the request's state: ``request_id``; ``traceparent``, by which what the request causes is told of it, or
    None; and ``fresh_id``, a UUID that is used nowhere else. A trace that begins here is that UUID's own, so that an
    asset which is registered under it is in its own trace.
    """

    def __init__(self, app: ASGIApp, *, answered: Answered = lambda _scope, _status, _seconds: None) -> None:
        self._app = app
        self._answered = answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id, fresh_id = _request_id(scope), uuid.uuid4()
        quiet = scope["path"] in QUIET_PATHS
        given = None if quiet else _given_trace(scope)
        own = of_uuid(fresh_id)
        span = _begin(scope, given, None if quiet else own)
        # Without an SDK the client's own, or none; lines in the log have a trace id all the same.
        traceparent = spans.told(span)
        scope.setdefault("state", {}).update(request_id=request_id, fresh_id=fresh_id, traceparent=traceparent)
        structlog.contextvars.clear_contextvars()
        ids = {"request_id": request_id, "trace_id": fresh_id.hex if traceparent is None else trace_id(traceparent)}
        if (asset := _OF_AN_ASSET.match(scope["path"])) is not None:
            ids["asset_id"] = asset[1]
        structlog.contextvars.bind_contextvars(**ids)
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._answered(scope, status, time.perf_counter() - started)
                _add_headers(message, request_id)
            await send(message)

        try:
            with spans.within(span):
                await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            log.info("client_went_away")
        except Exception:
            log.exception("request_failed")
            if status == 0:
                problem = Problem(Problems.INTERNAL, "The error is logged under this request id.")
                await to_response(problem, request_id=request_id)(scope, receive, send_with_headers)
        finally:
            if status == 0:
                self._answered(scope, status, time.perf_counter() - started)
            route = _route(scope)
            _end(span, scope["method"], route, status)
            # Neither path nor query: a client that is mistaken puts its token there. Ids that matter are bound.
            if not quiet or status >= 500:
                log.info(
                    "request",
                    method=scope["method"],
                    route=route,
                    status=status,
                    ms=round((time.perf_counter() - started) * 1000, 2),
                )


def _fields(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for field, value in scope["headers"] if field == name]


def _given_trace(scope: Scope) -> Traceparent | None:
    given = _fields(scope, _TRACEPARENT)
    return parse(given[0]) if len(given) == 1 else None


def _begin(scope: Scope, given: Traceparent | None, own: Traceparent | None) -> spans.Span:
    attributes = {"http.request.method": scope["method"]}
    if given is not None:
        return spans.begin(scope["method"], parent=given, kind=spans.SpanKind.SERVER, attributes=attributes)
    if own is None:
        return spans.NONE
    return spans.root(scope["method"], own, kind=spans.SpanKind.SERVER, attributes=attributes)


def _end(span: spans.Span, method: str, route: str, status: int) -> None:
    if span.is_recording():
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
        span.set_attribute("http.response.status_code", status)
        if status >= 500:
            spans.fail(span, f"{status}")
    span.end()


def _route(scope: Scope) -> str:
    """The route's own path, with the names of its parameters instead of what the client wrote there."""
    return str(getattr(scope.get("route"), "path", UNMATCHED))


def _request_id(scope: Scope) -> str:
    given = _fields(scope, _REQUEST_ID)
    if len(given) == 1 and _SANE_ID.fullmatch(given[0]):
        return given[0]
    return str(uuid.uuid4())


def _add_headers(message: MutableMapping[str, Any], request_id: str) -> None:
    """What a route has set stays; Starlette's names are in lower case."""
    headers = message["headers"] = list(message.get("headers", ()))
    there = {name for name, _ in headers}
    headers.append((_REQUEST_ID, request_id.encode()))
    headers += [header for header in _SAFE_HEADERS if header[0] not in there]
