"""Bring MongoDB, S3 and Kafka together again where one of them lost something.

Two passes. ``unfinished`` asks S3 about the few assets that have been under way for long: quick, for every few minutes.
``objects`` goes through the whole bucket beside all records: for once a day. Each is leased, so one runs at a time;
resumable, so a stopped one goes on where it was; and bounded in what it asks and does a second. Nothing that it does
twice does harm.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Any

import structlog
from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka import KafkaException
from pydantic import ValidationError

from darkroom.assets import Asset, Status, from_document
from darkroom.assets.documents import COLLECTION as ASSETS
from darkroom.contracts.envelope import Event
from darkroom.inbox.leases import COLLECTION as INBOX
from darkroom.ops import audit, findings
from darkroom.ops.announcing import Announcer, announced, latest
from darkroom.ops.findings import MENDED, Finding, Kind, Patience
from darkroom.ops.installation import Installation
from darkroom.ops.pace import Pace
from darkroom.ops.redriving import NotRedrivable, redrive
from darkroom.ops.walk import reread, walk
from darkroom.runtime.leased import LeasedJob, Turn
from darkroom.tracing.traceparent import trace_id

log = structlog.get_logger()

UNDER_WAY = (Status.PROCESSING, Status.UPLOADING)
TAG = "darkroom-orphan-since"
FAILURES_IN_A_ROW = 5
"""So many findings that cannot be mended one after another are an outage, not their own fault."""
_FAILURES = (ClientError, BotoCoreError, KafkaException, TimeoutError, NotRedrivable)


class Pass(StrEnum):
    """What is gone through."""

    UNFINISHED = "unfinished"
    OBJECTS = "objects"


@dataclass
class Report:
    """One pass. ``failed`` counts findings that could not be mended this time."""

    name: Pass
    looked_at: int = 0
    found: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    finished: bool = False

    def as_json(self) -> dict[str, Any]:
        """For programs, and for the job's document."""
        return {
            "looked_at": self.looked_at,
            "found": dict(sorted(self.found.items())),
            "failed": dict(sorted(self.failed.items())),
            "finished": self.finished,
        }


Step = tuple[Any, Finding | None]
"""How far a pass has come, and what it found there."""


@dataclass(frozen=True, kw_only=True)
class Reconciler:
    """Runs passes. ``rate`` bounds what S3 is asked, and what is mended, a second (0: no bound)."""

    installation: Installation
    patience: Patience = field(default_factory=Patience)
    rate: float = 50.0
    lease_seconds: float = 60.0
    stop: threading.Event = field(default_factory=threading.Event)

    def plan(self, name: Pass) -> Iterator[Finding]:
        """What a pass finds; nothing is changed, and no lease is taken.

        Raises:
            PyMongoError, ClientError, BotoCoreError: MongoDB or S3 failed.

        """
        yield from (finding for _, finding in self._steps(name, None) if finding is not None)

    def run(self, name: Pass, *, on_finding: Callable[[Finding, str | None], None] | None = None) -> Report | None:
        """Go through a pass and mend what is found; None if another process is at it.

        ``on_finding`` is told each finding, and why it could not be mended if so.

        Raises:
            TurnLost: another process took over, because this one stood still for too long.
            PyMongoError, ClientError, BotoCoreError, KafkaException: a server failed; the next run goes on from here.

        """
        job = self._job(name)
        report = Report(name)
        with job.turn() as turn:
            if turn is None:
                return None
            with Announcer(self.installation) as announcer:
                self._work(job, turn, report, announcer, on_finding)
            if report.finished:
                job.end(turn, result=report.as_json())
        log.info("reconciled", name=str(name), **report.as_json())
        return report

    def last_end(self, name: Pass) -> datetime | None:
        """When a pass was last done, by whatever process; None: never.

        Raises:
            PyMongoError: MongoDB failed.

        """
        return self._job(name).last_end()

    def _job(self, name: Pass) -> LeasedJob:
        return LeasedJob(self.installation.db, f"reconcile.{name}", self.lease_seconds)

    def _work(
        self,
        job: LeasedJob,
        turn: Turn,
        report: Report,
        announcer: Announcer,
        on_finding: Callable[[Finding, str | None], None] | None,
    ) -> None:
        in_a_row = 0
        for cursor, finding in self._steps(report.name, turn.cursor):
            # Before anything is done, and often enough; not for each of millions that are as they should be.
            if finding is not None or self.stop.is_set():
                job.keep(turn, cursor=cursor)
            else:
                job.keep_if_due(turn, cursor=cursor)
            if self.stop.is_set():
                return
            report.looked_at += 1
            if finding is None:
                continue
            report.found[finding.kind] += 1
            log.warning("reconcile_finding", **_ids(finding))
            problem = self._mend(finding, announcer)
            if on_finding is not None:
                on_finding(finding, None if problem is None else str(problem))
            if problem is None:
                in_a_row = 0
                continue
            report.failed[finding.kind] += 1
            log.error("reconcile_failed", **_ids(finding), error=str(problem))
            in_a_row += 1
            if in_a_row == FAILURES_IN_A_ROW:
                raise problem
        report.finished = True

    def _steps(self, name: Pass, cursor: Any) -> Iterator[Step]:
        match name:
            case Pass.UNFINISHED:
                return self._unfinished(cursor)
            case Pass.OBJECTS:
                return self._objects(cursor)

    # --- looking ---

    def sample(self, limit: int) -> Report:
        """Look at the ``limit`` oldest of each unfinished status; nothing is changed, and no lease is taken.

        Raises:
            PyMongoError, ClientError, BotoCoreError: MongoDB or S3 failed.

        """
        report = Report(Pass.UNFINISHED)
        for status in UNDER_WAY:
            for _, finding in islice(self._unfinished_of(status, None), limit):
                report.looked_at += 1
                if finding is not None:
                    report.found[finding.kind] += 1
        return report

    def _unfinished(self, cursor: Any) -> Iterator[Step]:
        begun = None if cursor is None else Status(cursor["status"])
        for status in UNDER_WAY if begun is None else UNDER_WAY[UNDER_WAY.index(begun) :]:
            yield from self._unfinished_of(status, cursor["at"] if status is begun else None)

    def _unfinished_of(self, status: Status, since: datetime | None) -> Iterator[Step]:
        pace, place = Pace(self.rate, self.stop), self.installation
        moment = place.now() - timedelta(seconds=self.patience.unfinished)
        within = {"$lt": moment} if since is None else {"$gte": since, "$lt": moment}
        with place.db[ASSETS].find({"status": str(status), "updated_at": within}).sort("updated_at") as documents:
            for document in documents:
                pace.wait()
                try:
                    asset = from_document(document)
                except ValidationError as error:
                    # It keeps up no other; `verify` counts it.
                    log.error("asset_unreadable", asset_id=document["_id"], reason=str(error))  # noqa: TRY400
                    continue
                yield {"status": str(status), "at": asset.updated_at}, self._look_at(asset)

    def _look_at(self, asset: Asset) -> Finding | None:
        now = self.installation.now()
        event = self._event(asset)
        if event is None:
            return None
        key = {"consumer": self.installation.group, "event_id": event.id}
        found = findings.unfinished(asset, event, self.installation.db[INBOX].find_one(key), now=now)
        if found is None or self._announced_lately(asset, now):
            return None
        # What has moved on while it was looked at was not stuck.
        still = {"_id": asset.id, "version": asset.version}
        return found if self.installation.db[ASSETS].find_one(still, {"_id": 1}) is not None else None

    def _event(self, asset: Asset) -> Event | None:
        if asset.status is Status.PROCESSING and asset.upload is not None:
            return announced(self.installation, asset, asset.upload.event_id)[0]
        return latest(self.installation, asset)

    def _announced_lately(self, asset: Asset, now: datetime) -> bool:
        since = now - timedelta(seconds=self.patience.again)
        done = {"asset_id": asset.id, "action": "announce", "done_at": {"$gt": since}}
        return self.installation.db[audit.COLLECTION].find_one(done, {"_id": 1}) is not None

    def _objects(self, cursor: Any) -> Iterator[Step]:
        pace, place = Pace(self.rate, self.stop), self.installation
        finished = cursor
        for part in walk(place, rows=False, after=cursor):
            pace.wait()
            now = place.now()
            for kept in part.kept:
                if any(findings.stored(kept, now=now, patience=self.patience)):
                    # Read again at one moment: what was listed a while ago may belong to a newer record.
                    for finding in findings.stored(reread(place, kept.asset_id), now=now, patience=self.patience):
                        pace.wait()
                        yield finished, self._aged(finding, now)
                else:
                    yield finished, None
            finished = part.prefix

    def _aged(self, finding: Finding, now: datetime) -> Finding | None:
        if finding.kind is not Kind.ORPHAN_FOUND or finding.key is None:
            return finding
        tagged = self._tags(finding.key).get(TAG)
        tagged_at = None if tagged is None else datetime.fromisoformat(tagged)
        return findings.orphan(finding, tagged_at, now=now, patience=self.patience)

    def _tags(self, key: str) -> dict[str, str]:
        tags = self.installation.s3.get_object_tagging(Bucket=self.installation.bucket, Key=key)["TagSet"]
        return {tag["Key"]: tag["Value"] for tag in tags}

    # --- mending ---

    def _mend(self, finding: Finding, announcer: Announcer) -> Exception | None:
        """Do what the finding asks for; gives what stood in the way, if it was not MongoDB."""
        if finding.kind not in MENDED:
            return None
        action = _ACTIONS[finding.kind]
        event_id = None if finding.event is None else finding.event.id
        try:
            with audit.recorded(
                self.installation,
                action,
                reason=f"{finding.kind}: {finding.what}",
                asset_id=finding.asset_id,
                event_id=event_id,
                source="reconcile",
                letter=finding.key,
            ):
                self._act(finding, announcer)
        except _FAILURES as error:
            return error
        return None

    def _act(self, finding: Finding, announcer: Announcer) -> None:
        place = self.installation
        match finding.kind:
            case Kind.LOST_NOTIFICATION | Kind.STUCK_PROCESSING if finding.event is not None:
                announcer.announce(finding.event)
            case Kind.LOST_RENDITION:
                redrive(place, finding.asset_id, reason=finding.what, announcer=announcer)
            case Kind.ORPHAN_FOUND if finding.key is not None:
                tags = self._tags(finding.key) | {TAG: place.now().isoformat()}
                tag_set = [{"Key": name, "Value": value} for name, value in tags.items()]
                place.s3.put_object_tagging(Bucket=place.bucket, Key=finding.key, Tagging={"TagSet": tag_set})
            case Kind.ORPHAN_EXPIRED if finding.key is not None:
                # In a bucket that keeps versions this hides the object; it can be had back until its version expires.
                place.s3.delete_object(Bucket=place.bucket, Key=finding.key)
            case _:
                raise AssertionError(f"nothing is done about {finding.kind}")


_ACTIONS = {
    Kind.LOST_NOTIFICATION: "announce",
    Kind.STUCK_PROCESSING: "announce",
    Kind.LOST_RENDITION: "redrive",
    Kind.ORPHAN_FOUND: "tag",
    Kind.ORPHAN_EXPIRED: "remove",
}


def _ids(finding: Finding) -> dict[str, object]:
    traced = None if finding.event is None else trace_id(finding.event.traceparent)
    return {**finding.as_json(), "trace_id": traced}
