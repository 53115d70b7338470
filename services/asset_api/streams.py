"""``GET /assets/stream`` and ``GET /assets/{id}/stream``: live state as Server-Sent Events."""

import time
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends
from pymongo.errors import PyMongoError
from starlette.requests import Request
from starlette.responses import Response

from asset_api import sse
from asset_api.answers import is_asset_id, no_such_asset, problems
from asset_api.auth import Bearer, Caller, Scope, Tokens
from asset_api.direct import Route
from asset_api.event_view import event_json
from asset_api.listener import Ending, Happened, Listener, Lost
from asset_api.live import Hub, Refused
from asset_api.position import Position
from asset_api.problems import unavailable
from asset_api.store import AssetStore

log = structlog.get_logger()

HEARTBEAT_SECONDS = 15.0
RETRY_MS = 1000
PAGE = 500
MAX_DIGITS = 10

OPENAPI: dict[str, Any] = {
    "parameters": [
        {
            "in": "header",
            "name": "Last-Event-ID",
            "required": False,
            "description": "The last id that was heard: the stream goes on after it.",
            "schema": {"type": "string", "maxLength": 100},
        }
    ],
}
ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events, each with an id; and, named, `reset` (some were lost: read the assets again) and "
        "`reconnect` (the stream ends: connect again)",
        "content": {sse.MEDIA_TYPE: {"schema": {"type": "string"}}},
    }
}


def streams_router(
    *,
    hub: Hub,
    store: AssetStore,
    tokens: Tokens,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    clock: Callable[[], float] = time.time,
) -> APIRouter:
    """The streams. To be included before ``/assets/{asset_id}``, which would else take "stream" for an id."""
    router = APIRouter(tags=["live"], route_class=Route)
    reader = Bearer(tokens, scope=Scope.READ)

    @router.get(
        "/assets/stream",
        response_class=sse.EventStream,
        responses={**ANSWER, **problems(401, 403, 500, 503)},
        openapi_extra=OPENAPI,
        summary="All events of your assets, as they are committed",
    )
    async def stream_all(request: Request, caller: Annotated[Caller, Depends(reader)]) -> Response:
        given = request.headers.get("last-event-id")
        after = Position.parse(given) if given else None
        listener = await _listen(hub, caller, after=after, lost=bool(given) and after is None)
        chunks = owner_chunks(hub, listener, beat=Beat(heartbeat_seconds, caller.expires_at, clock))
        return sse.EventStream(chunks, left=lambda: hub.leave(listener))

    @router.get(
        "/assets/{asset_id}/stream",
        response_class=sse.EventStream,
        responses={**ANSWER, **problems(401, 403, 404, 500, 503)},
        openapi_extra=OPENAPI,
        summary="An asset's events: those there are, then each new one",
    )
    async def stream_one(asset_id: str, request: Request, caller: Annotated[Caller, Depends(reader)]) -> Response:
        asset = await store.by_id(owner_id=caller.owner_id, asset_id=asset_id) if is_asset_id(asset_id) else None
        if asset is None:
            raise no_such_asset()
        after = _sequence(request.headers.get("last-event-id", ""))
        if after > asset.version and after > await store.version_now(owner_id=caller.owner_id, asset_id=asset_id):
            after = 0  # what has not happened was not heard here: the id is of another stream, or a backup was restored
        # Listening begins before reading, so nothing can fall in between.
        listener = await _listen(hub, caller, asset_id=asset_id)
        chunks = asset_chunks(
            store,
            listener,
            after=after,
            beat=Beat(heartbeat_seconds, caller.expires_at, clock),
        )
        return sse.EventStream(chunks, left=lambda: hub.leave(listener))

    return router


class Beat:
    """How long a stream may be silent, and when it ends because its token does."""

    def __init__(self, seconds: float, expires_at: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._expires_at = expires_at
        self._clock = clock

    def wait(self) -> float:
        """The longest wait from now, in seconds."""
        return max(0.0, min(self._seconds, self._expires_at - self._clock()))

    @property
    def over(self) -> bool:
        """Whether the token has expired."""
        return self._clock() >= self._expires_at


async def owner_chunks(hub: Hub, listener: Listener, *, beat: Beat) -> AsyncGenerator[bytes, None]:
    """What one connection gets of all its owner's events; ids are positions in commit order."""
    yield sse.retry(RETRY_MS) + _here(hub, listener)
    while True:
        heard = await listener.heard(seconds=beat.wait())
        if heard:
            yield b"".join(_owner_messages(heard))
        elif listener.ending is None and not beat.over:
            # Nothing waits, so the listener has all that the hub has read: its next start need not go back further.
            yield sse.BEAT + _here(hub, listener)
        if ending := _ending(listener, beat):
            yield b"".join(_owner_messages(await listener.heard(seconds=0))) + ending
            return


async def asset_chunks(store: AssetStore, listener: Listener, *, after: int, beat: Beat) -> AsyncGenerator[bytes, None]:
    """What one connection gets of one asset's events; ids are sequences, so the store can fill every gap."""
    yield sse.retry(RETRY_MS)
    behind = True
    while True:
        while behind:
            try:
                rows = await store.events_after(
                    owner_id=listener.owner_id, asset_id=listener.asset_id or "", sequence=after, limit=PAGE
                )
            except PyMongoError as error:
                log.warning("stream_cannot_read", error=type(error).__name__, reason=str(error)[:300])
                yield sse.message({"reason": Ending.UNAVAILABLE}, event="reconnect")
                return
            if rows:
                yield b"".join(sse.message(event_json(row), event_id=str(row["sequence"])) for row in rows)
                after = rows[-1]["sequence"]
            behind = len(rows) == PAGE
        chunks: list[bytes] = []
        heard = await listener.heard(seconds=beat.wait())
        for one in heard:
            if isinstance(one, Lost) or one.sequence > after + 1:
                behind = True
                break
            if one.sequence == after + 1:
                chunks.append(sse.message(one.json, event_id=str(one.sequence)))
                after = one.sequence
        if chunks or not heard:
            yield b"".join(chunks) or sse.BEAT
        if not behind and (ending := _ending(listener, beat)):
            yield ending
            return


def _owner_messages(heard: Iterable[Happened | Lost]) -> Iterable[bytes]:
    for one in heard:
        if isinstance(one, Lost):
            yield sse.message({"reason": "history_lost"}, event="reset", event_id=str(one.position))
        else:
            yield sse.message(one.json, event_id=str(one.position))


def _here(hub: Hub, listener: Listener) -> bytes:
    position = None if listener.waits else hub.position(listener)
    return b"" if position is None else sse.mark(str(position))


def _ending(listener: Listener, beat: Beat) -> bytes | None:
    ending = listener.ending or (Ending.TOKEN_EXPIRED if beat.over else None)
    return None if ending is None else sse.message({"reason": ending}, event="reconnect")


async def _listen(
    hub: Hub, caller: Caller, *, asset_id: str | None = None, after: Position | None = None, lost: bool = False
) -> Listener:
    try:
        return await hub.listen(caller.owner_id, asset_id=asset_id, after=after, lost=lost)
    except Refused as error:
        raise unavailable(str(error)) from error


def _sequence(given: str) -> int:
    """What an asset's listener knows already; from the beginning when its id is none of ours."""
    return int(given) if given.isascii() and given.isdecimal() and len(given) <= MAX_DIGITS else 0
