"""How much one owner may register: so many a minute, and so many at a time that still wait for their bytes.

Counted in MongoDB, one document an owner, so that it holds over all processes. The document has no part in the
registration's transaction: all of an owner's registrations would wait for each other there. Before its transaction a
registration takes a place, and whoever takes places for one owner in one process does so for all that wait meanwhile.

- ``tokens`` is a bucket that holds ``per_minute`` and fills at that rate, on the server's clock.
- ``open`` is never less than the number of the owner's assets UPLOADING, so the limit is never exceeded. It only grows;
  when it is used up, or ``pending`` has become long, the assets are counted again. ``pending`` are the places taken
  since the last count whose assets may not have been stored by then.

A document that is lost costs one count.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pymongo
from pymongo import IndexModel, ReturnDocument
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from asset_api.rounds import Rounds
from darkroom.assets import Status, documents
from darkroom.runtime.mongo import AsyncClient, Document, timed_out

COLLECTION = "owner_quota"
INDEXES: tuple[tuple[list[tuple[str, int]], dict[str, Any]], ...] = (([("expire_at", 1)], {"expireAfterSeconds": 0}),)

PENDING_LIMIT = 64
"""Places after which the assets are counted: bounds the document."""
ABANDONED_MS = 60_000
"""The age at which a place without an asset is free again: no registration takes that long."""
KEEP_MS = 24 * 3600 * 1000
BATCH = 256
RECOUNTS = 5
PLACES_SECONDS = 10
"""When to ask again for a place: uploads end, or expire, whenever they do."""

COUNTS: Document = {"granted": 1, "tokens": 1, "open": 1, "pending": {"$size": "$pending"}}


class QuotaExceeded(Exception):
    """No registration now; one may succeed in ``retry_after`` seconds."""

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooManyRegistrations(QuotaExceeded):
    """The owner registered as much as a minute allows."""


class TooManyUploads(QuotaExceeded):
    """The owner has as many assets UPLOADING as there may be."""


@dataclass(frozen=True)
class Limits:
    """What one owner may have. ``per_minute`` is also how many may come at once after a rest."""

    per_minute: int
    uploading: int


def take(asset_ids: Sequence[str], limits: Limits) -> list[Document]:
    """The update that takes a place for each of these assets, from the first on as far as there are places."""
    places = {"$max": [0, {"$subtract": [limits.uploading, {"$ifNull": ["$open", limits.uploading]}]}]}
    filled = {"$divide": [{"$subtract": ["$$NOW", {"$ifNull": ["$at", "$$NOW"]}]}, 60_000 / limits.per_minute]}
    tokens = {"$min": [limits.per_minute, {"$add": [{"$ifNull": ["$tokens", limits.per_minute]}, filled]}]}
    taken = {
        "$map": {
            "input": {"$slice": [{"$literal": list(asset_ids)}, {"$max": [1, "$granted"]}]},
            "as": "id",
            "in": {"id": "$$id", "at": "$$NOW"},
        }
    }
    return [
        {"$set": {"tokens": tokens, "at": "$$NOW", "pending": {"$ifNull": ["$pending", []]}}},
        {"$set": {"granted": {"$toInt": {"$min": [len(asset_ids), {"$floor": "$tokens"}, places]}}}},
        {
            "$set": {
                "tokens": {"$subtract": ["$tokens", "$granted"]},
                # Absent until the assets have been counted.
                "open": {"$ifNull": [{"$add": ["$open", "$granted"]}, "$$REMOVE"]},
                # No slice of length 0 in MongoDB.
                "pending": {"$concatArrays": ["$pending", {"$cond": [{"$gt": ["$granted", 0]}, taken, []]}]},
                **_touched(),
            }
        },
    ]


def give_back(asset_id: str, limits: Limits) -> list[Document]:
    """The update that frees the place of an asset that was not registered after all."""
    ours = {"$in": [{"$literal": asset_id}, "$pending.id"]}
    return [
        {
            "$set": {
                "tokens": {"$min": [limits.per_minute, {"$add": ["$tokens", {"$cond": [ours, 1, 0]}]}]},
                "open": {"$ifNull": [{"$subtract": ["$open", {"$cond": [ours, 1, 0]}]}, "$$REMOVE"]},
                "pending": _without([asset_id]),
                **_touched(),
            }
        }
    ]


def recounted(uploading: int, stored: Sequence[str]) -> list[Document]:
    """The update after a count: ``stored`` were pending, and are counted in ``uploading`` if they still are that."""
    alive = {"$gt": ["$$one.at", {"$subtract": ["$$NOW", ABANDONED_MS]}]}
    return [
        {"$set": {"pending": _without(stored, alive)}},
        {"$set": {"open": {"$add": [uploading, {"$size": "$pending"}]}, **_touched()}},
    ]


def _without(asset_ids: Sequence[str], *further: Document) -> Document:
    kept = {"$not": [{"$in": ["$$one.id", {"$literal": list(asset_ids)}]}]}
    return {"$filter": {"input": "$pending", "as": "one", "cond": {"$and": [kept, *further]}}}


def _touched() -> Document:
    return {"revision": {"$add": [{"$ifNull": ["$revision", 0]}, 1]}, "expire_at": {"$add": ["$$NOW", KEEP_MS]}}


class Quota:
    """The limits of every owner. Each call to MongoDB ends within ``seconds``."""

    def __init__(self, *, client: AsyncClient, database: str, limits: Limits, seconds: float) -> None:
        # A count that is lost in a failover does no harm, so nobody waits for a majority.
        self._owners = client[database].get_collection(
            COLLECTION, write_concern=WriteConcern(1), read_concern=ReadConcern("local")
        )
        self._client = client
        self._assets = client[database][documents.COLLECTION]
        self._limits = limits
        self._seconds = seconds
        self._rounds: Rounds[str, str, None] = Rounds(self._decide, largest=BATCH, is_outage=timed_out)

    async def ensure_indexes(self) -> None:
        """Create what is missing."""
        await self._owners.create_indexes([IndexModel(keys, **options) for keys, options in INDEXES])

    async def admit(self, *, owner_id: str, asset_id: str) -> None:
        """Take a place for an asset that is about to be registered.

        Raises:
            QuotaExceeded: there is none, and when to try again.
            pymongo.errors.PyMongoError: it is not known.

        """
        await self._rounds.ask(owner_id, asset_id)

    async def give_back(self, *, owner_id: str, asset_id: str) -> None:
        """Free the place of an asset that was not registered, since the key had one already."""
        with pymongo.timeout(self._seconds):
            await self._owners.update_one({"_id": owner_id}, give_back(asset_id, self._limits))

    async def _decide(self, owner_id: str, asset_ids: Sequence[str]) -> list[QuotaExceeded | None]:
        with pymongo.timeout(self._seconds):
            counts = await self._take(owner_id, asset_ids)
            granted = counts["granted"]
            full = counts.get("open", self._limits.uploading) >= self._limits.uploading
            if (full and granted < len(asset_ids)) or counts["pending"] > PENDING_LIMIT:
                await self._recount(owner_id)
                if granted < len(asset_ids):
                    counts = await self._take(owner_id, asset_ids[granted:])
                    granted += counts["granted"]
        return [None] * granted + [self._refusal(counts)] * (len(asset_ids) - granted)

    async def _take(self, owner_id: str, asset_ids: Sequence[str]) -> Document:
        counts = await self._owners.find_one_and_update(
            {"_id": owner_id},
            take(asset_ids, self._limits),
            projection=COUNTS,
            upsert=True,
            return_document=ReturnDocument.AFTER,
        )
        if counts is None:
            raise TypeError("an upsert that returns the document after it gave none")
        return counts

    async def _recount(self, owner_id: str) -> None:
        for _ in range(RECOUNTS):
            known = await self._owners.find_one({"_id": owner_id}, {"pending.id": 1, "revision": 1})
            if known is None:
                return
            pending = [one["id"] for one in known["pending"]]
            # Of one moment, or an asset that is stored between the two would count twice, or not at all.
            async with self._client.start_session(snapshot=True) as moment:
                found = self._assets.find({"owner_id": owner_id, "_id": {"$in": pending}}, {"_id": 1}, session=moment)
                stored = [document["_id"] async for document in found]
                uploading = await self._assets.count_documents(
                    {"owner_id": owner_id, "status": str(Status.UPLOADING)},
                    limit=self._limits.uploading + 1,
                    session=moment,
                )
            written = await self._owners.update_one(
                {"_id": owner_id, "revision": known["revision"]}, recounted(uploading, stored)
            )
            if written.matched_count:
                return

    def _refusal(self, counts: Document) -> QuotaExceeded:
        if counts["tokens"] < 1:
            seconds = math.ceil((1 - counts["tokens"]) * 60 / self._limits.per_minute)
            return TooManyRegistrations(
                f"At most {self._limits.per_minute} registrations a minute.", retry_after=max(1, seconds)
            )
        return TooManyUploads(
            f"At most {self._limits.uploading} assets may wait for their bytes. Upload some, or let them expire.",
            retry_after=PLACES_SECONDS,
        )
