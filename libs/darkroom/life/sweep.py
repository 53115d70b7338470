"""One sweep: expire, purge, put away, remove. Each step of each asset is one transaction, so a sweep may end anywhere.

The event comes first and the objects go after it: what is told as purged may be in the bucket for a moment longer, but
an asset that can be restored always has its pictures (I10). What is still to be removed is written down in the very
transaction of the event (``removals``), and struck off when it is done.

A restore and a purge, or an upload and an expiry, may come at the same moment: each names the version that it saw, so
one of them finds that the asset moved on and leaves it alone.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pymongo
import structlog
from pydantic import ValidationError
from pymongo import IndexModel
from pymongo.client_session import ClientSession

from darkroom.assets import Asset, Status, change, from_document, guard, update
from darkroom.assets.documents import COLLECTION as ASSETS
from darkroom.assets.documents import INDEXES as ASSET_INDEXES
from darkroom.contracts.events import AssetExpired, AssetPurged, EventData
from darkroom.life import rejected
from darkroom.life.objects import ObjectStore, RemovalFailed
from darkroom.outbox import COLLECTION as OUTBOX
from darkroom.outbox import to_row
from darkroom.outbox.rows import INDEXES as OUTBOX_INDEXES
from darkroom.runtime.leased import LeasedJob, TurnLost
from darkroom.runtime.mongo import Client, Db, in_transaction
from darkroom.tracing.traceparent import trace_id

log = structlog.get_logger()

REMOVALS = "removals"
LATE = timedelta(days=1)
"""How long something may still be written below an asset that has ended: a URL that was signed before, a worker that
stood still. After it what came late is removed too."""
AGAIN = timedelta(minutes=10)
"""When a removal that failed is tried again."""
CALL_SECONDS = 10.0

GoesOn = Callable[[], bool]


@dataclass
class Swept:
    """What a sweep did. ``unseen``: uploads that are in the bucket and of which no event has come yet; ``put_away``:
    rejected originals that the processor did not come to tag or delete."""

    expired: int = 0
    purged: int = 0
    removed: int = 0
    unseen: int = 0
    put_away: int = 0
    failed: int = 0


def _utcnow() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class Sweeper:
    """Sweeps one installation."""

    client: Client
    db: Db
    objects: ObjectStore
    job: LeasedJob
    uploading: timedelta
    retention: timedelta
    now: Callable[[], datetime] = field(default=_utcnow)

    @staticmethod
    def indexes() -> dict[str, list[IndexModel]]:
        """What must exist before the first sweep."""
        return {
            ASSETS: [IndexModel(keys, **options) for keys, options in ASSET_INDEXES],
            OUTBOX: [IndexModel(keys, **options) for keys, options in OUTBOX_INDEXES],
            REMOVALS: [IndexModel([("due_at", 1)])],
            **rejected.indexes(),
        }

    def run(self, stop: threading.Event | None = None) -> Swept | None:
        """Do all that is due, until ``stop`` is set. None: somebody else sweeps.

        Raises:
            pymongo.errors.PyMongoError: the database cannot be used; what was done is done.

        """
        swept = Swept()
        with self.job.turn() as turn:
            if turn is None:
                return None

            def goes_on() -> bool:
                """Whether there is time for another step, under a lease that is ours. Raises TurnLost."""
                self.job.keep_if_due(turn)
                return stop is None or not stop.is_set()

            try:
                self._expire(swept, goes_on)
                self._purge(swept, goes_on)
                self._put_away(swept, goes_on)
                self._remove(swept, goes_on)
                self.job.end(turn, result=vars(swept))
            except TurnLost as lost:
                log.warning("sweep_ended", reason=str(lost))
        log.info("swept", **vars(swept))
        return swept

    def _expire(self, swept: Swept, goes_on: GoesOn) -> None:
        for asset in self._older(Status.UPLOADING, self.uploading, swept, goes_on):
            try:
                there = self.objects.exists(asset.object_key)
            except RemovalFailed as error:
                swept.failed += 1
                log.warning("expiry_put_off", **_ids(asset), reason=str(error))
                continue
            if there:
                # Its event is on the way, or lies in a dead-letter queue: the bytes came, so it must not expire.
                swept.unseen += 1
                log.warning("upload_unseen", **_ids(asset), object_key=asset.object_key)
            elif self._store(asset, AssetExpired(), first=LATE, passes=1):
                swept.expired += 1

    def _purge(self, swept: Swept, goes_on: GoesOn) -> None:
        for asset in self._older(Status.TRASHED, self.retention, swept, goes_on):
            if self._store(asset, AssetPurged(), first=timedelta(0), passes=2):
                swept.purged += 1

    def _put_away(self, swept: Swept, goes_on: GoesOn) -> None:
        due = self.db[rejected.COLLECTION].find({"due_at": {"$lte": self._server_time()}})
        for row in self._each(due, goes_on):
            try:
                self.objects.put_away(rejected.RejectedOriginal.from_row(row))
            except (RemovalFailed, KeyError, ValueError) as error:
                # Or its row cannot be read, as one of a later release: it keeps up no other.
                swept.failed += 1
                log.warning("rejected_original_left", asset_id=row["_id"], reason=str(error))
                self.db[rejected.COLLECTION].update_one({"_id": row["_id"]}, [{"$set": {"due_at": _in(AGAIN)}}])
                continue
            swept.put_away += 1
            rejected.strike_off(self.db, row["_id"])

    def _remove(self, swept: Swept, goes_on: GoesOn) -> None:
        for row in self._each(self.db[REMOVALS].find({"due_at": {"$lte": self._server_time()}}), goes_on):
            mine = {"_id": row["_id"], "due_at": row["due_at"]}
            try:
                swept.removed += self.objects.remove_all(f"assets/{row['_id']}/")
            except RemovalFailed as error:
                swept.failed += 1
                log.warning("removal_failed", asset_id=row["_id"], reason=str(error))
                self.db[REMOVALS].update_one(mine, [{"$set": {"due_at": _in(AGAIN)}}])
                continue
            if row["passes"] > 1:
                self.db[REMOVALS].update_one(mine, [{"$set": {"due_at": _in(LATE), "passes": row["passes"] - 1}}])
            else:
                self.db[REMOVALS].delete_one(mine)

    def _older(self, status: Status, age: timedelta, swept: Swept, goes_on: GoesOn) -> Iterator[Asset]:
        """The assets that have been in this state for so long. One whose document cannot be read keeps up no other."""
        where = {"status": str(status), "updated_at": {"$lte": self._server_time() - age}}
        for document in self._each(self.db[ASSETS].find(where).sort("updated_at", 1), goes_on):
            try:
                asset = from_document(document)
            except ValidationError as error:
                swept.failed += 1
                log.error("asset_unreadable", asset_id=document["_id"], reason=str(error))  # noqa: TRY400
                continue
            yield asset

    def _each(self, found: Any, goes_on: GoesOn) -> Iterator[dict[str, Any]]:
        with found:
            for document in found:
                if not goes_on():
                    return
                yield document

    def _store(self, asset: Asset, data: EventData, *, first: timedelta, passes: int) -> bool:
        """The event, the asset after it and the removal to do, in one transaction. False: the asset moved on."""
        decided = change(asset, data, occurred_at=self.now())

        to_do = [{"$set": {"due_at": _in(first), "passes": passes}}]

        def body(session: ClientSession) -> bool:
            written = self.db[ASSETS].update_one(guard(asset), update(asset, decided.after), session=session)
            if written.matched_count == 0:
                return False
            self.db[OUTBOX].insert_one(to_row(decided.event), session=session)
            self.db[REMOVALS].update_one({"_id": asset.id}, to_do, upsert=True, session=session)
            return True

        return in_transaction(self.client, body, seconds=CALL_SECONDS)

    def _server_time(self) -> datetime:
        with pymongo.timeout(CALL_SECONDS):
            moment: datetime = self.client.admin.command("hello")["localTime"]
        return moment


def _ids(asset: Asset) -> dict[str, str | None]:
    return {"asset_id": asset.id, "trace_id": trace_id(asset.traceparent)}


def _in(wait: timedelta) -> dict[str, Any]:
    return {"$add": ["$$NOW", round(wait.total_seconds() * 1000)]}
