"""What an owner reads: lists, states, downloads and histories. Always from the database, never from the bucket."""

import hashlib
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from asset_api.answers import (
    entity_tag,
    is_asset_id,
    json_response,
    no_such_asset,
    problems,
    unchanged,
    wrong_state,
)
from asset_api.auth import Bearer, Caller, Scope, Tokens
from asset_api.direct import Route
from asset_api.event_view import event_fields
from asset_api.presign import Presigner
from asset_api.problems import Problem, Problems, invalid
from asset_api.requests import REFERENCE_SCHEMA, parse_reference
from asset_api.store import AssetStore
from asset_api.views import (
    AssetPage,
    AssetView,
    DownloadView,
    EventPage,
    EventView,
    asset_view,
    download_view,
    summary,
)
from darkroom.assets import Asset, Status
from darkroom.contracts.events import UUID_PATTERN

PAGE = 50
LONGEST_PAGE = 100
NOT_LISTED = frozenset({Status.TRASHED, Status.PURGED})
"""States that a list leaves out unless it is asked for them."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CURSOR_PATTERN = rf"^[0-9]{{1,13}}\.{UUID_PATTERN.strip('^$')}$"
"""Milliseconds since 1970 and an id. Opaque to clients, but all that is of this form works."""
_CURSOR = re.compile(CURSOR_PATTERN, re.ASCII)
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {304: {"description": "The answer of If-None-Match is still good"}}


def reading_router(*, store: AssetStore, presigner: Presigner, tokens: Tokens) -> APIRouter:
    """The ``GET`` routes of ``/assets``."""
    router = APIRouter(tags=["assets"], route_class=Route)
    reader = Bearer(tokens, scope=Scope.READ)

    async def find(asset_id: str, caller: Caller) -> Asset:
        asset = await store.by_id(owner_id=caller.owner_id, asset_id=asset_id) if is_asset_id(asset_id) else None
        if asset is None:
            raise no_such_asset()
        return asset

    _add_list(router, store=store, reader=reader)

    @router.get(
        "/assets/{asset_id}",
        response_model=AssetView,
        responses={**NOT_MODIFIED, **problems(401, 403, 404, 500, 503)},
        summary="An asset's state, and URLs of its pictures once it is READY",
    )
    async def get_asset(request: Request, asset_id: str, caller: Annotated[Caller, Depends(reader)]) -> Response:
        asset = await find(asset_id, caller)
        tag = entity_tag(asset.version, *url_age(asset, presigner.download_seconds))
        answer = unchanged(request, tag)
        return answer or json_response(await asset_view(asset, presigner=presigner), headers={"ETag": tag})

    @router.get(
        "/assets/{asset_id}/download",
        response_model=DownloadView,
        responses=problems(401, 403, 404, 409, 500, 503),
        summary="A URL that saves the original, or one of its renditions, under its name",
    )
    async def download_asset(
        asset_id: str,
        caller: Annotated[Caller, Depends(reader)],
        rendition: Annotated[str | None, Query(description="a rendition's name; the original by default")] = None,
    ) -> Response:
        asset = await find(asset_id, caller)
        if asset.status is not Status.READY:
            raise wrong_state(asset, f"The asset is {asset.status}; what is READY can be downloaded.")
        view = await download_view(asset, rendition=rendition, presigner=presigner)
        if view is None:
            names = ", ".join(one.name for one in asset.renditions)
            raise Problem(Problems.NOT_FOUND, f"The asset has no such rendition; it has: {names}.")
        return json_response(view)

    @router.get(
        "/assets/{asset_id}/events",
        response_model=EventPage,
        responses={**NOT_MODIFIED, **problems(401, 403, 404, 422, 500, 503)},
        summary="All that happened to an asset: the stream that its state is made of",
    )
    async def list_events(
        request: Request,
        asset_id: str,
        caller: Annotated[Caller, Depends(reader)],
        after: Annotated[int, Query(ge=0, le=2**31, description="next_after of the page before")] = 0,
        limit: Annotated[int, Query(ge=1, le=LONGEST_PAGE, description="how many at most")] = LONGEST_PAGE,
    ) -> Response:
        asset = await find(asset_id, caller)
        tag = entity_tag(asset.version, after, limit)
        if (answer := unchanged(request, tag)) is not None:
            return answer
        found = await store.events_after(owner_id=caller.owner_id, asset_id=asset.id, sequence=after, limit=limit + 1)
        events = [EventView.model_validate(event_fields(row)) for row in found[:limit]]
        view = EventPage(events=events, next_after=events[-1].sequence if len(found) > limit else None)
        return json_response(view, headers={"ETag": tag})

    return router


def _add_list(router: APIRouter, *, store: AssetStore, reader: Bearer) -> None:
    @router.get(
        "/assets",
        response_model=AssetPage,
        responses={**NOT_MODIFIED, **problems(401, 403, 422, 500, 503)},
        summary="Your assets, newest first",
    )
    async def list_assets(
        request: Request,
        caller: Annotated[Caller, Depends(reader)],
        status: Annotated[
            list[Status] | None, Query(description="only these states; by default all but TRASHED and PURGED")
        ] = None,
        reference: Annotated[
            Annotated[str, Field(json_schema_extra=REFERENCE_SCHEMA)] | None,
            Query(description="only assets with this reference"),
        ] = None,
        limit: Annotated[int, Query(ge=1, le=LONGEST_PAGE, description="how many at most")] = PAGE,
        cursor: Annotated[
            Annotated[str, Field(json_schema_extra={"pattern": CURSOR_PATTERN})] | None,
            Query(description="next_cursor of the page before"),
        ] = None,
    ) -> Response:
        found = await store.page(
            owner_id=caller.owner_id,
            statuses=sorted(set(status)) if status else [one for one in Status if one not in NOT_LISTED],
            reference=None if reference is None else _reference(reference),
            after=None if cursor is None else parse_cursor(cursor),
            limit=limit + 1,
        )
        page, more = found[:limit], len(found) > limit
        following = make_cursor(page[-1]) if more else None
        view = AssetPage(assets=[summary(asset) for asset in page], next_cursor=following)
        tag = entity_tag(hashlib.sha256(view.model_dump_json().encode()).hexdigest()[:32])
        headers = {"ETag": tag}
        if following is not None:
            query = [pair for pair in request.query_params.multi_items() if pair[0] != "cursor"]
            headers["Link"] = f'</assets?{urlencode([*query, ("cursor", following)])}>; rel="next"'
        return unchanged(request, tag) or json_response(view, headers=headers)


def url_age(asset: Asset, download_seconds: int) -> tuple[int, ...]:
    """What makes an answer with URLs another one in time: whoever is told "not modified" has URLs with at least half of
    their life before them."""
    return (int(time.time() // max(1, download_seconds // 2)),) if asset.status is Status.READY else ()


def make_cursor(asset: Asset) -> str:
    """Where the page after this asset begins."""
    return f"{(asset.created_at - _EPOCH) // timedelta(milliseconds=1)}.{asset.id}"


def parse_cursor(text: str) -> tuple[datetime, str]:
    """The created_at and the id that a cursor names.

    Raises:
        Problem: 422, when we did not make it.

    """
    if not _CURSOR.fullmatch(text):
        raise _wrong("cursor", "is not a next_cursor of this list; leave it out to begin anew")
    milliseconds, _, asset_id = text.partition(".")
    return _EPOCH + timedelta(milliseconds=int(milliseconds)), asset_id


def _reference(given: str) -> str:
    try:
        return parse_reference(given)
    except ValueError as error:
        raise _wrong("reference", str(error)) from None


def _wrong(field: str, message: str) -> Problem:
    return invalid([{"field": field, "message": message}])
