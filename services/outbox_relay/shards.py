"""Which shards of the outbox this relay publishes: leased on the server's clock, shared fairly among live relays.

Leases keep relays from doing each other's work. Order does not depend on them: whoever publishes an asset begins at its
first unpublished event and leaves none out, so two relays at once repeat events but never overtake.
"""

import math
import random
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

import pymongo
import structlog
from pymongo import IndexModel, UpdateOne
from pymongo.errors import PyMongoError

from darkroom.outbox import SHARDS
from darkroom.runtime.mongo import Db

log = structlog.get_logger()

COLLECTION = "relay_shards"
MEMBERS = "relay_members"


@dataclass(frozen=True)
class Owned:
    """The shards that are ours, until ``valid_until`` on this process's monotonic clock unless renewed before."""

    shards: frozenset[int]
    valid_until: float


class ShardLeases:
    """Leases of shards for one relay. ``refresh`` must be called at least every third of a lease."""

    def __init__(self, db: Db, *, instance: str, lease_seconds: float) -> None:
        self._shards = db[COLLECTION]
        self._members = db[MEMBERS]
        self._instance = instance
        self._lease_ms = round(lease_seconds * 1000)
        self._leaving: frozenset[int] = frozenset()
        self.lease_seconds = lease_seconds
        self.owned = Owned(frozenset(), 0.0)
        self._live = 1
        self._without_since = time.monotonic()

    def current(self) -> Owned:
        """What is ours at this very moment: nothing, once the leases could not be renewed in time."""
        owned = self.owned
        return owned if time.monotonic() < owned.valid_until else Owned(frozenset(), 0.0)

    def idle_seconds(self) -> float:
        """For how long this relay has had no shard although its share is at least one; 0 while all is well."""
        if self.owned.shards or self._live > SHARDS:
            return 0.0
        return time.monotonic() - self._without_since

    @staticmethod
    def indexes() -> dict[str, list[IndexModel]]:
        """What must exist before the first lease."""
        return {MEMBERS: [IndexModel([("alive_until", 1)], expireAfterSeconds=3600)]}

    def create(self) -> None:
        """Make sure that every shard has its document; they are never deleted."""
        missing = [UpdateOne({"_id": shard}, {"$setOnInsert": {"epoch": 0}}, upsert=True) for shard in range(SHARDS)]
        self._shards.bulk_write(missing, ordered=False)

    def refresh(self) -> Owned:
        """Say that this relay lives, renew what it has, and move towards a fair share.

        A relay gives a surplus shard up in two steps, so that what it has under way there can end in between.
        """
        with pymongo.timeout(self.lease_seconds):
            return self._refresh()

    def _refresh(self) -> Owned:
        began = time.monotonic()
        self._members.update_one({"_id": self._instance}, [{"$set": {"alive_until": self._from_now()}}], upsert=True)
        live = self._members.count_documents({"$expr": {"$gt": ["$alive_until", "$$NOW"]}})
        share = math.ceil(SHARDS / max(1, live))
        self._release(self._leaving)
        self._shards.update_many({"owner": self._instance}, [{"$set": {"lease_until": self._from_now()}}])
        held = self._held()
        if len(held) < share:
            self._acquire(share - len(held))
            held = self._held()
        self._leaving = frozenset(sorted(held)[share:])
        owned = Owned(frozenset(held) - self._leaving, began + self.lease_seconds)
        self._live = live
        if self.owned.shards:
            self._without_since = began
        if owned.shards != self.owned.shards:
            log.info("shards_owned", count=len(owned.shards), live_relays=live)
        self.owned = owned
        return owned

    def leave(self) -> None:
        """Give everything up, so that others need not wait for the leases to run out."""
        self.owned = Owned(frozenset(), 0.0)
        with pymongo.timeout(self.lease_seconds):
            self._members.delete_one({"_id": self._instance})
            self._shards.update_many({"owner": self._instance}, {"$unset": {"owner": "", "lease_until": ""}})

    def _held(self) -> set[int]:
        return {row["_id"] for row in self._shards.find({"owner": self._instance}, {"_id": 1})}

    def _acquire(self, wanted: int) -> None:
        # A missing date sorts before every date: free, never leased and run out are one comparison.
        free = {"$expr": {"$lte": ["$lease_until", "$$NOW"]}}
        candidates = [row["_id"] for row in self._shards.find(free, {"_id": 1})]
        random.shuffle(candidates)
        taking = {
            "owner": self._instance,
            "epoch": {"$add": ["$epoch", 1]},
            "lease_until": self._from_now(),
        }
        if chosen := candidates[:wanted]:
            # Each looks again whether its shard is free: others choose at the same time.
            self._shards.bulk_write(
                [UpdateOne({"_id": shard, **free}, [{"$set": taking}]) for shard in chosen], ordered=False
            )

    def _release(self, shards: Iterable[int]) -> None:
        if shards := list(shards):
            self._shards.update_many(
                {"_id": {"$in": shards}, "owner": self._instance}, {"$unset": {"owner": "", "lease_until": ""}}
            )

    def _from_now(self) -> dict[str, list[object]]:
        return {"$add": ["$$NOW", self._lease_ms]}


class ShardKeeper(threading.Thread):
    """Refreshes the leases while the relay publishes, however long one round of it takes."""

    def __init__(self, leases: ShardLeases, *, on_change: threading.Event) -> None:
        super().__init__(name="shard-keeper", daemon=True)
        self._leases = leases
        self._on_change = on_change
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """Refresh every third of a lease until told to stop."""
        every = self._leases.lease_seconds / 3
        while not self._stop_asked.wait(random.uniform(0.8, 1.0) * every):  # noqa: S311 -- spreads load
            before = self._leases.owned.shards
            try:
                after = self._leases.refresh().shards
            except PyMongoError as error:
                # The lease runs out by itself; `valid_until` tells the relay, and the next round tries again.
                log.warning("shard_refresh_failed", error=str(error))
            else:
                if after - before:
                    self._on_change.set()

    def stop(self) -> None:
        """End the thread; what is leased stays leased."""
        self._stop_asked.set()
        self.join()
