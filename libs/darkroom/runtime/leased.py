"""Work of which only one runs at a time in the whole installation, and which goes on where the last one was stopped.

One document a job in ``jobs``: who has it, until when by the server's clock, and how far it has come. As in the inbox a
fence is raised by every taking, so one that stood still while another took over cannot write its progress over it.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pymongo
from pymongo import ReturnDocument
from pymongo.errors import PyMongoError

from darkroom.runtime.mongo import Db

COLLECTION = "jobs"
LOOK_SECONDS = 2.0
"""How long a look at a job may take: scrapes wait for it."""
KEEPS = 6
"""How often a turn is kept within the length of its lease."""


class TurnLost(Exception):
    """Another process took the job over: stop, it goes on there."""


@dataclass
class Turn:
    """The right to do the job; ``cursor`` is how far it had come when it was stopped, None at a fresh start.

    ``keep_at`` is when it should be kept next, by this process's monotonic clock.
    """

    fence: int
    cursor: Any = None
    keep_at: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class LeasedJob:
    """A job by its name. It is kept well within every ``lease_seconds``, or somebody else may take it."""

    db: Db
    name: str
    lease_seconds: float = 60.0
    owner: str = field(default_factory=lambda: str(uuid.uuid4()))

    @contextmanager
    def turn(self) -> Iterator[Turn | None]:
        """A turn while the block runs, None if somebody has the job; left at its end, however that comes."""
        turn = self.take()
        try:
            yield turn
        finally:
            if turn is not None:
                # So that the next one need not wait for the lease to end; it does end, if this fails.
                with suppress(TurnLost, PyMongoError):
                    self.leave(turn)

    def take(self) -> Turn | None:
        """Take the job, or None if somebody has it."""
        began, rows = time.monotonic(), self.db[COLLECTION]
        # Apart from the taking: an upsert cannot ask for the server's time.
        rows.update_one({"_id": self.name}, {"$setOnInsert": {"fence": 0}}, upsert=True)
        found = rows.find_one_and_update(
            # A missing date sorts before every date: free, never taken and run out are one comparison.
            {"_id": self.name, "$expr": {"$lte": ["$lease_until", "$$NOW"]}},
            [
                {
                    "$set": {
                        "owner": {"$literal": self.owner},
                        "fence": {"$add": ["$fence", 1]},
                        "lease_until": self._from_now(),
                        "taken_at": "$$NOW",
                    }
                }
            ],
            return_document=ReturnDocument.AFTER,
        )
        if found is None:
            return None
        return Turn(found["fence"], found.get("cursor"), began + self.lease_seconds / KEEPS)

    def keep(self, turn: Turn, *, cursor: Any) -> None:
        """Stay in possession for a full lease from now, and note how far the work has come.

        Raises:
            TurnLost: another process has taken the job.

        """
        began = time.monotonic()
        self._write(turn, [{"$set": {"lease_until": self._from_now(), "cursor": {"$literal": cursor}}}])
        turn.keep_at = began + self.lease_seconds / KEEPS

    def keep_if_due(self, turn: Turn, *, cursor: Any = None) -> None:
        """The same, if it is time: to be called between the steps of the work, however short they are.

        Raises:
            TurnLost: another process has taken the job.

        """
        if time.monotonic() >= turn.keep_at:
            self.keep(turn, cursor=cursor)

    def end(self, turn: Turn, *, result: dict[str, Any]) -> None:
        """The job is done: the next turn starts afresh. ``result`` is kept as ``last``, with the time.

        Raises:
            TurnLost: another process has taken the job.

        """
        last = {"$mergeObjects": [{"$literal": result}, {"at": "$$NOW"}]}
        self._write(turn, [{"$set": {"last": last}}, {"$unset": ["owner", "lease_until", "cursor"]}])

    def leave(self, turn: Turn) -> None:
        """Stop in the middle: the next turn goes on behind the cursor.

        Raises:
            TurnLost: another process has taken the job.

        """
        self._write(turn, [{"$unset": ["owner", "lease_until"]}])

    def last_end(self) -> datetime | None:
        """When the job was last done, by whatever process; None: never. Answers soon, or raises PyMongoError."""
        with pymongo.timeout(LOOK_SECONDS):
            found = self.db[COLLECTION].find_one({"_id": self.name}, {"last.at": 1}) or {}
        at: datetime | None = found.get("last", {}).get("at")
        return at

    def _write(self, turn: Turn, update: list[dict[str, Any]]) -> None:
        held = {"_id": self.name, "owner": self.owner, "fence": turn.fence}
        if self.db[COLLECTION].update_one(held, update).matched_count == 0:
            raise TurnLost(f"job {self.name} is no longer held under fence {turn.fence}")

    def _from_now(self) -> dict[str, list[object]]:
        return {"$add": ["$$NOW", round(self.lease_seconds * 1000)]}
