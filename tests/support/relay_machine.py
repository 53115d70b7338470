"""Relays as steps: real sweeps and real shard leases over a topic in memory, with faults at named points."""

import math
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from darkroom.outbox import COLLECTION
from darkroom.runtime.mongo import Client, Db
from outbox_relay import shards
from outbox_relay.publisher import Publisher
from outbox_relay.relay import Pace, Relay
from outbox_relay.shards import Owned, ShardLeases
from support.memory_log import Crash, MemoryLog, MemoryPublisher

LEASE_SECONDS = 3600.0
"""Nothing runs out by itself; tests let leases run out in the data."""
NONE = Owned(frozenset(), math.inf)
Point = tuple[str, int]
"""A publisher's point and how many times it was there in this sweep, from 1."""


class SteppedRelay:
    """One relay's process, whose sweeps are made one by one."""

    def __init__(self, client: Client, db: Db, log: MemoryLog, *, longest_pause: float = 0.0) -> None:
        self.instance = uuid.uuid4().hex
        self.leases = ShardLeases(db, instance=self.instance, lease_seconds=LEASE_SECONDS)
        self.leases.refresh()
        self._shards = db[shards.COLLECTION]
        self._members = db[shards.MEMBERS]
        self._rows = db[COLLECTION]
        self._log = log
        self._hooks: Mapping[Point, Callable[[], None]] = {}
        self._visits: Counter[str] = Counter()
        self._publishers: list[MemoryPublisher] = []
        self._relay = Relay(
            client=client,
            db=db,
            leases=self.leases,
            new_publisher=self._new_publisher,
            wake=threading.Event(),
            stop=threading.Event(),
            # Few in flight, so that waiting, marking and sending take turns; a refused row may be sent again at once.
            pace=Pace(in_flight=4, longest_pause=longest_pause, max_attempts=2),
        )
        self._relay._marker.start()
        self.sweeping = False
        self._regain_soon = False

    def sweep(self, hooks: Mapping[Point, Callable[[], None]]) -> bool:
        """Sweep once, with ``hooks`` run at their points; false if the process died of it."""
        self._hooks, self.sweeping = hooks, True
        self._visits.clear()
        try:
            self._relay._sweep_safely()
        except Crash:
            self.die()
            return False
        finally:
            self._hooks, self.sweeping, self._regain_soon = {}, False, False
        return True

    def fail_producer(self) -> None:
        """The producer that is in use fails."""
        self._publishers[-1].fail()

    def blink(self) -> None:
        """The keeper finds that every shard is lost, and a moment later that they are ours again."""
        self.lose_shards()
        self._regain_soon = True

    def lose_shards(self) -> None:
        """The keeper finds that every shard is lost."""
        self.leases.owned = NONE

    def regain_shards(self) -> None:
        """The keeper finds shards to be ours."""
        self.leases.refresh()

    @property
    def resting(self) -> set[str]:
        """The assets that the next sweeps leave out for a while."""
        return set(self._relay._resting)

    def run_out(self) -> None:
        """Its leases run out on the server, as if it had stood still; it does not know."""
        past = [{"$set": {"lease_until": {"$subtract": ["$$NOW", 1]}}}]
        self._shards.update_many({"owner": self.instance}, past)
        self._members.update_many({"_id": self.instance}, [{"$set": {"alive_until": {"$subtract": ["$$NOW", 1]}}}])

    def die(self) -> None:
        """The process is gone; what is on the wire is not."""
        for publisher in self._publishers:
            publisher.lose_connection()
        self._relay._marker.stop()

    def _new_publisher(self, _one_by_one: bool) -> Publisher:
        self._publishers.append(MemoryPublisher(self._log, visit=self._visit))
        return self._publishers[-1]

    def _visit(self, point: str) -> None:
        self._visits[point] += 1
        if self._regain_soon and point != "send":
            # Between two looks at the leases: the first found them lost, the next will find them.
            self._regain_soon = False
            self.regain_shards()
        if hook := self._hooks.get((point, self._visits[point])):
            hook()


def unpark(db: Db, log: MemoryLog) -> None:
    """What was refused is taken now, and an operator lets parked events go."""
    log.refused.clear()
    db[COLLECTION].update_many({"published": False}, {"$unset": {"parked_at": ""}, "$set": {"attempts": 0}})


def unpublished(db: Db) -> int:
    """How many rows are not marked."""
    return int(db[COLLECTION].count_documents({"published": False}))


def free_all_shards(db: Any) -> None:
    """All relays are gone, and so are their leases."""
    db[shards.COLLECTION].update_many({}, {"$unset": {"owner": "", "lease_until": ""}})
    db[shards.MEMBERS].delete_many({})
