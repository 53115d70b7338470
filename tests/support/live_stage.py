"""Writers of events and listeners of hubs, for tests of the live state on a real replica set."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from asset_api.listener import Happened, Listener, Lost
from asset_api.live import CONNECTION, Hub
from asset_api.position import Position
from darkroom.assets import Asset, Change, documents, to_document
from darkroom.outbox import COLLECTION, to_row
from darkroom.runtime.mongo import AsyncClient, connect_async
from support.events import processing, ready, registered, step

Key = tuple[str, int]
APP = "darkroom-tests-live"
"""By which the server knows these hubs; a fault meant for them must not hit those of a process that runs beside."""


async def commit(client: AsyncClient, database: str, *changes: Change) -> None:
    """Store new rows in one transaction, as every service does."""

    async def body(session: Any) -> None:
        for one in changes:
            await client[database][COLLECTION].insert_one(to_row(one.event), session=session)
            where = {"_id": one.after.id}
            await client[database][documents.COLLECTION].replace_one(
                where, to_document(one.after), upsert=True, session=session
            )

    async with client.start_session() as session:
        await session.with_transaction(body)


def life(owner_id: str) -> list[Change]:
    """An asset from its registration to READY: three events."""
    first = registered(owner_id=owner_id)
    second = step(first.after, processing())
    return [first, second, step(second.after, ready(second.after))]


async def live_through(client: AsyncClient, database: str, owner_id: str) -> Asset:
    """Let one asset of the owner become READY, by one commit an event."""
    changes = life(owner_id)
    for one in changes:
        await commit(client, database, one)
    return changes[-1].after


@contextlib.asynccontextmanager
async def hub_on(url: str, database: str, **options: Any) -> AsyncIterator[Hub]:
    """A hub with a client of its own, as in a process of its own."""
    async with connect_async(url, **{**CONNECTION, "appname": APP}) as client:
        hub = Hub(client=client, database=database, **{"seconds": 10.0, **options})
        try:
            yield hub
        finally:
            await hub.close()


async def become(predicate: Callable[[], bool], *, seconds: float = 20) -> None:
    """Wait until it holds. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not predicate():  # noqa: ASYNC110 -- of what others do, also outside of this loop
            await asyncio.sleep(0.01)


class Ear:
    """Listens as a client does: keeps what it heard and the last id, and comes back with it, to any hub."""

    def __init__(self, owner_id: str) -> None:
        self.owner_id = owner_id
        self.heard: list[Key] = []
        self.lost = 0
        self.last: Position | None = None
        self._hub: Hub | None = None
        self._listener: Listener | None = None
        self._task: asyncio.Task[None] | None = None

    async def join(self, hub: Hub, *, after: Position | None = None) -> None:
        self._hub = hub
        self._listener = await hub.listen(self.owner_id, after=after or self.last)
        if self.last is None and not self._listener.waits:
            self.last = hub.position(self._listener)
        self._task = asyncio.create_task(self._hear(self._listener))

    async def leave(self) -> None:
        """As when the connection breaks: what was queued and not taken is gone."""
        assert self._task is not None
        assert self._hub is not None
        assert self._listener is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._hub.leave(self._listener)

    async def until(self, count: int, *, seconds: float = 30) -> None:
        """Wait until so many events were heard."""
        try:
            await become(lambda: len(self.heard) >= count, seconds=seconds)
        except TimeoutError:
            raise AssertionError(f"{self.owner_id} heard {len(self.heard)} of {count} events") from None

    async def _hear(self, listener: Listener) -> None:
        while listener.ending is None:
            for one in await listener.heard(seconds=60):
                self.last = one.position
                if isinstance(one, Lost):
                    self.lost += 1
                else:
                    self.heard.append(key(one))


def key(happened: Happened) -> Key:
    return happened.asset_id, happened.sequence


def assert_once_and_in_order(heard: list[Key], expected: set[Key]) -> None:
    """Every event once, and each asset's in its order."""
    assert len(heard) == len(set(heard)), "an event was heard twice"
    assert set(heard) == expected
    newest: dict[str, int] = {}
    for asset_id, sequence in heard:
        assert sequence == newest.get(asset_id, 0) + 1, f"{asset_id}: {sequence} out of order"
        newest[asset_id] = sequence
