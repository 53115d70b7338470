"""The limits of one owner hold over several processes, and cost little, on a real replica set."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from pymongo.database import Database

from asset_api.quota import PENDING_LIMIT, Limits, Quota, QuotaExceeded, TooManyRegistrations, TooManyUploads
from asset_api.store import AssetStore
from darkroom.assets import Asset, Change, to_document
from darkroom.runtime.mongo import connect_async
from support.events import processing, registered, step

Api = Any
Db = Database[dict[str, Any]]
OWNER = "owner-1"
Stores = list[AssetStore]


def play(
    mongo_url: str,
    db: Db,
    test: Callable[[Stores], Awaitable[None]],
    *,
    per_minute: int = 10_000,
    uploading: int = 10_000,
) -> None:
    """Two processes' worth of stores on one database."""

    async def run() -> None:
        limits = Limits(per_minute=per_minute, uploading=uploading)
        async with connect_async(mongo_url) as one, connect_async(mongo_url) as other:
            stores = [
                AssetStore(
                    client=client,
                    database=db.name,
                    seconds=20,
                    quota=Quota(client=client, database=db.name, limits=limits, seconds=20),
                )
                for client in (one, other)
            ]
            await stores[0].ensure_indexes()
            await test(stores)

    asyncio.run(run())


async def register(stores: Stores, changes: list[Change]) -> list[Asset | QuotaExceeded]:
    """All at once, spread over the stores."""

    async def one(store: AssetStore, change: Change) -> Asset | QuotaExceeded:
        try:
            return await store.register(change)
        except QuotaExceeded as refused:
            return refused

    return await asyncio.gather(*(one(stores[n % len(stores)], change) for n, change in enumerate(changes)))


def fresh(count: int, **fields: Any) -> list[Change]:
    return [registered(**{"owner_id": OWNER, **fields}) for _ in range(count)]


def kinds(answers: list[Asset | QuotaExceeded]) -> dict[str, int]:
    return dict(Counter(type(answer).__name__ for answer in answers))


def moved_on(db: Db, asset: Asset) -> None:
    db.assets.replace_one({"_id": asset.id}, to_document(step(asset, processing()).after))


def test_never_more_than_the_limit_are_uploading_at_one_time(mongo_url: str, mongo_db: Db) -> None:
    async def test(stores: Stores) -> None:
        answers = await register(stores, fresh(40))
        assert kinds(answers) == {"Asset": 5, "TooManyUploads": 35}
        assert mongo_db.assets.count_documents({}) == mongo_db.outbox_events.count_documents({}) == 5
        assert kinds(await register(stores, fresh(4, owner_id="owner-2"))) == {"Asset": 4}
        # At once, as soon as one is no longer UPLOADING.
        moved_on(mongo_db, next(answer for answer in answers if isinstance(answer, Asset)))
        assert kinds(await register(stores, fresh(3))) == {"Asset": 1, "TooManyUploads": 2}
        assert mongo_db.assets.count_documents({"owner_id": OWNER, "status": "UPLOADING"}) == 5

    play(mongo_url, mongo_db, test, uploading=5)


def test_the_limit_holds_under_a_long_storm(mongo_url: str, mongo_db: Db) -> None:
    async def test(stores: Stores) -> None:
        for _ in range(6):
            answers = await register(stores, fresh(60))
            assert mongo_db.assets.count_documents({"status": "UPLOADING"}) <= 100
            for answer in answers[:20]:
                if isinstance(answer, Asset):
                    moved_on(mongo_db, answer)
        assert kinds(await register(stores, fresh(200)))["TooManyUploads"] > 0
        assert mongo_db.assets.count_documents({"status": "UPLOADING"}) == 100

    play(mongo_url, mongo_db, test, uploading=100)


def test_a_minute_has_its_number_of_registrations(mongo_url: str, mongo_db: Db) -> None:
    async def test(stores: Stores) -> None:
        answers = await register(stores, fresh(30))
        assert kinds(answers) == {"Asset": 10, "TooManyRegistrations": 20}
        assert {answer.retry_after for answer in answers if isinstance(answer, TooManyRegistrations)} <= {5, 6}
        # Half a minute later, by the server's clock.
        at = (mongo_db.owner_quota.find_one({"_id": OWNER}) or {})["at"]
        mongo_db.owner_quota.update_one({"_id": OWNER}, {"$set": {"at": at - timedelta(seconds=30)}})
        assert kinds(await register(stores, fresh(30))) == {"Asset": 5, "TooManyRegistrations": 25}

    play(mongo_url, mongo_db, test, per_minute=10)


def test_equal_requests_count_once_also_over_two_processes(mongo_url: str, mongo_db: Db) -> None:
    async def test(stores: Stores) -> None:
        for n in range(3):
            changes = fresh(20, idempotency_key=f"key-{n}")
            assert len({answer.id for answer in await register(stores, changes) if isinstance(answer, Asset)}) == 1
        quota = mongo_db.owner_quota.find_one({"_id": OWNER}) or {}
        assert quota["open"] == 3
        assert len(quota["pending"]) <= 3
        assert 997 <= quota["tokens"] <= 1000

    play(mongo_url, mongo_db, test, per_minute=1000)


def test_a_place_whose_registration_never_came_is_free_again(mongo_url: str, mongo_db: Db) -> None:
    async def test(stores: Stores) -> None:
        assert kinds(await register(stores, fresh(1))) == {"Asset": 1}
        quota = stores[0]._quota
        assert quota is not None
        await quota.admit(owner_id=OWNER, asset_id="never-stored")
        with pytest.raises(TooManyUploads):
            await quota.admit(owner_id=OWNER, asset_id="third")
        at = (mongo_db.owner_quota.find_one({"_id": OWNER}) or {})["at"]
        mongo_db.owner_quota.update_one(
            {"pending.id": "never-stored"}, {"$set": {"pending.$.at": at - timedelta(seconds=61)}}
        )
        await quota.admit(owner_id=OWNER, asset_id="third")

    play(mongo_url, mongo_db, test, uploading=2)


def test_the_owners_document_stays_small_and_may_be_lost(mongo_url: str, mongo_db: Db) -> None:
    async def test(stores: Stores) -> None:
        for _ in range(10):
            await register(stores, fresh(30))
        quota = mongo_db.owner_quota.find_one({"_id": OWNER}) or {}
        assert quota["open"] >= 300
        assert len(quota["pending"]) <= PENDING_LIMIT + 30
        mongo_db.owner_quota.delete_many({})
        assert kinds(await register(stores, fresh(30))) == {"Asset": 20, "TooManyUploads": 10}

    play(mongo_url, mongo_db, test, uploading=320)


def test_too_much_is_429_with_the_time_to_wait_and_replays_are_answered(start_api: Callable[..., Api]) -> None:
    slow = start_api(DARKROOM_REGISTRATIONS_PER_MINUTE="3")
    owner = uuid.uuid4().hex
    keys = [uuid.uuid4().hex for _ in range(3)]
    assert [slow.register(key=key, owner=owner).status_code for key in keys] == [201] * 3
    refused = slow.register(key="later", owner=owner)
    assert (refused.status_code, refused.json()["type"]) == (429, "urn:darkroom:problem:too-many-registrations")
    assert 1 <= int(refused.headers["retry-after"]) <= 20
    for key in keys:
        assert slow.register(key=key, owner=owner).headers["idempotency-replayed"] == "true"
        # Nor does a limit hide that a key belongs to another request.
        assert slow.register(key=key, owner=owner, size=5).json()["type"].endswith("idempotency-key-reused")
    assert slow.register(owner=uuid.uuid4().hex).status_code == 201

    full = start_api(DARKROOM_UPLOADING_LIMIT="3")
    assert full.register(key=keys[0], owner=owner).status_code == 200
    refused = full.register(key="later", owner=owner)
    assert (refused.status_code, refused.json()["type"]) == (429, "urn:darkroom:problem:too-many-uploads")
    assert int(refused.headers["retry-after"]) > 0
