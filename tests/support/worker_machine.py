"""Workers as steps: one partition consumed through the real schedule, inbox and store, with a model beside it.

The model is the contract in a dozen lines: who may write. Whatever the real inbox answers is compared with it.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from darkroom.assets import Asset, Change, Status, change, fold
from darkroom.contracts.envelope import Event
from darkroom.contracts.events import EventData
from darkroom.inbox import Claimed, Done, HeldElsewhere, Inbox, Lease, LeaseLost
from darkroom.inbox.schedule import Item, Schedule
from darkroom.outbox import from_row
from darkroom.runtime.mongo import Client, Db
from processor.store import Conflict, Store
from support import events
from support.invariants import Announced

CONSUMER = "machine"
LEASE_SECONDS = 3600.0
PARTITION = ("uploads", 0)


@dataclass
class Row:
    """What the inbox must know of one event."""

    owner: str | None = None
    fence: int = 0
    attempts: int = 0
    run_out: bool = False
    backing_off: bool = False
    done: bool = False

    def expect(self, owner: str) -> type[Claimed | HeldElsewhere | Done]:
        """What a claim must answer; the model moves on with it."""
        if self.done:
            return Done
        if self.owner == owner:
            self.run_out = False
            return Claimed
        if self.backing_off or (self.owner is not None and not self.run_out):
            return HeldElsewhere
        self.owner, self.run_out = owner, False
        self.fence += 1
        self.attempts += 1
        return Claimed

    def may_write(self, lease: Lease) -> bool:
        """I7: only the last who claimed it, and only before its end."""
        return not self.done and (self.owner, self.fence) == (lease.owner, lease.fence)


@dataclass(eq=False)
class Record:
    """One record of ``assets.uploaded`` as one process holds it; ``owner`` stays over its hand-overs."""

    event: Event
    owner: str


@dataclass(eq=False)
class Hand:
    """One attempt: a thread that has claimed an event and goes on whenever the machine says so, however late.

    ``settled``: the schedule does not wait for it any more.
    """

    host: str
    record: Record
    lease: Lease
    item: Item[Record]
    schedule: Schedule[Record]
    asset: Asset | None = None
    settled: bool = False


@dataclass
class Workers:
    """The topic, its one partition's consumer, and every attempt that was ever begun."""

    client: Client
    db: Db
    skews: dict[str, float]
    topic: list[Announced] = field(default_factory=list)
    announced: list[Event] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)
    committed: int = 0
    host: str = "A"
    lives: int = 0

    def __post_init__(self) -> None:
        self.inbox = Inbox(self.db, consumer=CONSUMER, lease_seconds=LEASE_SECONDS)
        self.store = Store(self.client, self.db, self.inbox)
        self.schedule: Schedule[Record] = Schedule()
        self.schedule.assign([PARTITION])

    def publish(self, event: Event) -> None:
        """The bridge publishes AssetUploaded."""
        self.topic.append(Announced(event.id, event.asset_id))
        self.announced.append(event)
        self.rows.setdefault(event.id, Row())
        self._take_in(len(self.topic) - 1)

    def rebalance(self, host: str, *, crash: bool) -> None:
        """The partition moves to ``host``, which begins at the committed offset."""
        if not crash:
            self.commit()
        self.schedule.drop([PARTITION])
        self.host, self.lives = host, self.lives + 1
        self.schedule = Schedule()
        self.schedule.assign([PARTITION])
        for offset in range(self.committed, len(self.topic)):
            self._take_in(offset)

    def commit(self) -> None:
        """What the schedule offers is committed."""
        offsets = self.schedule.commits()
        self.schedule.committed(offsets)
        self.committed = max(self.committed, *offsets.values(), 0)

    def take(self, how: str = "claim") -> Hand | None:
        """The next record, if one is free, is claimed; gives the attempt if that succeeds.

        An asset that waits is begun in the same transaction if ``how`` is "begin"; if it is "begin stale", one that
        only seems to wait, by what was read when it was registered.
        """
        item = self.schedule.take(math.inf)
        return None if item is None else self._begin(item, how)

    def take_again(self, record: Record) -> Hand | None:
        """This very record is handed over anew, ahead of others; None if it is not waiting here, or not claimed."""
        for _ in range(len(self.topic) + 1):
            if (item := self.schedule.take(math.inf)) is None:
                return None
            if item.record is record:
                return self._begin(item)
            self.schedule.defer(item, 0.0)
        return None

    def read(self, hand: Hand) -> None:
        """Look at the asset; it may be long out of date when it is used."""
        hand.asset = self.store.find(hand.record.event.asset_id)

    def begin(self, hand: Hand) -> None:
        """Start processing, if the asset, as it was read, waits for that."""
        if hand.asset is None or hand.asset.status is not Status.UPLOADING:
            return
        data = events.processing(hand.record.event.id)
        if self._write(hand, lambda: self.store.start(self._change(hand, data), hand.lease)):
            self.read(hand)

    def end(self, hand: Hand, how: str) -> None:
        """The work came to an end: the asset is ready, failed or given up, if it is this upload's at all."""
        asset = hand.asset
        if asset is None or asset.status is Status.UPLOADING:
            return
        lease, event_id = hand.lease, hand.record.event.id
        if asset.status is not Status.PROCESSING or asset.upload is None or asset.upload.event_id != event_id:
            done = self._write(hand, lambda: self.inbox.complete(lease, outcome="ignored"), stale=False)
        elif how == "dead":
            done = self._write(
                hand, lambda: self.store.give_up(self._change(hand, events.failed()), lease, outcome="dead")
            )
        else:
            data = events.ready(asset) if how == "ready" else events.failed()
            done = self._write(hand, lambda: self.store.finish(self._change(hand, data), lease, outcome=how))
        if done:
            self.rows[event_id].done = True
            self._settle(hand, finished=True)

    def give_back(self, hand: Hand, *, delay: float, refund: bool) -> None:
        """A retryable failure, or work that was called off."""
        row = self.rows[hand.record.event.id]
        if self._write(hand, lambda: self.inbox.release(hand.lease, delay=delay, refund=refund), stale=False):
            row.owner, row.run_out, row.backing_off = None, False, delay > 0
            row.attempts -= refund
            self._settle(hand, finished=False)

    def renew(self, hand: Hand) -> None:
        """The keeper renews."""
        if self._write(hand, lambda: self.inbox.renew(hand.lease), stale=False):
            self.rows[hand.record.event.id].run_out = False

    def leave_behind(self, hand: Hand) -> None:
        """The record is handed over anew in this process, and the thread goes on all the same."""
        self._settle(hand, finished=False)

    def run_out(self, event_id: str) -> None:
        """The event's lease and back-off end on the server, without waiting."""
        past = {"$subtract": ["$$NOW", 1]}
        row = self.rows[event_id]
        where = {"consumer": CONSUMER, "event_id": event_id}
        if not row.done and row.owner is not None:
            self.db.consumer_inbox.update_one(where, [{"$set": {"lease_until": past}}])
            row.run_out = True
        if row.backing_off:
            self.db.consumer_inbox.update_one(where, [{"$set": {"not_before": past}}])
            row.backing_off = False

    def catch_up(self) -> None:
        """All faults are over: a fresh worker brings every record to its end."""
        self.rebalance("A", crash=True)
        for _ in range(3 * len(self.topic) + 1):
            for event_id in self.rows:
                self.run_out(event_id)
            if (hand := self.take()) is not None:
                self.read(hand)
                self.begin(hand)
                self.end(hand, "ready")
            self.commit()
            if self.committed == len(self.topic):
                return
        raise AssertionError("a record never came to its end")

    def _take_in(self, offset: int) -> None:
        record = Record(self.announced[offset], f"{self.host} {self.lives} {offset}")
        self.schedule.add(Item(PARTITION, offset, record.event.asset_id, record))

    def _begin(self, item: Item[Record], how: str = "claim") -> Hand | None:
        begun = None if how == "claim" else self._begun(item.record, stale=how == "begin stale")
        try:
            claim = self._claim(item.record, self.host, begun)
        except Conflict:
            assert begun is not None
            assert self.store.find(begun.after.id) != begun.before, "refused, though nothing had changed"
            self.schedule.defer(item, 0.0)
            return None
        match claim:
            case Claimed(lease):
                asset = None if begun is None else begun.after
                return Hand(self.host, item.record, lease, item, self.schedule, asset)
            case Done():
                self.schedule.finish(item)
            case HeldElsewhere():
                self.schedule.defer(item, 0.0)
        return None

    def _begun(self, record: Record, *, stale: bool) -> Change | None:
        stream = self.db.outbox_events.find({"asset_id": record.event.asset_id}).sort("sequence", 1)
        first = fold([from_row(row) for row in stream.limit(1)])
        asset = first if stale else self.store.find(first.id)
        assert asset is not None
        if asset.status is not Status.UPLOADING:
            return None
        return self._change_of(asset, record, self.host, events.processing(record.event.id))

    def _claim(self, record: Record, host: str, begun: Change | None) -> Claimed | HeldElsewhere | Done:
        row = self.rows[record.event.id]
        with self._clock_of(host):
            if begun is None:
                claim = self.inbox.claim(record.event.id, owner=record.owner)
            else:
                claim = self.store.begin(begun, record.event.id, owner=record.owner)
        assert type(claim) is row.expect(record.owner), f"{claim}, though {row}"
        if isinstance(claim, Claimed):
            assert (claim.lease.fence, claim.lease.attempts) == (row.fence, row.attempts)
        return claim

    def _write(self, hand: Hand, write: Any, *, stale: bool = True) -> bool:
        """Write under the hand's lease; true if it was allowed, which must be exactly when the model allows it.

        ``stale``: the asset is written too, so that one that moved on since it was read must stop the write.
        """
        allowed = self.rows[hand.record.event.id].may_write(hand.lease)
        try:
            with self._clock_of(hand.host):
                write()
        except LeaseLost:
            assert not allowed, "I7: the holder of the lease was refused"
            self._settle(hand, finished=False)
            return False
        except Conflict:
            assert allowed, "I7: a worker without the lease came as far as the asset"
            assert stale
            assert self.store.find(hand.record.event.asset_id) != hand.asset, "refused, though nothing had changed"
            self.read(hand)
            return False
        assert allowed, "I7: a worker without the lease has written"
        return True

    def _settle(self, hand: Hand, *, finished: bool) -> None:
        if hand.settled:
            return
        hand.settled = True
        if finished:
            hand.schedule.finish(hand.item)
        else:
            hand.schedule.defer(hand.item, 0.0)

    def _change(self, hand: Hand, data: EventData) -> Change:
        assert hand.asset is not None
        return self._change_of(hand.asset, hand.record, hand.host, data)

    def _change_of(self, asset: Asset, record: Record, host: str, data: EventData) -> Change:
        # The host's clock dates the event, so events may be dated before their predecessors.
        occurred_at = events.NOW + timedelta(seconds=self.skews[host])
        return change(asset, data, occurred_at=occurred_at, causation_id=record.event.id)

    @contextmanager
    def _clock_of(self, host: str) -> Iterator[None]:
        real = time.time
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time", lambda: real() + self.skews[host])
            yield
