"""The trash: into it, and out of it again. What is over for good is the sweeper's (``darkroom.life``)."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Protocol

import structlog
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from asset_api.answers import is_asset_id, json_response, no_such_asset, problems, wrong_state
from asset_api.auth import Bearer, Caller, Scope, Tokens
from asset_api.direct import Route
from asset_api.presign import Presigner, utc_now
from asset_api.problems import unavailable
from asset_api.store import AssetStore
from asset_api.views import AssetView, asset_view
from darkroom.assets import Asset, Change, Status, change
from darkroom.contracts.events import AssetRestored, AssetTrashed, EventData
from darkroom.tracing import spans

RACES = 5
"""How often an asset may move on between its reading and its writing before the caller is asked to come again."""
BUSY_SECONDS = 2


class Store(Protocol):
    """What the trash needs of the database."""

    async def by_id(self, *, owner_id: str, asset_id: str) -> Asset | None:
        """The owner's asset of this id."""

    async def advance(self, decided: Change) -> bool:
        """Store the asset after the change and its event in one transaction. False: the asset moved on."""


@dataclass(frozen=True)
class Move:
    """Into the trash or out of it: from which states, by which event, and in which states it is done already."""

    event: type[EventData]
    possible: frozenset[Status]
    done: frozenset[Status]
    refusal: str


TRASH = Move(
    AssetTrashed,
    possible=frozenset({Status.READY, Status.FAILED}),
    done=frozenset({Status.TRASHED, Status.PURGED}),
    refusal="READY and FAILED assets can be put into the trash. An upload that never comes expires by itself.",
)
RESTORE = Move(
    AssetRestored,
    possible=frozenset({Status.TRASHED}),
    done=frozenset({Status.READY, Status.FAILED}),
    refusal="What is in the trash can be restored.",
)


async def make(
    move: Move,
    *,
    asset_id: str,
    owner_id: str,
    correlation_id: str,
    traceparent: str | None = None,
    store: Store,
    clock: Callable[[], datetime],
) -> Asset:
    """The asset after the move. One that is there already is left as it is, so that the request can be repeated.

    Raises:
        Problem: 404, 409 with the state, or 503 when the asset moved on again and again.

    """
    for _ in range(RACES):
        asset = await store.by_id(owner_id=owner_id, asset_id=asset_id) if is_asset_id(asset_id) else None
        if asset is None:
            raise no_such_asset()
        if asset.status in move.done:
            return asset
        if asset.status not in move.possible:
            busy = BUSY_SECONDS if asset.status is Status.PROCESSING else None
            raise wrong_state(asset, f"The asset is {asset.status}. {move.refusal}", retry_after=busy)
        decided = change(
            asset, move.event(), occurred_at=clock(), correlation_id=correlation_id, traceparent=traceparent
        )
        if await store.advance(decided):
            structlog.contextvars.bind_contextvars(event_id=decided.event.id)
            spans.link_current(asset.traceparent)
            return decided.after
    raise unavailable("The asset is being changed by others.")


def life_router(
    *, store: AssetStore, presigner: Presigner, tokens: Tokens, clock: Callable[[], datetime] = utc_now
) -> APIRouter:
    """``DELETE /assets/{asset_id}`` and ``POST /assets/{asset_id}/restore``."""
    router = APIRouter(tags=["assets"], route_class=Route)
    writer = Bearer(tokens, scope=Scope.WRITE)

    async def answer(move: Move, request: Request, asset_id: str, caller: Caller) -> Response:
        asset = await make(
            move,
            asset_id=asset_id,
            owner_id=caller.owner_id,
            correlation_id=request.state.request_id,
            traceparent=request.state.traceparent,
            store=store,
            clock=clock,
        )
        return json_response(await asset_view(asset, presigner=presigner))

    @router.delete(
        "/assets/{asset_id}",
        response_model=AssetView,
        responses=problems(401, 403, 404, 409, 500, 503),
        summary="Put an asset into the trash; it can be restored until it is purged",
    )
    async def trash_asset(request: Request, asset_id: str, caller: Annotated[Caller, Depends(writer)]) -> Response:
        return await answer(TRASH, request, asset_id, caller)

    @router.post(
        "/assets/{asset_id}/restore",
        response_model=AssetView,
        responses=problems(401, 403, 404, 409, 500, 503),
        summary="Take an asset out of the trash",
    )
    async def restore_asset(request: Request, asset_id: str, caller: Annotated[Caller, Depends(writer)]) -> Response:
        return await answer(RESTORE, request, asset_id, caller)

    return router
