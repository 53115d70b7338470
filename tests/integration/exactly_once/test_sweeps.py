"""What a relay's sweep rests on, seen on a real server: its snapshot, its majority, and the end of its leases."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pymongo import IndexModel

from darkroom.outbox import COLLECTION, to_row
from darkroom.outbox.rows import INDEXES
from darkroom.runtime.mongo import Db, connect, ensure_indexes
from outbox_relay.shards import Owned, ShardLeases
from support import events
from support.commands import Commands
from support.memory_log import MemoryLog
from support.relay_machine import SteppedRelay, unpublished


@dataclass
class Outbox:
    """An outbox with one event, and a relay of it whose client's own concerns are weak."""

    db: Db
    relay: SteppedRelay
    log: MemoryLog
    commands: Commands

    def append(self) -> None:
        self.db[COLLECTION].insert_one(to_row(events.registered().event))


@pytest.fixture
def outbox(mongo_url: str, mongo_db: Db) -> Iterator[Outbox]:
    commands, log = Commands(), MemoryLog()
    with connect(mongo_url, event_listeners=[commands], w=1, readConcernLevel="local") as client:
        db = client[mongo_db.name]
        ensure_indexes(db, {COLLECTION: [IndexModel(keys, **options) for keys, options in INDEXES]})
        ShardLeases(db, instance="set-up", lease_seconds=1).create()
        outbox = Outbox(mongo_db, SteppedRelay(client, db, log), log, commands)
        outbox.append()
        yield outbox
        outbox.relay.die()


def test_a_sweep_reads_a_snapshot_and_marks_with_a_majority(outbox: Outbox) -> None:
    outbox.relay.sweep({})
    (read,) = outbox.commands.named("find", COLLECTION)
    assert read["readConcern"]["level"] == "snapshot"
    (mark,) = outbox.commands.named("update", COLLECTION)
    assert mark["writeConcern"] == {"w": "majority"}


def test_what_is_appended_during_a_sweep_is_left_to_the_next(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox_relay.relay.BATCH", 1)
    for _ in range(5):
        outbox.append()

    def append_many() -> None:
        for _ in range(20):
            outbox.append()

    outbox.relay.sweep({("send", 1): append_many})
    assert len(outbox.log.records) == 6
    outbox.relay.sweep({})
    assert len(outbox.log.records) == 26
    assert unpublished(outbox.db) == 0


def test_a_relay_whose_leases_have_run_out_sends_nothing(outbox: Outbox) -> None:
    shards = outbox.relay.leases.owned.shards
    outbox.relay.leases.owned = Owned(shards, time.monotonic() - 0.001)
    outbox.relay.sweep({})
    assert outbox.log.records == []
    outbox.relay.leases.refresh()
    outbox.relay.sweep({})
    assert len(outbox.log.records) == 1


def test_an_asset_whose_event_was_refused_rests(outbox: Outbox, mongo_url: str) -> None:
    row = outbox.db[COLLECTION].find_one({})
    assert row is not None
    outbox.log.refused.add(row["_id"])
    with connect(mongo_url) as client:
        relay = SteppedRelay(client, client[outbox.db.name], outbox.log, longest_pause=60.0)
        outbox.relay.run_out()
        relay.leases.refresh()
        # First in a batch, which blames nobody, then alone.
        relay.sweep({})
        assert relay.resting == set()
        relay.sweep({})
        assert relay.resting == {row["asset_id"]}
        relay.die()
