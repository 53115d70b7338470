"""What a processor writes, it writes as a whole: the asset, its event and the inbox row, or none of them."""

from collections.abc import Callable, Iterator

import pytest
from pymongo.errors import DuplicateKeyError, OperationFailure

from darkroom.assets import Change, to_document
from darkroom.inbox import Claimed, Inbox, Lease
from darkroom.outbox import to_row
from darkroom.runtime.mongo import Db, connect, ensure_indexes
from processor.store import Store
from support import events
from support.faults import failing

REFUSED = 2
"""An error code (BadValue) upon which no driver tries again."""
APP = "one-transaction"
Write = Callable[[Store, Lease, Change], object]


@pytest.fixture
def store(mongo_url: str, mongo_db: Db) -> Iterator[Store]:
    with connect(mongo_url, appname=f"{APP}-{mongo_db.name}") as client:
        db = client[mongo_db.name]
        ensure_indexes(db, Store.indexes())
        yield Store(client, db, Inbox(db, consumer="c", lease_seconds=30))


@pytest.mark.parametrize(
    "write",
    [
        lambda store, lease, change: store.begin(change, lease.event_id, owner=lease.owner),
        lambda store, lease, change: store.start(change, lease),
        lambda store, lease, change: store.finish(change, lease, outcome="o"),
        lambda store, lease, change: store.give_up(change, lease, outcome="o"),
    ],
    ids=["begin", "start", "finish", "give_up"],
)
def test_an_end_that_cannot_be_written_whole_is_not_written_at_all(store: Store, mongo_db: Db, write: Write) -> None:
    made = events.registered()
    mongo_db.assets.insert_one(to_document(made.after))
    mongo_db.outbox_events.insert_one(to_row(made.event))
    claimed = store.inbox.claim("e", owner="a")
    assert isinstance(claimed, Claimed)

    def everything() -> list[object]:
        return [list(mongo_db[name].find()) for name in ("assets", "outbox_events", "consumer_inbox")]

    before = everything()
    step = events.step(made.after, events.processing())
    app = f"{APP}-{mongo_db.name}"
    with (
        failing(mongo_db.client, "commitTransaction", app=app, errorCode=REFUSED),
        pytest.raises(OperationFailure) as caught,
    ):
        write(store, claimed.lease, step)
    assert caught.value.code == REFUSED
    refused = everything()
    # Its transaction ends the one that the server was not allowed to commit.
    write(store, claimed.lease, step)
    assert refused == before
    assert all(now != then for now, then in zip(everything(), before, strict=True))


def test_a_place_in_a_stream_is_taken_once(store: Store) -> None:
    row = to_row(events.registered().event)
    store.db.outbox_events.insert_one(row)
    with pytest.raises(DuplicateKeyError):
        store.db.outbox_events.insert_one({**row, "_id": events.new_id()})
