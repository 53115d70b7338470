"""Workers and relays in any order, crashing, standing still, overtaken and repeated: I2 to I7 hold all the same.

Everything but the topic in memory is real. Nothing sleeps: leases run out because the data says so. By default as many
runs as take about half a minute; DARKROOM_MACHINE_RUNS asks for another number.
"""

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
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
SHRINK = os.environ.get("DARKROOM_MACHINE_SHRINK", "yes") == "yes"
"""Whether a failing run is made as short as possible, which takes minutes."""
ANY_HOST = st.sampled_from("ABC")
NEWEST = st.integers(0, 3)
"""Which attempt, from the newest; those before them stand still for ever, as crashed ones do."""
ENDS = st.sampled_from(("ready", "failed", "dead"))
ANY_RELAY = st.sampled_from(("first", "second"))
POINTS = st.tuples(st.sampled_from(("send", "write", "ack", "take")), st.integers(1, 3))
MEANWHILE = st.sampled_from(("crash", "fail", "append", "lose", "blink", "regain", "refresh", "other"))
FAULTS = st.dictionaries(POINTS, MEANWHILE, min_size=1, max_size=4)


class ExactlyOnce(RuleBasedStateMachine):
    """One installation: assets, a partition of uploads and who consumes it, an outbox and who publishes it."""

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
        self.hands: list[Hand] = []

    @initialize(target=uploads, skews=st.tuples(*[st.sampled_from((0.0, 18_000.0, -18_000.0))] * 3))
    def set_up(self, skews: tuple[float, float, float]) -> Any:
        """Two assets, announced and being worked on, so that something happens from the first step on."""
        self.workers = Workers(self.client, self.db, dict(zip("ABC", skews, strict=True)))
        self.relays["first"] = SteppedRelay(self.client, self.db, self.log)
        announced = [self.upload(self.register(), "1") for _ in range(2)]
        self.take("claim")
        self.take("claim")
        return multiple(*announced)

    @rule(target=assets)
    def register(self) -> Asset:
        """The API registers an asset."""
        made = events.registered()
        in_transaction(self.client, lambda session: self._insert(made, session))
        self.known.append(made.after.id)
        return made.after

    @rule(target=uploads, asset=assets, version=st.sampled_from("12"))
    def upload(self, asset: Asset, version: str) -> Event:
        """The bridge announces an original, perhaps once more; another version of it is another event."""
        event = events.uploaded(asset, version_id=version)
        self.workers.publish(event)
        return event

    @rule(event=uploads)
    def announce_again(self, event: Event) -> None:
        """A duplicate, at any time later and in any order."""
        self.workers.publish(event)

    @rule(how=st.sampled_from(("claim", "begin", "begin stale")))
    def take(self, how: str) -> None:
        """The consumer hands the next record to a worker, which claims it."""
        if (hand := self.workers.take(how)) is not None:
            self.hands.append(hand)

    @precondition(lambda self: self.hands)
    @rule(which=NEWEST, what=st.sampled_from(("read", "begin", "renew", "leave_behind")))
    def go_on(self, which: int, what: str) -> None:
        """A worker does its next step, whether it is still the holder or not."""
        step: Callable[[Hand], None] = getattr(self.workers, what)
        step(self._hand(which))

    @precondition(lambda self: self.hands)
    @rule(which=NEWEST, how=ENDS)
    def end(self, which: int, how: str) -> None:
        """It writes its end, by what it once read."""
        self.workers.end(self._hand(which), how)

    @precondition(lambda self: self.hands)
    @rule(which=NEWEST, how=ENDS)
    def work_to_the_end(self, which: int, how: str) -> None:
        """What a worker does when nothing comes between."""
        hand = self._hand(which)
        self.workers.read(hand)
        self.workers.begin(hand)
        self.workers.end(hand, how)

    @precondition(lambda self: self.hands)
    @rule(which=NEWEST, delay=st.sampled_from((0.0, 3600.0)), refund=st.booleans())
    def give_back(self, which: int, delay: float, refund: bool) -> None:
        """A retryable failure, or work that was called off."""
        self.workers.give_back(self._hand(which), delay=delay, refund=refund)

    @precondition(lambda self: self.hands)
    @rule(which=NEWEST, host=ANY_HOST)
    def stall_and_be_overtaken(self, which: int, host: str) -> None:
        """Its lease runs out while it stands still and the partition moves; it may wake up at any time later."""
        self.workers.run_out(self._hand(which).record.event.id)
        self.workers.rebalance(host, crash=True)
        self.take("claim")

    @precondition(lambda self: self.hands)
    @rule(which=NEWEST, what=st.sampled_from(("renew", "begin", "end")))
    def wake_up_behind_its_own_successor(self, which: int, what: str) -> None:
        """A thread stands still while its process is handed the record anew, gives it back and claims it once more.

        The owner is the same then, and only the fence tells the late thread from its successor.
        """
        late = self._hand(which)
        self.workers.leave_behind(late)
        if (again := self.workers.take_again(late.record)) is None:
            return
        self.workers.give_back(again, delay=0.0, refund=False)
        if (successor := self.workers.take_again(late.record)) is not None:
            self.hands.append(successor)
        if what == "end":
            self.workers.read(late)
            self.workers.end(late, "ready")
        else:
            step: Callable[[Hand], None] = getattr(self.workers, what)
            step(late)

    @rule(event=uploads)
    def lease_runs_out(self, event: Event) -> None:
        """Its holder, if any, stood still for too long; or its back-off is over."""
        self.workers.run_out(event.id)

    @rule(host=ANY_HOST, how=st.sampled_from(("commit", "move", "crash")))
    def partition(self, host: str, how: str) -> None:
        """Offsets are committed; and perhaps the partition moves, or its process dies before it could commit."""
        if how == "commit":
            self.workers.commit()
        else:
            self.workers.rebalance(host, crash=how == "crash")

    @rule(asset=assets)
    def trash_or_restore(self, asset: Asset) -> None:
        """The owner makes more events."""
        self._append(asset.id)

    @rule(name=ANY_RELAY, what=st.sampled_from(("start", "start", "die", "stall", "refresh", "dead ones' leases end")))
    def relay(self, name: str, what: str) -> None:
        """Relays come and go. One that stalls past its leases does not know that another may take its shards."""
        relay = self.relays.get(name)
        if what == "dead ones' leases end":
            for dead in self.dead:
                dead.run_out()
        elif relay is None:
            if what == "start":
                self.relays[name] = SteppedRelay(self.client, self.db, self.log)
        elif what == "die":
            self._bury(name)
        elif what == "stall":
            relay.run_out()
        else:
            relay.leases.refresh()

    @rule(name=ANY_RELAY, faults=FAULTS)
    def sweep(self, name: str, faults: dict[Point, str]) -> None:
        """A relay sweeps, and at some points something happens to it or beside it."""
        relay = self.relays.get(name)
        if relay is not None:
            hooks = {point: self._meanwhile(name, relay, what) for point, what in faults.items()}
            if not relay.sweep(hooks):
                self._forget(name)

    @rule(name=ANY_RELAY, at=st.integers(1, 4))
    def blink(self, name: str, at: int) -> None:
        """Assets with several events to send; amid them a relay's shards are lost and come back."""
        self._several_events()
        if (relay := self.relays.get(name)) is not None:
            relay.sweep({("send", at): relay.blink})

    @rule(name=ANY_RELAY, which=st.integers(0, 3))
    def an_event_is_refused_until_it_is_parked(self, name: str, which: int) -> None:
        """No broker takes an event that others follow, and a relay sweeps in peace until it gives the event up."""
        self._several_events()
        there = {record.event_id for record in self.log.records}
        rows = list(self.db.outbox_events.find({"published": False}).sort([("asset_id", 1), ("sequence", 1)]))
        followed = [row["_id"] for row, next_ in pairwise(rows) if row["asset_id"] == next_["asset_id"]]
        if candidates := [row_id for row_id in followed if row_id not in there]:
            self.log.refused.add(candidates[which % len(candidates)])
        if (relay := self.relays.get(name)) is not None:
            # In a batch, where nobody is blamed; alone, as often as it is tried; and once more.
            for _ in range(4):
                relay.sweep({})

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

    def _hand(self, which: int) -> Hand:
        return self.hands[-1 - which % len(self.hands)]

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
            "blink": relay.blink,
            "regain": relay.regain_shards,
            "refresh": relay.regain_shards,
        }[what]

    def _several_events(self) -> None:
        """Some hand's work comes to its end, and owners trash and restore what is done."""
        if self.hands:
            self.work_to_the_end(0, "ready")
        for asset_id in self.known[:2] * 2:
            self._append(asset_id)

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
            # Neither replayed from a database nor explained line by line, which takes longer than the search.
            phases=(Phase.generate, Phase.shrink) if SHRINK else (Phase.generate,),
            # No example database: another run's ids and servers are gone. The seed is in what Hypothesis prints.
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
