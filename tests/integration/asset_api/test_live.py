"""The hub on a real replica set: each event once, in order, whatever breaks and whenever listeners come back."""

import asyncio
import gc
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.database import Database

from asset_api.listener import Ending, Happened, Listener
from asset_api.live import Hub, Refused
from asset_api.position import Position
from darkroom.local.mongod import MongoReplicaSet, start_mongod
from darkroom.local.processes import Supervisor
from darkroom.outbox import COLLECTION, to_row
from darkroom.runtime.mongo import AsyncClient, connect_async
from support.events import NOW, registered
from support.failpoints import FailPoints
from support.live_stage import APP, Ear, Key, assert_once_and_in_order, become, commit, hub_on, live_through

Db = Database[dict[str, Any]]


def run(scene: Callable[[AsyncClient], Coroutine[Any, Any, None]], url: str) -> None:
    async def play() -> None:
        async with connect_async(url) as client:
            await scene(client)

    asyncio.run(play())


def stored(db: Db, owner_id: str) -> set[Key]:
    return {(row["asset_id"], row["sequence"]) for row in db[COLLECTION].find({"owner_id": owner_id})}


@pytest.fixture
def failpoints(mongo_db: Db) -> Iterator[FailPoints]:
    points = FailPoints(mongo_db.client)
    yield points
    points.off()


def test_every_listener_hears_its_owners_events_once_over_one_change_stream(mongo_url: str, mongo_db: Db) -> None:
    async def scene(client: AsyncClient) -> None:
        async with hub_on(mongo_url, mongo_db.name) as hub:
            ears = [Ear(f"owner-{n % 5}") for n in range(50)]
            for ear in ears:
                await ear.join(hub)
            await asyncio.gather(*(live_through(client, mongo_db.name, f"owner-{n % 5}") for n in range(40)))
            for ear in ears:
                await ear.until(24)
                assert_once_and_in_order(ear.heard, stored(mongo_db, ear.owner_id))
            assert len(change_streams(mongo_db)) == 1
            for ear in ears:
                await ear.leave()

    run(scene, mongo_url)


def test_what_is_kept_grows_neither_with_listeners_nor_with_events(mongo_url: str, mongo_db: Db) -> None:
    def held() -> Counter[type]:
        gc.collect()
        return Counter(type(one) for one in gc.get_objects() if type(one) in (Listener, Happened))

    async def scene(client: AsyncClient) -> None:
        async with hub_on(mongo_url, mongo_db.name, remembered=20) as hub:
            for _ in range(3):
                ears = [Ear(f"owner-{n % 2}") for n in range(12)]
                for ear in ears:
                    await ear.join(hub)
                await asyncio.gather(*(live_through(client, mongo_db.name, f"owner-{n % 2}") for n in range(10)))
                for ear in ears:
                    await ear.until(15)
                    await ear.leave()
                del ear, ears
                await become(lambda: held() == {Happened: 20})  # the loop may hold what has just ended
                assert not hub._listeners
                assert not hub._behind
                assert not hub._counts

    run(scene, mongo_url)


def test_who_comes_back_misses_what_was_committed_late_by_an_earlier_transaction_neither(
    mongo_url: str, mongo_db: Db
) -> None:
    """Inserted first, committed last: an id made of insertion order or of time would skip it."""
    early, late = registered(), registered()

    async def scene(client: AsyncClient) -> None:
        await client[mongo_db.name].create_collection(COLLECTION)
        async with hub_on(mongo_url, mongo_db.name) as hub:
            ear = Ear("owner-1")
            await ear.join(hub)
            async with client.start_session() as session, await session.start_transaction():
                await client[mongo_db.name][COLLECTION].insert_one(to_row(early.event), session=session)
                await commit(client, mongo_db.name, late)
                await ear.until(1)
                await ear.leave()
            await ear.join(hub)
            await ear.until(2)
            assert [asset_id for asset_id, _ in ear.heard] == [late.after.id, early.after.id]
            await ear.leave()

    run(scene, mongo_url)


@pytest.mark.parametrize("remembered", [1, 20, 4096])
def test_who_comes_and_goes_between_processes_hears_each_event_once(
    mongo_url: str, mongo_db: Db, remembered: int
) -> None:
    """With little remembered, coming back goes over the server's history; with much, over memory."""

    async def scene(client: AsyncClient) -> None:
        rng = random.Random(7)
        options: dict[str, Any] = {"remembered": remembered}
        async with (
            hub_on(mongo_url, mongo_db.name, **options) as one,
            hub_on(mongo_url, mongo_db.name, **options) as two,
        ):
            ears = [Ear(f"owner-{n % 2}") for n in range(6)]
            for ear in ears:
                await ear.join(one)
            writing = asyncio.gather(*(live_through(client, mongo_db.name, f"owner-{n % 2}") for n in range(60)))
            while not writing.done():
                ear = rng.choice(ears)
                await ear.leave()
                await asyncio.sleep(rng.uniform(0, 0.02))
                await ear.join(rng.choice([one, two]))
            await writing
            for ear in ears:
                await ear.until(90)
                assert ear.lost == 0
                assert_once_and_in_order(ear.heard, stored(mongo_db, ear.owner_id))
                await ear.leave()

    run(scene, mongo_url)


def test_one_transaction_of_many_events_is_resumed_in_its_middle(mongo_url: str, mongo_db: Db) -> None:
    changes = [registered(owner_id=f"owner-{n % 2}") for n in range(20)]

    async def scene(client: AsyncClient) -> None:
        await client[mongo_db.name].create_collection(COLLECTION)
        async with hub_on(mongo_url, mongo_db.name) as hub, hub_on(mongo_url, mongo_db.name, remembered=3) as other:
            ear = Ear("owner-1")
            await ear.join(hub)
            start = ear.last
            assert start is not None
            await commit(client, mongo_db.name, *changes)
            await ear.until(10)
            first = ear.heard
            for place, resumed_by in ((4, hub), (7, other)):
                later = Ear("owner-1")
                assert ear.last is not None
                await later.join(resumed_by, after=Position(ear.last.time, place))
                await later.until(10 - place)
                assert later.heard == first[place:]
                await later.leave()
            await ear.leave()

    run(scene, mongo_url)


@pytest.mark.parametrize(("code", "label"), [(43, "ResumableChangeStreamError"), (11601, "")])
def test_a_stream_that_breaks_goes_on_where_it_was(
    mongo_url: str, mongo_db: Db, failpoints: FailPoints, code: int, label: str
) -> None:
    async def scene(client: AsyncClient) -> None:
        async with hub_on(mongo_url, mongo_db.name) as hub:
            ear = Ear("owner-1")
            await ear.join(hub)
            writing = asyncio.gather(*(live_through(client, mongo_db.name, "owner-1") for _ in range(30)))
            for broken in range(1, 6):
                failpoints.fail("getMore", app=APP, times=2, code=code, labels=[label] if label else [])
                # Events come in several batches, so it broke on the way.
                await ear.until(10 * broken)
            await writing
            await ear.until(90)
            assert ear.lost == 0
            assert_once_and_in_order(ear.heard, stored(mongo_db, "owner-1"))
            await ear.leave()

    run(scene, mongo_url)


def test_lost_history_is_told_and_the_stream_goes_on(mongo_url: str, mongo_db: Db, failpoints: FailPoints) -> None:
    async def scene(client: AsyncClient) -> None:
        async with hub_on(mongo_url, mongo_db.name) as hub:
            ear = Ear("owner-1")
            await ear.join(hub)
            await live_through(client, mongo_db.name, "owner-1")
            await ear.until(3)
            failpoints.fail("getMore", app=APP, times=1, code=286)
            await become(lambda: ear.lost == 1)
            await live_through(client, mongo_db.name, "owner-1")
            await ear.until(6)
            assert_once_and_in_order(ear.heard, stored(mongo_db, "owner-1"))
            await ear.leave()

    run(scene, mongo_url)


@pytest.mark.parametrize("after", [Position((1, 1), 0), Position((2**32 - 1, 1), 0)])
def test_a_position_that_cannot_be_gone_on_from_is_reset(mongo_url: str, mongo_db: Db, after: Position) -> None:
    async def scene(client: AsyncClient) -> None:
        async with hub_on(mongo_url, mongo_db.name) as hub:
            ear = Ear("owner-1")
            await ear.join(hub, after=after)
            await become(lambda: ear.lost == 1)
            await live_through(client, mongo_db.name, "owner-1")
            await ear.until(3)
            assert_once_and_in_order(ear.heard, stored(mongo_db, "owner-1"))
            assert ear.lost == 1
            await ear.leave()

    run(scene, mongo_url)


def test_another_owners_events_are_not_heard(mongo_url: str, mongo_db: Db) -> None:
    async def scene(client: AsyncClient) -> None:
        async with hub_on(mongo_url, mongo_db.name, remembered=1) as hub:
            mine, other = Ear("owner-1"), Ear("owner-2")
            await mine.join(hub)
            await other.join(hub)
            start = mine.last
            await live_through(client, mongo_db.name, "owner-1")
            await live_through(client, mongo_db.name, "owner-2")
            await mine.until(3)
            await other.until(3)
            again = Ear("owner-2")
            await again.join(hub, after=start)  # over the server's history
            await again.until(3)
            assert_once_and_in_order(again.heard, stored(mongo_db, "owner-2"))
            assert_once_and_in_order(mine.heard, stored(mongo_db, "owner-1"))
            for ear in (mine, other, again):
                await ear.leave()

    run(scene, mongo_url)


def test_a_row_that_is_no_event_stops_nobody(mongo_url: str, mongo_db: Db) -> None:
    async def scene(client: AsyncClient) -> None:
        async with hub_on(mongo_url, mongo_db.name) as hub:
            ear = Ear("owner-1")
            await ear.join(hub)
            rows = client[mongo_db.name][COLLECTION]
            for row in ({}, {"owner_id": 7}, {"owner_id": "owner-1", "asset_id": 1, "sequence": "x"}):
                await rows.insert_one(dict(row))
            # One whose data has no form in JSON, of somebody else.
            strange = {"owner_id": "owner-2", "asset_id": "x", "sequence": 1, "data_version": 1, "type": "Strange"}
            await rows.insert_one({**strange, "occurred_at": NOW, "data": {"at": NOW, "id": ObjectId()}})
            await live_through(client, mongo_db.name, "owner-1")
            await ear.until(3)
            await ear.leave()

    run(scene, mongo_url)


def test_a_slow_listener_is_ended_and_holds_nothing_up(mongo_url: str, mongo_db: Db) -> None:
    async def scene(client: AsyncClient) -> None:
        async with hub_on(mongo_url, mongo_db.name, queued=5) as hub:
            slow = await hub.listen("owner-1")
            ear = Ear("owner-1")
            await ear.join(hub)
            for _ in range(4):
                await live_through(client, mongo_db.name, "owner-1")
            await ear.until(12)
            assert slow.ending is Ending.SLOW
            kept = await slow.heard(seconds=0)
            assert len(kept) == 5
            hub.leave(slow)
            rest = Ear("owner-1")
            await rest.join(hub, after=kept[-1].position)
            await rest.until(7)
            assert ear.heard[5:] == rest.heard
            await ear.leave()
            await rest.leave()

    run(scene, mongo_url)


def test_there_is_an_end_to_how_many_listen(mongo_url: str, mongo_db: Db) -> None:
    async def scene(_client: AsyncClient) -> None:
        async with hub_on(mongo_url, mongo_db.name, listeners=3, per_owner=2) as hub:
            first = await hub.listen("owner-1")
            await hub.listen("owner-1")
            with pytest.raises(Refused, match="You have 2"):
                await hub.listen("owner-1")
            await hub.listen("owner-2")
            with pytest.raises(Refused, match="its 3 listeners"):
                await hub.listen("owner-3")
            hub.leave(first)
            third = await hub.listen("owner-3")
            hub.end()
            assert third.ending is Ending.SHUTDOWN
            with pytest.raises(Refused, match="ending"):
                await hub.listen("owner-4")

    run(scene, mongo_url)


@pytest.fixture(scope="module")
def three_members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoReplicaSet]:
    folder: Path = tmp_path_factory.mktemp("three")
    with Supervisor(folder / "logs") as supervisor:
        yield start_mongod(supervisor, folder, members=3)


def test_a_failover_misses_and_doubles_nothing(three_members: MongoReplicaSet) -> None:
    """The primary is killed while owners write, and listeners move between processes."""
    database = "failover"

    async def scene(client: AsyncClient) -> None:
        rng = random.Random(11)
        done = threading.Event()

        async def write(owner_id: str) -> None:
            while not done.is_set():
                await live_through(client, database, owner_id)

        async def move(ears: list[Ear], hubs: list[Hub]) -> None:
            while not done.is_set():
                ear = rng.choice(ears)
                await ear.leave()
                await asyncio.sleep(rng.uniform(0, 0.05))
                await ear.join(rng.choice(hubs))

        async with (
            hub_on(three_members.url, database, seconds=30, remembered=50) as one,
            hub_on(three_members.url, database, seconds=30, remembered=50) as two,
        ):
            ears = [Ear(f"owner-{n % 3}") for n in range(9)]
            for ear in ears:
                await ear.join(one)
            tasks = [asyncio.create_task(write(f"owner-{n}")) for n in range(3)]
            tasks.append(asyncio.create_task(move(ears[:6], [one, two])))
            await ears[0].until(30)
            victim = await asyncio.to_thread(three_members.primary)
            await asyncio.to_thread(victim.kill)
            await ears[0].until(len(ears[0].heard) + 30, seconds=60)
            done.set()
            await asyncio.gather(*tasks)
            with MongoClient[dict[str, Any]](three_members.url) as sync:
                for ear in ears:
                    expected = stored(sync[database], ear.owner_id)
                    await ear.until(len(expected))
                    assert ear.lost == 0
                    assert_once_and_in_order(ear.heard, expected)
                    await ear.leave()

    run(scene, three_members.url)


def change_streams(db: Db) -> list[dict[str, Any]]:
    """The server's open change streams of hubs on this database, idle or waiting."""
    with db.client.admin.aggregate(
        [{"$currentOp": {"allUsers": True, "idleCursors": True, "idleConnections": False}}]
    ) as found:
        return [
            one
            for one in found
            if one.get("appName") == APP
            and one.get("ns", "").startswith(f"{db.name}.")
            and ("$changeStream" in str(one.get("cursor", {}).get("originatingCommand", {})))
        ]
