"""What was told to whom: one row for each event and channel, written before and after the sending."""

from enum import StrEnum
from typing import Any

import pymongo
from pymongo import ReturnDocument
from pymongo.database import Database

from notifier.notice import Notice

NOTIFICATIONS = "notifications"
NAMES = "notifier_assets"
KEEP_NAMES_MS = 90 * 86_400_000

Document = dict[str, Any]


class State(StrEnum):
    """A row's state. SENDING found by a later attempt means that the one before it died or lost the answer."""

    SENDING = "SENDING"
    SENT = "SENT"
    NOT_SENT = "NOT_SENT"
    REFUSED = "REFUSED"
    IN_DOUBT = "IN_DOUBT"
    GIVEN_UP = "GIVEN_UP"


FINAL = frozenset({State.SENT, State.REFUSED, State.IN_DOUBT, State.GIVEN_UP})


class Journal:
    """The record. Thread-safe; every call ends after ``call_seconds``."""

    def __init__(self, db: Database[Document], *, call_seconds: float = 10.0) -> None:
        self._rows = db[NOTIFICATIONS]
        self._names = db[NAMES]
        self._call_seconds = call_seconds

    @staticmethod
    def indexes() -> dict[str, list[pymongo.IndexModel]]:
        """What must exist before the first event."""
        return {
            NOTIFICATIONS: [
                pymongo.IndexModel([("asset_id", 1)]),
                pymongo.IndexModel([("event_id", 1)]),
                # What somebody may want to look after; the sent ones are many and need no index.
                pymongo.IndexModel(
                    [("state", 1), ("updated_at", 1)],
                    partialFilterExpression={"state": {"$in": [s for s in State if s is not State.SENT]}},
                ),
            ],
            NAMES: [pymongo.IndexModel([("expire_at", 1)], expireAfterSeconds=0)],
        }

    def begin(self, notice: Notice, channel: str) -> State | None:
        """Write that it is about to be sent, unless its end is known; gives the state before, None at the first try."""
        final = {"$in": ["$state", sorted(FINAL)]}
        row = {
            "event_id": notice.event_id,
            "asset_id": notice.asset_id,
            "owner_id": {"$literal": notice.owner_id},
            "channel": channel,
            "state": State.SENDING,
            "attempts": {"$add": [{"$ifNull": ["$attempts", 0]}, 1]},
            "first_at": {"$ifNull": ["$first_at", "$$NOW"]},
            "updated_at": "$$NOW",
        }
        with pymongo.timeout(self._call_seconds):
            before = self._rows.find_one_and_update(
                {"_id": _id(notice, channel)},
                [{"$replaceWith": {"$cond": [final, "$$ROOT", {"$mergeObjects": ["$$ROOT", row]}]}}],
                upsert=True,
                return_document=ReturnDocument.BEFORE,
                projection={"state": 1},
            )
        return None if before is None else State(before["state"])

    def note(self, notice: Notice, channel: str, state: State, detail: str) -> None:
        """Write how the attempt ended. What is SENT stays so, whoever else was in doubt about it."""
        with pymongo.timeout(self._call_seconds):
            self._rows.update_one(
                {"_id": _id(notice, channel), "state": {"$ne": State.SENT}},
                [{"$set": {"state": state, "detail": {"$literal": detail[:1000]}, "updated_at": "$$NOW"}}],
            )

    def give_up(self, event_id: str, reason: str) -> None:
        """Write that nothing more is tried for what of this event is still open."""
        with pymongo.timeout(self._call_seconds):
            self._rows.update_many(
                {"event_id": event_id, "state": {"$nin": sorted(FINAL)}},
                [{"$set": {"state": State.GIVEN_UP, "detail": {"$literal": reason[:1000]}, "updated_at": "$$NOW"}}],
            )

    def remember(self, asset_id: str, filename: str) -> None:
        """Keep the owner's name of the file until the asset comes to its end."""
        with pymongo.timeout(self._call_seconds):
            self._names.update_one(
                {"_id": asset_id},
                [{"$set": {"filename": {"$literal": filename}, "expire_at": {"$add": ["$$NOW", KEEP_NAMES_MS]}}}],
                upsert=True,
            )

    def filename(self, asset_id: str) -> str | None:
        """The name that was kept, if the notifier saw the asset's registration."""
        with pymongo.timeout(self._call_seconds):
            found = self._names.find_one({"_id": asset_id})
        return None if found is None else str(found["filename"])

    def probe(self) -> None:
        """Ask the server for anything; whatever this raises means that MongoDB cannot be used now."""
        with pymongo.timeout(self._call_seconds):
            self._rows.find_one({}, {"_id": 1})


def _id(notice: Notice, channel: str) -> str:
    return f"{notice.event_id}/{channel}"
