"""What waits to be published, in all shards and whoever owns them: asked now and then, at a cost that has a bound."""

from dataclasses import dataclass

import pymongo

from darkroom.outbox import COLLECTION
from darkroom.runtime.mongo import Db

LIMIT = 1000
"""Rows that are looked at. In the index they are by shard and asset, so of a larger backlog these are a fair sample."""
SECONDS = 2.0


@dataclass(frozen=True)
class Look:
    """``oldest`` is the age in seconds of the oldest row that waits and is not parked, 0 if none does."""

    waiting: int
    parked: int
    oldest: float


class Backlog:
    """Looks at the first unpublished rows of the whole outbox."""

    def __init__(self, db: Db) -> None:
        self._rows = db[COLLECTION]

    def look(self) -> Look:
        """How it is now.

        Raises:
            PyMongoError: MongoDB did not answer within two seconds.

        """
        age = {"$divide": [{"$subtract": ["$$NOW", "$occurred_at"]}, 1000]}
        parked = {"$cond": [{"$gt": ["$parked_at", None]}, 1, 0]}
        waits = {"$cond": [{"$gt": ["$parked_at", None]}, None, age]}
        with pymongo.timeout(SECONDS):
            found = list(
                self._rows.aggregate(
                    [
                        {"$match": {"published": False}},
                        {"$limit": LIMIT},
                        {
                            "$group": {
                                "_id": None,
                                "rows": {"$sum": 1},
                                "parked": {"$sum": parked},
                                "oldest": {"$max": waits},
                            }
                        },
                    ],
                    hint="unpublished",
                )
            )
        if not found:
            return Look(0, 0, 0.0)
        (row,) = found
        return Look(row["rows"] - row["parked"], row["parked"], max(0.0, row["oldest"] or 0.0))
