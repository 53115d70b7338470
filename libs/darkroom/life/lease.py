"""One sweep at a time: a lease in MongoDB, on the server's clock."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from darkroom.runtime.mongo import Db

COLLECTION = "leases"


class LeaseLost(Exception):
    """The lease ran out and somebody else has it: stop."""


class RunLease:
    """The right to do what ``name`` says. It saves work; what must not be done twice is guarded by itself."""

    def __init__(self, db: Db, *, name: str, seconds: float) -> None:
        self._leases = db[COLLECTION]
        self._name = name
        self._seconds = seconds
        self._owner = str(uuid.uuid4())
        self._epoch = 0
        self._renew_at = 0.0

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Whether the lease is ours while the block runs; given back at its end."""
        ours = self._claim()
        try:
            yield ours
        finally:
            if ours:
                self._leases.update_one(self._mine(), {"$unset": {"owner": "", "lease_until": ""}})

    def keep(self) -> None:
        """Renew the lease if a third of it has gone; to be called between the steps of the work.

        Raises:
            LeaseLost: it is not ours any more.

        """
        if time.monotonic() < self._renew_at:
            return
        began = time.monotonic()
        if self._leases.update_one(self._mine(), [{"$set": {"lease_until": self._from_now()}}]).matched_count == 0:
            raise LeaseLost(f"the lease {self._name} was taken over")
        self._renew_at = began + self._seconds / 3

    def _claim(self) -> bool:
        began = time.monotonic()
        # A missing date sorts before every date: free, never leased and run out are one comparison.
        free = {"_id": self._name, "$expr": {"$lte": ["$lease_until", "$$NOW"]}}
        taken = {"owner": self._owner, "epoch": {"$add": ["$epoch", 1]}, "lease_until": self._from_now()}
        with suppress(DuplicateKeyError):  # made by somebody else at the same moment
            self._leases.update_one({"_id": self._name}, {"$setOnInsert": {"epoch": 0}}, upsert=True)
        row = self._leases.find_one_and_update(free, [{"$set": taken}], return_document=ReturnDocument.AFTER)
        if row is None:
            return False
        self._epoch = row["epoch"]
        self._renew_at = began + self._seconds / 3
        return True

    def _mine(self) -> dict[str, Any]:
        return {"_id": self._name, "owner": self._owner, "epoch": self._epoch}

    def _from_now(self) -> dict[str, Any]:
        return {"$add": ["$$NOW", round(self._seconds * 1000)]}
