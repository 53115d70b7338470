"""The addresses of the API, and how a request becomes an answer."""

import asyncio
import re
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel
from pymongo.errors import PyMongoError
from starlette.requests import Request
from starlette.responses import Response

from asset_api.auth import Bearer, Caller
from asset_api.presign import Presigner, utc_now
from asset_api.problems import MEDIA_TYPE, Problem, Problems, unavailable
from asset_api.registration import KeyReused, register
from asset_api.requests import MAX_BODY_BYTES, UploadRequest, parse_idempotency_key, parse_upload
from asset_api.store import AssetStore
from asset_api.views import AssetView, RegisteredView, asset_view, registered_view
from darkroom.contracts.events import UUID_PATTERN

ASSET_ID = re.compile(UUID_PATTERN)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems that an operation may end with, as OpenAPI names them."""
    schema = {
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "request_id": {"type": "string"},
            "errors": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["field", "message"],
                    "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
                },
            },
        },
    }
    titles = {
        status: " / ".join(kind.value.title for kind in Problems if kind.value.status == status) for status in statuses
    }
    return {status: {"description": titles[status], "content": {MEDIA_TYPE: {"schema": schema}}} for status in statuses}


REGISTER_OPENAPI: dict[str, Any] = {
    "parameters": [
        {
            "in": "header",
            "name": "Idempotency-Key",
            "required": True,
            "description": "A new random value for each upload, the same value for each retry of it.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
        }
    ],
    "requestBody": {"required": True, "content": {"application/json": {"schema": UploadRequest.model_json_schema()}}},
}


def assets_router(
    *,
    store: AssetStore,
    presigner: Presigner,
    bearer: Bearer,
    max_upload_bytes: int,
    body_seconds: float,
    clock: Callable[[], datetime] = utc_now,
    new_id: Callable[[], uuid.UUID] = uuid.uuid4,
) -> APIRouter:
    """``/assets``."""
    router = APIRouter(tags=["assets"])

    @router.post(
        "/assets",
        status_code=201,
        response_model=RegisteredView,
        responses={
            200: {"model": RegisteredView, "description": "The asset of an earlier equal request with this key"},
            **problems(400, 401, 408, 413, 415, 422, 500, 503),
        },
        openapi_extra=REGISTER_OPENAPI,
        summary="Register an upload and get the URL to send it to",
    )
    async def register_asset(request: Request, caller: Annotated[Caller, Depends(bearer)]) -> Response:
        key = parse_idempotency_key(request.headers.getlist("idempotency-key"))
        wanted = parse_upload(await read_json(request, seconds=body_seconds), max_upload_bytes=max_upload_bytes)
        try:
            registered = await register(
                wanted,
                owner_id=caller.owner_id,
                idempotency_key=key,
                correlation_id=request.state.request_id,
                traceparent=_traceparent(request),
                store=store,
                clock=clock,
                new_id=new_id,
            )
        except KeyReused:
            raise Problem(
                Problems.KEY_REUSED,
                "This Idempotency-Key belongs to a request with other content. Use a new key for another upload.",
            ) from None
        view = await registered_view(registered.asset, presigner=presigner)
        location = f"/assets/{registered.asset.id}"
        if registered.created:
            return _json(view, status=201, headers={"Location": location})
        return _json(view, status=200, headers={"Location": location, "Idempotency-Replayed": "true"})

    @router.get(
        "/assets/{asset_id}",
        response_model=AssetView,
        responses=problems(401, 404, 500, 503),
        summary="An asset's state, and URLs of its pictures once it is READY",
    )
    async def get_asset(asset_id: str, caller: Annotated[Caller, Depends(bearer)]) -> Response:
        asset = None
        if ASSET_ID.fullmatch(asset_id):
            asset = await store.by_id(owner_id=caller.owner_id, asset_id=asset_id)
        if asset is None:
            raise Problem(Problems.NOT_FOUND, "You have no asset of this id.")
        return _json(await asset_view(asset, presigner=presigner))

    return router


def health_router(*, store: AssetStore) -> APIRouter:
    """``/healthz`` and ``/readyz``."""
    router = APIRouter(tags=["health"])

    @router.get("/healthz", summary="Whether the process serves")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/readyz", summary="Whether MongoDB answers", responses=problems(503))
    async def readyz() -> dict[str, str]:
        try:
            await store.ping()
        except PyMongoError as error:
            raise unavailable("The database cannot be reached.") from error
        return {"status": "ok"}

    return router


async def read_json(request: Request, *, seconds: float) -> bytes:
    """The body, when it is called JSON, is small and comes in time.

    Raises:
        Problem: 415, 413 or 408.

    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Problem(Problems.UNSUPPORTED_MEDIA_TYPE, "Send the body as Content-Type: application/json.")
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise Problem(Problems.BODY_TOO_LARGE, f"The body must be at most {MAX_BODY_BYTES} bytes.")
    except TimeoutError:
        raise Problem(Problems.BODY_TIMEOUT, f"The body did not arrive within {seconds:g} seconds.") from None
    return bytes(body)


def _json(view: BaseModel, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(view.model_dump_json(), status_code=status, media_type="application/json", headers=headers)


def _traceparent(request: Request) -> str | None:
    given = request.headers.get("traceparent", "")
    return given if _TRACEPARENT.fullmatch(given) else None
