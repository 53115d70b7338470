"""``POST /assets`` and the health of the service. What is read is in ``reading``, what comes after in ``life``."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends
from pymongo.errors import PyMongoError
from starlette.requests import Request
from starlette.responses import Response

from asset_api.answers import json_response, problems
from asset_api.auth import Bearer, Caller, Scope, Tokens
from asset_api.body import read_json
from asset_api.direct import Route
from asset_api.presign import Presigner, utc_now
from asset_api.problems import Problem, Problems, unavailable
from asset_api.quota import QuotaExceeded, TooManyRegistrations
from asset_api.registration import KeyReused, Registered, register
from asset_api.requests import KEY_PATTERNS, UploadRequest, parse_idempotency_key, parse_upload
from asset_api.store import AssetStore
from asset_api.views import RegisteredView, registered_view
from darkroom.contracts.ids import stream_event_id
from darkroom.tracing import spans
from darkroom.tracing.traceparent import of_asset, parse


def register_openapi(*, max_upload_bytes: int) -> dict[str, Any]:
    """What FastAPI cannot tell of ``POST /assets``, which reads header and body by itself."""
    body = UploadRequest.model_json_schema()
    body["properties"]["size"]["maximum"] = max_upload_bytes
    return {
        "parameters": [
            {
                "in": "header",
                "name": "Idempotency-Key",
                "required": True,
                "description": "A new random value for each upload, the same value for each retry of it.",
                "schema": {"anyOf": [{"type": "string", "pattern": pattern} for pattern in KEY_PATTERNS]},
            }
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
    }


def assets_router(
    *,
    store: AssetStore,
    presigner: Presigner,
    tokens: Tokens,
    max_upload_bytes: int,
    uploading: timedelta,
    body_seconds: float,
    clock: Callable[[], datetime] = utc_now,
    counted: Callable[[str], None] = lambda _outcome: None,
) -> APIRouter:
    """``/assets``. ``counted`` is told of each registration: new, replayed or refused."""
    router = APIRouter(tags=["assets"], route_class=Route)
    writer = Bearer(tokens, scope=Scope.WRITE)

    @router.post(
        "/assets",
        status_code=201,
        response_model=RegisteredView,
        responses={
            200: {"model": RegisteredView, "description": "The asset of an earlier equal request with this key"},
            **problems(400, 401, 403, 408, 413, 415, 422, 429, 500, 503),
        },
        openapi_extra=register_openapi(max_upload_bytes=max_upload_bytes),
        summary="Register an upload and get the URL to send it to",
    )
    async def register_asset(request: Request, caller: Annotated[Caller, Depends(writer)]) -> Response:
        key = parse_idempotency_key(request.headers.getlist("idempotency-key"))
        wanted = parse_upload(await read_json(request, seconds=body_seconds), max_upload_bytes=max_upload_bytes)
        try:
            registered = await register(
                wanted,
                owner_id=caller.owner_id,
                idempotency_key=key,
                correlation_id=request.state.request_id,
                traceparent=request.state.traceparent,
                store=store,
                clock=clock,
                new_id=lambda: request.state.fresh_id,
            )
        except KeyReused:
            counted("refused")
            raise Problem(
                Problems.KEY_REUSED,
                "This Idempotency-Key belongs to a request with other content. Use a new key for another upload.",
            ) from None
        except QuotaExceeded as refused:
            counted("refused")
            many = isinstance(refused, TooManyRegistrations)
            raise Problem(
                Problems.TOO_MANY_REGISTRATIONS if many else Problems.TOO_MANY_UPLOADS,
                f"{refused} Try again with the same Idempotency-Key.",
                headers={"Retry-After": str(refused.retry_after)},
            ) from None
        counted("new" if registered.created else "replayed")
        _tell_of(registered, traceparent=request.state.traceparent)
        view = await registered_view(
            registered.asset, presigner=presigner, until=registered.asset.created_at + uploading
        )
        location = f"/assets/{registered.asset.id}"
        if registered.created:
            return json_response(view, status=201, headers={"Location": location})
        return json_response(view, status=200, headers={"Location": location, "Idempotency-Replayed": "true"})

    return router


def health_router(*, store: AssetStore) -> APIRouter:
    """``/healthz`` and ``/readyz``."""
    router = APIRouter(tags=["health"], route_class=Route)

    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz", summary="Whether the process serves")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @router.head("/readyz", include_in_schema=False)
    @router.get("/readyz", summary="Whether MongoDB answers", responses=problems(503))
    async def readyz() -> dict[str, str]:
        try:
            await store.ping()
        except PyMongoError as error:
            raise unavailable("The database cannot be reached.") from error
        return {"status": "ok"}

    return router


def _tell_of(registered: Registered, *, traceparent: str | None) -> None:
    """Have the log and the trace name the asset."""
    asset = registered.asset
    if not registered.created:
        structlog.contextvars.bind_contextvars(asset_id=asset.id)
        spans.link_current(asset.traceparent)
        return
    structlog.contextvars.bind_contextvars(asset_id=asset.id, event_id=stream_event_id(asset.id, 1))
    own, ours = of_asset(asset.id), parse(traceparent)
    if own is not None and ours is not None and ours.trace_id != own.trace_id:
        # The bridge knows the asset's id alone: what it tells is found from the client's trace, and that from here.
        spans.root("asset", own, attributes={"darkroom.asset_id": asset.id}, links=spans.link(ours)).end()
        spans.link_current(str(own))
