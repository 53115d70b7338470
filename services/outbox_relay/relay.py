"""Pick, publish, mark: every row of the outbox reaches Kafka, each asset's in the order of its sequence.

A sweep reads all unpublished rows of the owned shards from one snapshot, in the order (shard, asset, sequence). So each
asset's rows come without a gap and from its first unpublished one on, whatever is committed meanwhile; a snapshot is
majority-committed, so nothing is published that a failover could take back. Sending is pipelined, marking goes on
beside it, and a row is marked only after its acknowledgement: a crash in between repeats an event and never loses one.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import structlog
from pymongo.errors import PyMongoError

from darkroom.outbox import COLLECTION
from darkroom.outbox.records import FIELDS, to_record
from darkroom.runtime.mongo import Client, Db
from outbox_relay.hints import Hints
from outbox_relay.marker import Marker
from outbox_relay.publisher import ProducerFailed, Publisher, Refused
from outbox_relay.shards import Owned, ShardLeases

log = structlog.get_logger()

CHECK_EVERY = 256
"""Rows between two looks at the leases."""
BACKLOG = 500
"""Rows in one sweep from which hints are not worth their cost."""
SWEEP_LIMIT = 100_000
"""Rows in one sweep, so that its snapshot does not grow old."""


@dataclass(frozen=True)
class Pace:
    """Bounds of the relay's loop; see ``Settings`` for their meaning. Times in seconds."""

    poll: float = 1.0
    in_flight: int = 20_000
    stall: float = 60.0
    grace: float = 20.0
    longest_pause: float = 10.0
    max_attempts: int = 5


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
    ) -> None:
        self._client = client
        self._rows = db[COLLECTION]
        self._leases = leases
        self._new_publisher = new_publisher
        self._wake = wake
        self._stop = stop
        self._pace = pace or Pace()
        self._publisher = new_publisher(False)
        self._one_by_one = False
        self._marker = Marker(self._rows)
        self._hints = Hints(self._rows, wake=wake)
        self._first_shard = 0
        self._failures = 0
        self.published = 0
        self.last_progress = time.monotonic()

    def run(self) -> None:
        """Sweep whenever something was appended, and every poll interval all the same."""
        self._marker.start()
        self._hints.start()
        try:
            while not self._stop.is_set():
                self._wake.clear()
                rows = self._sweep_safely()
                self._hints.want(rows < BACKLOG)
                if rows == 0:
                    # Jittered, so that many relays do not all ask at once.
                    self._wake.wait(random.uniform(0.75, 1.25) * self._pace.poll)  # noqa: S311
        finally:
            self._shut_down()

    def sweep(self) -> int:
        """Publish and mark what is unpublished now; gives how many rows were sent.

        Raises:
            ProducerFailed: the producer has to be replaced; rows sent and not acknowledged will be sent again.
            PyMongoError: MongoDB failed; likewise.

        """
        sent = 0
        blocked: set[str] = set()
        for row in self._unpublished():
            if row["asset_id"] in blocked:
                continue
            if "parked_at" in row or not self._send(row):
                # The first event of an asset that cannot be sent stops that asset, and no other.
                blocked.add(row["asset_id"])
                continue
            sent += 1
        self._settle()
        return sent

    def _unpublished(self) -> Iterator[dict[str, Any]]:
        allowed = self._current().shards
        wanted = [shard for shard in sorted(allowed) if shard >= self._first_shard]
        self._first_shard = 0
        if not wanted:
            return
        seen = 0
        with (
            self._client.start_session(snapshot=True) as session,
            self._rows.find({"published": False, "shard": {"$in": wanted}}, FIELDS, session=session, batch_size=2000)
            .sort([("shard", 1), ("asset_id", 1), ("sequence", 1)])
            .hint("unpublished")
            .limit(SWEEP_LIMIT) as cursor,
        ):
            for row in cursor:
                if seen % CHECK_EVERY == 0:
                    # Only ever fewer: a shard that was lost and came back within one sweep would have left a gap.
                    allowed &= self._current().shards
                    self._take_in()
                seen += 1
                if self._stop.is_set():
                    return
                if row["shard"] in allowed:
                    yield row
                if seen == SWEEP_LIMIT:
                    # The shards behind this one come first in the next sweep, or a busy one would starve them.
                    self._first_shard = row["shard"]

    def _current(self) -> Owned:
        owned = self._leases.owned
        # A process that stood still may have been replaced meanwhile; it finds out before it sends more.
        return owned if time.monotonic() < owned.valid_until else Owned(frozenset(), 0.0)

    def _send(self, row: dict[str, Any]) -> bool:
        """Send one row; false if it had to be parked."""
        while True:
            try:
                self._publisher.send(row["_id"], to_record(row))
            except BufferError:
                self._await_progress()
            except Refused as refused:
                self._park(row["_id"], str(refused))
                return False
            else:
                break
        while self._publisher.in_flight + self._marker.waiting >= self._pace.in_flight:
            self._await_progress()
        return True

    def _settle(self) -> None:
        """Wait until everything sent is acknowledged and marked."""
        while self._publisher.in_flight:
            self._await_progress()
        self._take_in(poll=False)
        while not self._marker.wait(1.0):
            if self._stop.is_set():
                return

    def _await_progress(self) -> None:
        before = self._publisher.settled, self._marker.marked
        self._publisher.poll(0.05)
        self._take_in(poll=False)
        if not self._publisher.in_flight:
            self._marker.wait(0.05, below=self._pace.in_flight // 2)
        now = time.monotonic()
        if (self._publisher.settled, self._marker.marked) != before:
            self.last_progress = now
        elif self._publisher.in_flight and now - self.last_progress > self._pace.stall:
            raise ProducerFailed(f"no acknowledgement for {self._pace.stall:g} s")
        elif self._stop.is_set() and now - self.last_progress > self._pace.grace:
            raise ProducerFailed(f"no acknowledgement for {self._pace.grace:g} s while stopping")

    def _take_in(self, *, poll: bool = True) -> None:
        if poll:
            self._publisher.poll(0)
        acked = self._publisher.take_acked()
        self.published += len(acked)
        self._marker.give(acked)

    def _sweep_safely(self) -> int:
        self.last_progress = time.monotonic()
        try:
            rows = self.sweep()
        except ProducerFailed as error:
            log.warning("producer_failed", error=str(error))
            self._replace_publisher()
        except PyMongoError as error:
            log.warning("sweep_failed", error=str(error))
            self._pause()
        else:
            self._failures = 0
            if self._one_by_one and rows:
                self._one_by_one = False
                self._replace_publisher()
            return rows
        return 0

    def _replace_publisher(self) -> None:
        old = self._publisher
        old.abandon()
        self._take_in(poll=False)
        for refusal in old.take_refusals():
            # In a batch the innocent are refused with the guilty, so nobody is blamed before each went alone.
            if self._one_by_one:
                self._blame(refusal.row_id, refusal.reason)
            self._one_by_one = True
        self._pause()
        self._publisher = self._new_publisher(self._one_by_one)
        # Rows acknowledged and not yet marked would be read and sent again.
        self._marker.wait(self._pace.grace)

    def _pause(self) -> None:
        if self._failures:
            self._stop.wait(random.uniform(0, min(self._pace.longest_pause, 0.1 * 2**self._failures)))  # noqa: S311
        self._failures = min(self._failures + 1, 10)

    def _blame(self, row_id: str, reason: str) -> None:
        row = self._rows.find_one_and_update(
            {"_id": row_id, "published": False},
            {"$inc": {"attempts": 1}, "$set": {"last_error": reason}},
            return_document=True,
        )
        if row is not None and row["attempts"] >= self._pace.max_attempts:
            self._park(row_id, reason)

    def _park(self, row_id: str, reason: str) -> None:
        log.error("event_parked", event_id=row_id, reason=reason)
        self._rows.update_one(
            {"_id": row_id, "published": False},
            {"$set": {"last_error": reason}, "$currentDate": {"parked_at": True}},
        )

    def _shut_down(self) -> None:
        self._hints.stop()
        if self._publisher.in_flight:
            self._publisher.abandon()
        self._take_in(poll=False)
        self._marker.wait(self._pace.grace)
        self._marker.stop()
