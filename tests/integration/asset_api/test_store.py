"""How often the store goes to MongoDB for one key, on a real replica set."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from pymongo.database import Database
from pymongo.errors import PyMongoError
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from asset_api.store import AssetStore
from darkroom.assets import Asset
from darkroom.runtime.mongo import connect_async
from support.events import registered
from support.faults import failing

Db = Database[dict[str, Any]]
KEY = "one-key"


class Commands(CommandListener):
    """Counts the commands that are sent."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()

    def started(self, event: CommandStartedEvent) -> None:
        self.counted[event.command_name] += 1

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Counted when it started."""

    def failed(self, event: CommandFailedEvent) -> None:
        """Counted when it started."""


def test_one_process_runs_one_transaction_for_one_key(mongo_url: str, mongo_db: Db) -> None:
    commands = Commands()

    async def register_all() -> list[Asset]:
        async with connect_async(mongo_url, event_listeners=[commands]) as client:
            store = AssetStore(client=client, database=mongo_db.name, seconds=10)
            await store.ensure_indexes()
            return await asyncio.gather(
                *(store.register(registered(idempotency_key=KEY)) for _ in range(500)),
            )

    assets = asyncio.run(register_all())
    assert len({asset.id for asset in assets}) == 1
    assert commands.counted["findAndModify"] == commands.counted["insert"] == commands.counted["commitTransaction"] == 1
    assert mongo_db.assets.count_documents({}) == mongo_db.outbox_events.count_documents({}) == 1


def test_one_process_reads_once_for_one_key(mongo_url: str, mongo_db: Db) -> None:
    commands = Commands()

    async def read_all() -> list[Asset | None]:
        async with connect_async(mongo_url, event_listeners=[commands]) as client:
            store = AssetStore(client=client, database=mongo_db.name, seconds=10)
            made = await store.register(registered(idempotency_key=KEY))
            owner = made.owner_id
            return await asyncio.gather(*(store.by_key(owner_id=owner, idempotency_key=KEY) for _ in range(500)))

    assert len({asset and asset.id for asset in asyncio.run(read_all())}) == 1
    assert commands.counted["find"] == 1


def test_a_storm_waits_for_its_turn_and_not_beyond_a_deadline(mongo_url: str, mongo_db: Db) -> None:
    app = f"storm-{mongo_db.name}"

    async def storm() -> list[Asset | None]:
        # One connection and slow answers: all together take longer than one may.
        async with connect_async(mongo_url, appname=app, maxPoolSize=1) as client:
            store = AssetStore(client=client, database=mongo_db.name, seconds=2, at_once=1)
            with failing(mongo_db.client, "find", app=app, blockConnection=True, blockTimeMS=100):
                return await asyncio.gather(*(store.by_id(owner_id="o", asset_id=str(n)) for n in range(30)))

    assert asyncio.run(storm()) == [None] * 30


def test_who_goes_away_takes_nobodys_answer_with_it(mongo_url: str, mongo_db: Db) -> None:
    async def first_goes_away() -> Asset:
        async with connect_async(mongo_url) as client:
            store = AssetStore(client=client, database=mongo_db.name, seconds=10)
            await store.ensure_indexes()
            first = asyncio.create_task(store.register(registered(idempotency_key=KEY)))
            second = asyncio.create_task(store.register(registered(idempotency_key=KEY)))
            await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            return await second

    asset = asyncio.run(first_goes_away())
    assert [document["_id"] for document in mongo_db.assets.find()] == [asset.id]


def test_a_failure_is_not_remembered(mongo_url: str, mongo_db: Db) -> None:
    async def fail_then_register() -> Asset:
        async with connect_async(mongo_url) as client:
            await AssetStore(client=client, database=mongo_db.name, seconds=10).ensure_indexes()
            store = AssetStore(client=client, database=mongo_db.name, seconds=10)
            store._seconds = 1e-6
            with pytest.raises(PyMongoError) as refused:
                await store.register(registered(idempotency_key=KEY))
            assert refused.value.timeout
            store._seconds = 10
            return await store.register(registered(idempotency_key=KEY))

    asset = asyncio.run(fail_then_register())
    assert mongo_db.assets.count_documents({"_id": asset.id}) == 1
