"""How often the store goes to MongoDB for one key, on a real replica set."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import ValidationError
from pymongo.database import Database
from pymongo.errors import PyMongoError, WaitQueueTimeoutError
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from asset_api.rounds import LARGEST
from asset_api.store import AssetStore
from darkroom.assets import Asset, to_document
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
    assert commands.counted["update"] == commands.counted["insert"] == commands.counted["commitTransaction"] == 1
    assert mongo_db.assets.count_documents({}) == mongo_db.outbox_events.count_documents({}) == 1


def test_one_process_reads_once_for_a_key_that_many_ask_for_at_once(mongo_url: str, mongo_db: Db) -> None:
    commands = Commands()

    async def read_all() -> list[Asset | None]:
        async with connect_async(mongo_url, event_listeners=[commands]) as client:
            store = AssetStore(client=client, database=mongo_db.name, seconds=10)
            await store.ensure_indexes()
            made = await store.register(registered(idempotency_key=KEY))
            owner = made.owner_id
            return await asyncio.gather(*(store.by_key(owner_id=owner, idempotency_key=KEY) for _ in range(500)))

    assert len({asset and asset.id for asset in asyncio.run(read_all())}) == 1
    assert commands.counted["find"] == -(-500 // LARGEST)


def test_keys_that_come_together_are_stored_and_read_together(mongo_url: str, mongo_db: Db) -> None:
    commands = Commands()
    made = [registered() for _ in range(200)]

    async def register_all() -> tuple[list[Asset], list[Asset | None]]:
        async with connect_async(mongo_url, event_listeners=[commands]) as client:
            store = AssetStore(client=client, database=mongo_db.name, seconds=10)
            await store.ensure_indexes()
            owner = made[0].after.owner_id
            stored = await asyncio.gather(*(store.register(one) for one in made))
            read = await asyncio.gather(*(store.by_id(owner_id=owner, asset_id=one.after.id) for one in made))
            return stored, read

    stored, read = asyncio.run(register_all())
    assert stored == read == [one.after for one in made]
    assert mongo_db.outbox_events.count_documents({}) == 200
    rounds = -(-200 // LARGEST)
    assert commands.counted["commitTransaction"] == commands.counted["find"] == rounds


def test_keys_that_have_an_asset_get_it_and_the_others_of_the_round_theirs(mongo_url: str, mongo_db: Db) -> None:
    keys = [f"key-{number}" for number in range(20)]

    async def register_twice() -> tuple[list[Asset], list[Asset]]:
        async with connect_async(mongo_url) as client:
            one, other = (AssetStore(client=client, database=mongo_db.name, seconds=10) for _ in range(2))
            await one.ensure_indexes()
            first = await asyncio.gather(*(one.register(registered(idempotency_key=key)) for key in keys[::2]))
            return first, await asyncio.gather(*(other.register(registered(idempotency_key=key)) for key in keys))

    first, second = asyncio.run(register_twice())
    assert second[::2] == first
    assert [asset.idempotency_key for asset in second] == keys
    assert mongo_db.assets.count_documents({}) == mongo_db.outbox_events.count_documents({}) == 20
    rows = mongo_db.outbox_events.find()
    assert {row["asset_id"] for row in rows} == {asset.id for asset in second}


def test_what_cannot_be_stored_is_in_the_way_of_nobody(mongo_url: str, mongo_db: Db) -> None:
    bad = registered(metadata={"name": "\ud800"})  # which is no UTF-8
    good = [registered() for _ in range(8)]

    async def register_all() -> list[Asset | BaseException]:
        async with connect_async(mongo_url) as client:
            store = AssetStore(client=client, database=mongo_db.name, seconds=10)
            await store.ensure_indexes()
            return await asyncio.gather(*(store.register(one) for one in [*good, bad]), return_exceptions=True)

    *stored, refused = asyncio.run(register_all())
    assert stored == [one.after for one in good]
    assert isinstance(refused, UnicodeEncodeError)
    assert mongo_db.assets.count_documents({}) == mongo_db.outbox_events.count_documents({}) == 8


def test_a_key_that_anothers_transaction_holds_is_in_the_way_of_nobody(mongo_url: str, mongo_db: Db) -> None:
    held, free = registered(idempotency_key=KEY), registered()
    winner = registered(idempotency_key=KEY)

    async def play() -> Asset:
        async with connect_async(mongo_url) as client, client.start_session() as session:
            store = AssetStore(client=client, database=mongo_db.name, seconds=10)
            await store.ensure_indexes()
            await session.start_transaction()
            await client[mongo_db.name].assets.insert_one(to_document(winner.after), session=session)
            waits, goes = (asyncio.create_task(store.register(one)) for one in (held, free))
            assert (await goes).id == free.after.id
            assert not waits.done()
            await session.commit_transaction()
            return await waits

    assert asyncio.run(play()).id == winner.after.id
    assert mongo_db.assets.count_documents({}) == 2


def test_who_waits_for_held_keys_takes_no_turns_meanwhile(mongo_url: str, mongo_db: Db) -> None:
    async def play() -> None:
        async with connect_async(mongo_url) as client, client.start_session() as session:
            store = AssetStore(client=client, database=mongo_db.name, seconds=10, at_once=2)
            await store.ensure_indexes()
            held = [registered() for _ in range(8)]
            await session.start_transaction()
            await client[mongo_db.name].assets.insert_many([to_document(one.after) for one in held], session=session)
            keys = [one.after.idempotency_key for one in held]
            waiting = [asyncio.create_task(store.register(registered(idempotency_key=key))) for key in keys]
            free = [registered() for _ in range(10)]
            async with asyncio.timeout(5):
                stored = [await store.register(one) for one in free]
            assert [one.id for one in stored] == [one.after.id for one in free]
            assert not any(one.done() for one in waiting)
            await session.commit_transaction()
            assert [one.id for one in await asyncio.gather(*waiting)] == [one.after.id for one in held]

    asyncio.run(play())


def test_who_waits_for_a_held_key_waits_not_for_ever(mongo_url: str, mongo_db: Db) -> None:
    async def play() -> None:
        async with connect_async(mongo_url) as client, client.start_session() as session:
            store = AssetStore(client=client, database=mongo_db.name, seconds=1)
            await store.ensure_indexes()
            await session.start_transaction()
            held = registered()
            await client[mongo_db.name].assets.insert_one(to_document(held.after), session=session)
            async with asyncio.timeout(20):
                with pytest.raises(PyMongoError) as raised:
                    await store.register(registered(idempotency_key=held.after.idempotency_key))
            assert raised.value.timeout or isinstance(raised.value, WaitQueueTimeoutError)
            await session.abort_transaction()

    asyncio.run(play())


def test_a_document_that_cannot_be_read_is_in_the_way_of_nobody(mongo_url: str, mongo_db: Db) -> None:
    async def read() -> list[Asset | BaseException | None]:
        async with connect_async(mongo_url) as client:
            store = AssetStore(client=client, database=mongo_db.name, seconds=10)
            made = await store.register(registered())
            mongo_db.assets.insert_one({"_id": "damaged", "owner_id": made.owner_id})
            ids = (made.id, "damaged", "nobody's")
            answers = (store.by_id(owner_id=made.owner_id, asset_id=asset_id) for asset_id in ids)
            return await asyncio.gather(*answers, return_exceptions=True)

    whole, damaged, none = asyncio.run(read())
    assert isinstance(whole, Asset)
    assert isinstance(damaged, ValidationError)
    assert none is None


def test_a_storm_waits_for_its_turn_and_not_beyond_a_deadline(mongo_url: str, mongo_db: Db) -> None:
    app = f"storm-{mongo_db.name}"

    async def storm() -> list[Asset | None]:
        # One connection and slow answers: all together take longer than one may.
        async with connect_async(mongo_url, appname=app, maxPoolSize=1) as client:
            store = AssetStore(client=client, database=mongo_db.name, seconds=2, at_once=1)
            with failing(mongo_db.client, "find", app=app, blockConnection=True, blockTimeMS=100):
                return await asyncio.gather(*(store.by_id(owner_id=f"o{n}", asset_id="a") for n in range(30)))

    assert asyncio.run(storm()) == [None] * 30


def test_who_waits_behind_slow_rounds_waits_not_for_ever(
    mongo_url: str, mongo_db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asset_api.store.TURN_SECONDS", 0.0)
    app = f"slow-{mongo_db.name}"

    async def play() -> None:
        async with connect_async(mongo_url, appname=app) as client:
            store = AssetStore(client=client, database=mongo_db.name, seconds=1.0)
            with failing(mongo_db.client, "find", app=app, blockConnection=True, blockTimeMS=700):
                tasks = []
                for _ in range(3):
                    tasks.append(asyncio.create_task(store.by_id(owner_id="o", asset_id="a")))
                    await asyncio.sleep(0)
                with pytest.raises(WaitQueueTimeoutError, match="no answer within"):
                    await tasks[-1]
                await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(play())


def test_in_an_outage_nobody_waits_for_those_before(mongo_url: str, mongo_db: Db) -> None:
    """MongoDB gives no answer; hundreds ask, some for the same, more than there are turns: all are told in one time."""
    app = f"outage-{mongo_db.name}"
    seconds = 1.0

    async def ask(ask: Callable[[], Awaitable[object]]) -> float:
        began = time.monotonic()
        with pytest.raises(PyMongoError) as refused:
            await ask()
        assert refused.value.timeout
        return time.monotonic() - began

    async def outage() -> list[float]:
        async with connect_async(mongo_url, appname=app) as client:
            store = AssetStore(client=client, database=mongo_db.name, seconds=seconds, at_once=4)
            await store.ping()
            tasks = []
            with failing(mongo_db.client, "find", app=app, blockConnection=True, blockTimeMS=4000):
                for number in range(40):
                    asked = (
                        lambda: store.by_id(owner_id="o", asset_id="a"),
                        lambda n=number: store.by_key(owner_id=f"o{n}", idempotency_key="k"),
                        lambda: store.events_after(owner_id="o", asset_id="a", sequence=0, limit=1),
                    )
                    tasks += [asyncio.create_task(ask(one)) for one in asked]
                    await asyncio.sleep(seconds / 50)
                return await asyncio.gather(*tasks)

    took = asyncio.run(outage())
    assert max(took) < 1.6 * seconds


def test_no_connection_to_be_had_is_an_outage_as_well(mongo_url: str, mongo_db: Db) -> None:
    """Those before still hold them: in a second wave of requests nobody has one of their own."""
    app = f"pool-{mongo_db.name}"

    async def ask(store: AssetStore, number: int) -> float:
        began = time.monotonic()
        with pytest.raises(PyMongoError) as refused:
            await store.by_id(owner_id=f"o{number}", asset_id="a")
        assert refused.value.timeout
        return time.monotonic() - began

    async def wave() -> list[float]:
        async with connect_async(mongo_url, appname=app, maxPoolSize=1) as client:
            store = AssetStore(client=client, database=mongo_db.name, seconds=1.0, at_once=4)
            await store.ping()
            with failing(mongo_db.client, "find", app=app, blockConnection=True, blockTimeMS=3000):
                held = asyncio.create_task(client[mongo_db.name].assets.find_one({}))
                await asyncio.sleep(0.2)
                took = await asyncio.gather(*(ask(store, number) for number in range(12)))
                await held
                return took

    assert max(asyncio.run(wave())) < 1.6


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
