"""Workers and relays in any order, crashing, standing still, overtaken and repeated: I2 to I7 hold all the same.

Everything but the topic in memory is real. Nothing sleeps: leases run out because the data says so. By default as many
runs as take about half a minute; DARKROOM_MACHINE_RUNS asks for another number.
"""

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from pymongo import IndexModel

from darkroom.assets import Asset, Change, Status, change, from_document, guard, to_document, update
from darkroom.assets.documents import INDEXES as ASSET_INDEXES
from darkroom.contracts.envelope import Event
from darkroom.contracts.events import AssetRestored, AssetTrashed
from darkroom.outbox import to_row
from darkroom.runtime.mongo import Client, Db, connect, ensure_indexes, in_transaction
from outbox_relay.shards import ShardLeases
from processor.store import Store
from support import events, invariants
from support.memory_log import Crash, MemoryLog
from support.relay_machine import Point, SteppedRelay, free_all_shards, unpark, unpublished
from support.worker_machine import CONSUMER, Hand, Workers

RUNS = int(os.environ.get("DARKROOM_MACHINE_RUNS", "80"))
STEPS = 40
ANY_HOST = st.sampled_from("ABC")
ANY_RELAY = st.sampled_from(("first", "second"))
POINTS = st.tuples(st.sampled_from(("send", "write", "ack", "take")), st.integers(1, 6))
MEANWHILE = st.sampled_from(("crash", "fail", "append", "lose", "regain", "refresh", "other"))
FAULTS = st.dictionaries(POINTS, MEANWHILE, max_size=3)


class ExactlyOnce(RuleBasedStateMachine):
    """One installation: assets, a partition of uploads and who consumes it, an outbox and who publishes it."""

    hands = Bundle("hands")
    uploads = Bundle("uploads")
    assets = Bundle("assets")

    def __init__(self, client: Client, db: Db) -> None:
        super().__init__()
        self.client = client
        self.db = db
        self.log = MemoryLog()
        self.relays: dict[str, SteppedRelay] = {}
        self.dead: list[SteppedRelay] = []
        self.known: list[str] = []

    @initialize(target=uploads, skews=st.tuples(*[st.sampled_from((0.0, 18_000.0, -18_000.0))] * 3))
    def set_up(self, skews: tuple[float, float, float]) -> Any:
        """Two assets, announced, so that something happens from the first step on."""
        self.workers = Workers(self.client, self.db, dict(zip("ABC", skews, strict=True)))
        self.relays["first"] = SteppedRelay(self.client, self.db, self.log)
        return multiple(*[self.upload(self.register(), "1") for _ in range(2)])

    @rule(target=assets)
    def register(self) -> Asset:
        """The API registers an asset."""
        made = events.registered()
        in_transaction(self.client, lambda session: self._insert(made, session))
        self.known.append(made.after.id)
        return made.after

    @rule(target=uploads, asset=assets, version=st.sampled_from("12"))
    def upload(self, asset: Asset, version: str) -> Event:
        """The bridge announces an original; another version of it is another event."""
        event = events.uploaded(asset, version_id=version)
        self.workers.publish(event)
        return event

    @rule(event=uploads)
    def announce_again(self, event: Event) -> None:
        """A duplicate, at any time later and in any order."""
        self.workers.publish(event)

    @rule(target=hands)
    def take(self) -> Any:
        """The consumer hands the next record to a worker, which claims it."""
        hand = self.workers.take()
        return multiple() if hand is None else hand

    @rule(hand=hands)
    def read(self, hand: Hand) -> None:
        self.workers.read(hand)

    @rule(hand=hands)
    def begin(self, hand: Hand) -> None:
        self.workers.begin(hand)

    @rule(hand=hands, how=st.sampled_from(("ready", "failed", "dead")))
    def end(self, hand: Hand, how: str) -> None:
        self.workers.end(hand, how)

    @rule(hand=hands, how=st.sampled_from(("ready", "failed", "dead")))
    def work_to_the_end(self, hand: Hand, how: str) -> None:
        """What a worker does when nothing comes between."""
        self.workers.read(hand)
        self.workers.begin(hand)
        self.workers.end(hand, how)

    @rule(hand=hands, delay=st.sampled_from((0.0, 3600.0)), refund=st.booleans())
    def give_back(self, hand: Hand, delay: float, refund: bool) -> None:
        self.workers.give_back(hand, delay=delay, refund=refund)

    @rule(hand=hands)
    def renew(self, hand: Hand) -> None:
        self.workers.renew(hand)

    @rule(hand=hands)
    def leave_behind(self, hand: Hand) -> None:
        self.workers.leave_behind(hand)

    @rule(hand=consumes(hands))
    def worker_crashes(self, hand: Hand) -> None:
        """Its thread never goes on; whoever comes after it has to find that out from the lease."""

    @rule(event=uploads)
    def lease_runs_out(self, event: Event) -> None:
        """Its holder, if any, stood still for too long, and may wake up later."""
        self.workers.run_out(event.id)

    @rule()
    def commit(self) -> None:
        self.workers.commit()

    @rule(host=ANY_HOST, crash=st.booleans())
    def rebalance(self, host: str, crash: bool) -> None:
        self.workers.rebalance(host, crash=crash)

    @rule(asset=assets)
    def trash_or_restore(self, asset: Asset) -> None:
        """The owner makes more events."""
        self._append(asset.id)

    @rule(name=ANY_RELAY)
    def relay_starts(self, name: str) -> None:
        if name not in self.relays:
            self.relays[name] = SteppedRelay(self.client, self.db, self.log)

    @rule(name=ANY_RELAY)
    def relay_dies(self, name: str) -> None:
        self._bury(name)

    @rule(name=ANY_RELAY)
    def relay_stalls(self, name: str) -> None:
        """It stands still past its leases, so that another may take its shards, and does not know."""
        if name in self.relays:
            self.relays[name].run_out()

    @rule()
    def leases_of_the_dead_run_out(self) -> None:
        for relay in self.dead:
            relay.run_out()

    @rule(name=ANY_RELAY)
    def relay_refreshes(self, name: str) -> None:
        if name in self.relays:
            self.relays[name].leases.refresh()

    @rule(name=ANY_RELAY, faults=FAULTS)
    def sweep(self, name: str, faults: dict[Point, str]) -> None:
        """A relay sweeps, and at some points something happens to it or beside it."""
        relay = self.relays.get(name)
        if relay is not None:
            hooks = {point: self._meanwhile(name, relay, what) for point, what in faults.items()}
            if not relay.sweep(hooks):
                self._forget(name)

    @rule()
    def late_records_arrive(self) -> None:
        """What a dead or failed producer had on the wire is written after all."""
        for under_way in self.log.on_the_wire:
            self.log.records.extend(under_way)
        self.log.on_the_wire.clear()

    @rule(asset=assets)
    def broker_refuses(self, asset: Asset) -> None:
        """The newest event of an asset is one that no broker takes."""
        row = self.db.outbox_events.find_one({"asset_id": asset.id, "published": False}, sort=[("sequence", -1)])
        if row is not None and row["_id"] not in {record.event_id for record in self.log.records}:
            self.log.refused.add(row["_id"])

    @invariant()
    def nothing_is_marked_or_sent_too_soon(self) -> None:
        """I6, at every moment."""
        assert not invariants.publication_violations(self.db, self.log.records, acknowledged=self.log.acknowledged)

    def teardown(self) -> None:
        """Check what is there, then let everything come to its end and check again; leave nothing behind."""
        try:
            if self.relays or self.dead:
                self._check()
                self.workers.catch_up()
                self._publish_the_rest()
                self._check()
                assert not invariants.missing(self.db, self.log.records)
        finally:
            for name in list(self.relays):
                self._bury(name)
            for collection in ("assets", "outbox_events", "consumer_inbox"):
                self.db[collection].delete_many({})
            free_all_shards(self.db)

    def _check(self) -> None:
        found = invariants.stream_violations(self.db)
        found += invariants.offset_violations(
            self.db, self.workers.topic, committed=self.workers.committed, consumer=CONSUMER
        )
        found += invariants.publication_violations(self.db, self.log.records, acknowledged=self.log.acknowledged)
        assert not found

    def _publish_the_rest(self) -> None:
        for name in list(self.relays):
            self._bury(name)
        free_all_shards(self.db)
        unpark(self.db, self.log)
        self.relays["last"] = SteppedRelay(self.client, self.db, self.log)
        for _ in range(3):
            self.relays["last"].sweep({})
        assert unpublished(self.db) == 0

    def _meanwhile(self, name: str, relay: SteppedRelay, what: str) -> Callable[[], None]:
        def crash() -> None:
            raise Crash

        def append() -> None:
            # The asset that is being sent goes on.
            for asset_id in self.known[:2]:
                self._append(asset_id)

        def other() -> None:
            rival = self.relays.get("second" if name == "first" else "first")
            if rival is not None and not rival.sweeping:
                rival.leases.refresh()
                rival.sweep({})

        return {
            "crash": crash,
            "append": append,
            "other": other,
            "fail": relay.fail_producer,
            "lose": relay.lose_shards,
            "regain": relay.regain_shards,
            "refresh": relay.regain_shards,
        }[what]

    def _append(self, asset_id: str) -> None:
        document = self.db.assets.find_one({"_id": asset_id})
        assert document is not None
        asset = from_document(document)
        if asset.status in (Status.READY, Status.FAILED):
            data: AssetTrashed | AssetRestored = AssetTrashed()
        elif asset.status is Status.TRASHED:
            data = AssetRestored()
        else:
            return
        # Dated before its predecessors: time orders nothing.
        made = change(asset, data, occurred_at=events.NOW - timedelta(days=asset.version))
        in_transaction(self.client, lambda session: self._update(made, session))

    def _insert(self, made: Change, session: Any) -> None:
        self.db.assets.insert_one(to_document(made.after), session=session)
        self.db.outbox_events.insert_one(to_row(made.event), session=session)

    def _update(self, made: Change, session: Any) -> None:
        assert made.before is not None
        self.db.assets.update_one(guard(made.before), update(made.before, made.after), session=session)
        self.db.outbox_events.insert_one(to_row(made.event), session=session)

    def _bury(self, name: str) -> None:
        if name in self.relays:
            self.relays[name].die()
            self._forget(name)

    def _forget(self, name: str) -> None:
        self.dead.append(self.relays.pop(name))


@pytest.fixture
def machine_db(mongo_url: str, mongo_db: Db) -> Iterator[tuple[Client, Db]]:
    with connect(mongo_url) as client:
        db = client[mongo_db.name]
        assets = [IndexModel(keys, **options) for keys, options in ASSET_INDEXES]
        ensure_indexes(db, {**Store.indexes(), **ShardLeases.indexes(), "assets": assets})
        ShardLeases(db, instance="set-up", lease_seconds=1).create()
        yield client, db


@pytest.mark.timeout(60 + 10 * RUNS)
def test_exactly_once_in_effect_whatever_happens(
    machine_db: tuple[Client, Db], monkeypatch: pytest.MonkeyPatch
) -> None:
    # One look at the leases and one answer of MongoDB a row or two, so that a sweep has many gaps to get into.
    monkeypatch.setattr("outbox_relay.relay.CHECK_EVERY", 1)
    monkeypatch.setattr("outbox_relay.relay.BATCH", 2)
    run_state_machine_as_test(
        lambda: ExactlyOnce(*machine_db),  # type: ignore[arg-type]  # documented: a class, or a function that makes one
        settings=settings(
            max_examples=RUNS,
            stateful_step_count=STEPS,
            deadline=None,
            # No example database: another run's ids and servers are gone. The seed is in what Hypothesis prints.
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
