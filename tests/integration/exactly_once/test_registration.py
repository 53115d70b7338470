"""A registration is stored as a whole: the asset and its event, or neither."""

import asyncio

import pytest
from pymongo.errors import OperationFailure

from asset_api.store import AssetStore
from darkroom.runtime.mongo import Db, connect_async
from support import events
from support.faults import failing

REFUSED = 2
"""An error code (BadValue) upon which no driver tries again."""


def test_a_registration_that_cannot_be_stored_whole_is_not_stored_at_all(mongo_url: str, mongo_db: Db) -> None:
    app = f"registration-{mongo_db.name}"
    made = events.registered()

    def counts() -> tuple[int, int]:
        return mongo_db.assets.count_documents({}), mongo_db.outbox_events.count_documents({})

    async def play() -> None:
        async with connect_async(mongo_url, appname=app) as client:
            store = AssetStore(client=client, database=mongo_db.name, seconds=10)
            await store.ensure_indexes()
            with (
                failing(mongo_db.client, "commitTransaction", app=app, errorCode=REFUSED),
                pytest.raises(OperationFailure) as caught,
            ):
                await store.register(made)
            assert caught.value.code == REFUSED
            refused = counts()
            # By the same client, whose next transaction ends the one that the server was not allowed to commit.
            assert (await store.register(made)).id == made.after.id
            assert (refused, counts()) == ((0, 0), (1, 1))

    asyncio.run(play())
