"""Pick, publish, mark: every row of the outbox reaches Kafka, each asset's in the order of its sequence.

A sweep reads all unpublished rows of the owned shards from one snapshot, in the order (shard, asset, sequence). So each
asset's rows come without a gap and from its first unpublished one on, whatever is committed meanwhile; a snapshot is
majority-committed, so nothing is published that a failover could take back. Sending is pipelined, marking goes on
beside it, and a row is marked only after its acknowledgement: a crash in between repeats an event and never loses one.
"""

import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
from bson.codec_options import CodecOptions
from pymongo.client_session import ClientSession
from pymongo.cursor import Cursor
from pymongo.errors import PyMongoError

from darkroom.outbox import COLLECTION
from darkroom.outbox.records import FIELDS, UnsendableRow
from darkroom.runtime.mongo import Client, Db
from outbox_relay.hints import Hints
from outbox_relay.marker import Marker
from outbox_relay.parts import Part, Place
from outbox_relay.publisher import ProducerFailed, Publisher, Refusal, Refused
from outbox_relay.shards import Owned, ShardLeases
from outbox_relay.spans import PublishSpans, ids_of

log = structlog.get_logger()

CHECK_EVERY = 256
"""Rows between two looks at the leases."""
BACKLOG = 500
"""Rows in one sweep from which hints are not worth their cost."""
BATCH = 2000
"""Rows asked of MongoDB at a time."""
LEFT_OUT = 1000
"""Blocked assets that a query names at most; what it does not name is read and passed over."""
PASSED = 200
"""Rows of a blocked asset from which it is cheaper to ask anew, behind it."""
SAMPLED = 32
"""Of so many rows the latency of one is told, and of the first of each sweep."""
SETTLE_SECONDS = 2.0
"""For a producer that is given up to say what it knows."""


@dataclass(frozen=True)
class Pace:
    """Bounds of the relay's loop; see ``Settings`` for their meaning. Times in seconds."""

    poll: float = 1.0
    in_flight: int = 20_000
    stall: float = 60.0
    grace: float = 20.0
    longest_pause: float = 10.0
    max_attempts: int = 5
    sweep_limit: int = 100_000
    """Rows in one sweep, so that its snapshot does not grow old."""


class Observer:
    """Told what the relay does, a batch at a time; does nothing by itself. Methods must be quick and not raise."""

    def acknowledged(self, count: int, latencies: Iterable[float]) -> None:
        """Kafka has so many more events; ``latencies`` are the ages of a few of them, in seconds."""

    def parked(self) -> None:
        """A row was set aside."""

    def producer_given_up(self) -> None:
        """A producer failed; the next sweep makes another."""

    def sweep_failed(self, server: str) -> None:
        """A sweep failed by the fault of "kafka" or "mongodb"."""


class Relay:
    """Publishes the outbox until told to stop. ``new_publisher(one_by_one)`` makes a producer."""

    def __init__(
        self,
        *,
        client: Client,
        db: Db,
        leases: ShardLeases,
        new_publisher: Callable[[bool], Publisher],
        wake: threading.Event,
        stop: threading.Event,
        pace: Pace | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._observer = observer or Observer()
        self._client = client
        # Moments are only written out again, and making them aware would cost as much as the rest of a row's headers.
        self._rows = db.get_collection(COLLECTION, codec_options=CodecOptions(tz_aware=False))
        self._leases = leases
        self._new_publisher = new_publisher
        self._wake = wake
        self._stop = stop
        self._pace = pace or Pace()
        self._publisher: Publisher | None = None
        self._one_by_one = False
        self._marker = Marker(self._rows)
        self._hints = Hints(self._rows, wake=wake)
        self._spans = PublishSpans()
        self._start_at: Place | None = None
        self._resting: dict[str, float] = {}
        # Looked at again with every poll, and not whenever something else is appended.
        self._parked: dict[str, float] = {}
        self._failures = 0
        self._stop_by = math.inf
        self._last_progress = time.monotonic()
        self._silent_since: float | None = None
        self._sampled: dict[str, datetime] = {}
        self.published = 0

    @property
    def in_flight(self) -> int:
        """Rows sent and not acknowledged."""
        publisher = self._publisher
        return 0 if publisher is None else publisher.in_flight

    @property
    def unmarked(self) -> int:
        """Rows acknowledged and not yet marked."""
        return self._marker.waiting

    def kafka_silent(self) -> float:
        """For how many seconds Kafka has acknowledged nothing although something was for it; 0 while all is well."""
        since = self._silent_since
        if since is None and self.in_flight:
            since = self._last_progress
        return 0.0 if since is None else time.monotonic() - since

    def run(self) -> None:
        """Sweep whenever something was appended, and every poll interval all the same."""
        threading.Thread(target=self._wake_on_stop, name="wake-on-stop", daemon=True).start()
        self._marker.start()
        self._hints.start()
        try:
            while not self._stop.is_set():
                self._wake.clear()
                rows = self._sweep_safely()
                if rows is None:
                    self._pause()
                    continue
                self._failures = 0
                self._hints.want(rows < BACKLOG)
                if rows == 0 and self._start_at is None:
                    # Jittered, so that many relays do not all ask at once.
                    self._wake.wait(random.uniform(0.75, 1.25) * self._pace.poll)  # noqa: S311 -- spreads load
        finally:
            self._shut_down()

    def sweep(self) -> int:
        """Publish and mark what is unpublished now; gives how many rows were sent.

        Raises:
            ProducerFailed: the producer has to be replaced; rows sent and not acknowledged will be sent again.
            PyMongoError: MongoDB failed; likewise.

        """
        publisher = self._publisher = self._publisher or self._new_publisher(self._one_by_one)
        # What a broken-off sweep left under way would be read, and sent, a second time.
        self._settle(publisher)
        publisher.refresh()
        sent = 0
        blocked = self._still_resting()
        for row in self._unpublished(publisher, blocked):
            asset_id = row["asset_id"]
            if asset_id in blocked:
                continue
            if "parked_at" in row or not self._send(publisher, row, sampled=sent % SAMPLED == 0):
                # The first event of an asset that cannot be sent stops that asset, and no other.
                self._parked[asset_id] = time.monotonic() + self._pace.poll / 2
                blocked.add(asset_id)
                continue
            sent += 1
        self._settle(publisher)
        return sent

    def _unpublished(self, publisher: Publisher, blocked: set[str]) -> Iterator[dict[str, Any]]:
        """The rows of this sweep; those of ``blocked`` assets, which grows meanwhile, are passed over where it pays."""
        allowed = self._current().shards
        parts = self._parts(allowed)
        left_out = sorted(blocked)[:LEFT_OUT]
        limit = self._pace.sweep_limit
        sent_before = publisher.sent
        seen = 0
        with self._client.start_session(snapshot=True) as session:
            while parts:
                part = parts.pop()
                passed = 0
                with self._find(part, left_out, session, limit - seen) as cursor:
                    for row in cursor:
                        if seen % CHECK_EVERY == 0:
                            # Only ever fewer: a shard that was lost and regained within one sweep has left a gap.
                            allowed &= self._current().shards
                            publisher.poll(0)
                            self._take_in(publisher)
                            if publisher.sent - sent_before >= BACKLOG:
                                # Nobody waits to be woken, and the stream would be read for nothing.
                                self._hints.want(False)
                            if self._stop.is_set():
                                return
                        seen += 1
                        if row["shard"] in allowed:
                            yield row
                        passed = passed + 1 if row["asset_id"] in blocked else 0
                        if seen == limit:
                            # The rest comes next, or busy and blocked assets would starve those behind them.
                            self._start_at = Place(row["shard"], row["asset_id"], behind=passed > 0)
                            return
                        if passed == PASSED:
                            # However many rows wait behind one that cannot be sent, few of them are read.
                            parts += part.behind(row["shard"], row["asset_id"])
                            break

    def _find(self, part: Part, left_out: list[str], session: ClientSession, limit: int) -> Cursor[dict[str, Any]]:
        return (
            self._rows.find(part.query(left_out), FIELDS, session=session, batch_size=BATCH)
            .sort([("shard", 1), ("asset_id", 1), ("sequence", 1)])
            .hint("unpublished")
            .limit(limit)
        )

    def _parts(self, allowed: frozenset[int]) -> list[Part]:
        """What to read of these shards, last part first: from where the last sweep ended, or all of it."""
        start, self._start_at = self._start_at, None
        whole = Part(tuple(sorted(allowed)))
        if start is None:
            return [whole] if allowed else []
        return whole.behind(start.shard, start.asset_id, itself=not start.behind)

    def _current(self) -> Owned:
        # A process that stood still may have been replaced meanwhile; it finds out before it sends more.
        return self._leases.current()

    def _still_resting(self) -> set[str]:
        now = time.monotonic()
        self._resting = {asset_id: until for asset_id, until in self._resting.items() if until > now}
        self._parked = {asset_id: until for asset_id, until in self._parked.items() if until > now}
        return self._resting.keys() | self._parked.keys()

    def _send(self, publisher: Publisher, row: dict[str, Any], *, sampled: bool) -> bool:
        """Send one row; false if it had to be parked. ``sampled``: tell how long it took."""
        try:
            record = self._spans.record(row)
            while True:
                try:
                    publisher.send(row["_id"], record)
                    break
                except BufferError:
                    self._await_progress(publisher)
        except (Refused, UnsendableRow) as error:
            self._spans.failed(row["_id"], str(error))
            self._park(row["_id"], str(error), **ids_of(row))
            return False
        if sampled:
            # Before anything is waited for: its acknowledgement may be among the next that are taken in.
            self._sampled[row["_id"]] = row["occurred_at"]
        while publisher.in_flight + self._marker.waiting >= self._pace.in_flight:
            self._await_progress(publisher)
        return True

    def _settle(self, publisher: Publisher) -> None:
        """Wait until everything sent is acknowledged and marked."""
        while publisher.in_flight:
            self._await_progress(publisher)
        self._take_in(publisher)
        while not self._marker.wait(1.0):
            if self._stop.is_set():
                return

    def _await_progress(self, publisher: Publisher) -> None:
        before = publisher.settled, self._marker.marked
        publisher.poll(0.05)
        self._take_in(publisher)
        if not publisher.in_flight:
            self._marker.wait(0.05, below=max(1, self._pace.in_flight // 2))
        now = time.monotonic()
        if self._stop.is_set():
            self._stop_by = min(self._stop_by, now + self._pace.grace)
        if now > self._stop_by:
            raise ProducerFailed(f"not everything was acknowledged {self._pace.grace:g} s after the stop")
        if (publisher.settled, self._marker.marked) != before:
            self._last_progress = now
        elif publisher.in_flight and now - self._last_progress > self._pace.stall:
            raise ProducerFailed(f"no acknowledgement for {self._pace.stall:g} s")

    def _take_in(self, publisher: Publisher) -> None:
        acked = publisher.take_acked()
        if not acked:
            return
        self.published += len(acked)
        self._spans.acknowledged(acked)
        self._silent_since = None
        self._marker.give(acked)
        now = datetime.now(UTC).replace(tzinfo=None)
        ages = [now - self._sampled.pop(row_id) for row_id in self._sampled.keys() & acked]
        self._observer.acknowledged(len(acked), [max(0.0, age.total_seconds()) for age in ages])

    def _sweep_safely(self) -> int | None:
        """Sweep; None if it failed."""
        self._last_progress = time.monotonic()
        try:
            rows = self.sweep()
        except ProducerFailed as error:
            log.warning("producer_failed", error=str(error))
            if self._silent_since is None:
                self._silent_since = self._last_progress
            self._observer.sweep_failed("kafka")
            self._give_up_publisher()
        except PyMongoError as error:
            log.warning("sweep_failed", error=str(error))
            self._observer.sweep_failed("mongodb")
        else:
            self._silent_since = None
            if self._one_by_one and not self._resting:
                self._one_by_one = False
                self._publisher = None
            return rows
        return None

    def _give_up_publisher(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is None:
            return
        self._observer.producer_given_up()
        publisher.abandon(SETTLE_SECONDS)
        self._take_in(publisher)
        self._spans.all_failed("the producer was given up; it will be sent again")
        self._sampled.clear()
        if refusals := publisher.take_refusals():
            # In a batch the innocent are refused with the guilty, so nobody is blamed before each went alone.
            if self._one_by_one:
                self._blame(refusals[0])
            self._one_by_one = True

    def _pause(self) -> None:
        if self._failures:
            self._stop.wait(random.uniform(0.5, 1.0) * min(self._pace.longest_pause, 0.1 * 2**self._failures))  # noqa: S311 -- spreads load
        self._failures = min(self._failures + 1, 10)

    def _blame(self, refusal: Refusal) -> None:
        try:
            row = self._rows.find_one_and_update(
                {"_id": refusal.row_id, "published": False},
                {"$inc": {"attempts": 1}, "$set": {"last_error": refusal.reason}},
                return_document=True,
            )
            if row is None:
                return
            if row["attempts"] >= self._pace.max_attempts:
                self._park(refusal.row_id, refusal.reason, **ids_of(row))
                return
        except PyMongoError as error:
            # It will be refused, and blamed, again.
            log.warning("refusal_not_recorded", event_id=refusal.row_id, error=str(error))
            return
        # The others need not wait for it; and the refusal is no failure of the producer's.
        self._failures = 0
        rest = min(self._pace.longest_pause, 0.1 * 2 ** row["attempts"])
        self._resting[row["asset_id"]] = time.monotonic() + rest

    def _park(self, row_id: str, reason: str, **ids: str) -> None:
        log.error("event_parked", event_id=row_id, reason=reason, **ids)
        self._observer.parked()
        self._rows.update_one(
            {"_id": row_id, "published": False},
            {"$set": {"last_error": reason}, "$currentDate": {"parked_at": True}},
        )

    def _wake_on_stop(self) -> None:
        self._stop.wait()
        self._wake.set()

    def _shut_down(self) -> None:
        stop_by = min(self._stop_by, time.monotonic() + self._pace.grace)
        self._hints.stop()
        if self._publisher is not None:
            if self._publisher.in_flight:
                self._publisher.abandon(SETTLE_SECONDS)
            self._take_in(self._publisher)
            self._spans.all_failed("the relay ended; it will be sent again")
        self._marker.wait(max(0.1, stop_by - time.monotonic()))
        self._marker.stop()
