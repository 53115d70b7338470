"""One AssetUploaded from Kafka to its end: claim, start, work, finish.

The work may happen more than once, its effect does not: bytes go to keys that depend on the asset alone, and what the
database says changes in one transaction that only the last holder of the lease can commit.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import assert_never

import structlog
from pymongo.errors import PyMongoError

from darkroom.assets import Asset, Change, Status, change
from darkroom.contracts.envelope import Event, MalformedEvent, from_record
from darkroom.contracts.events import (
    AssetFailed,
    AssetProcessing,
    AssetUploaded,
    EventData,
    Failure,
)
from darkroom.contracts.failures import FailureCode
from darkroom.inbox import SHORTEST_WAIT, Claim, Claimed, Done, HeldElsewhere, Inbox, Lease, LeaseLost
from darkroom.inbox.consumer import Delivery, Finished, Later, Verdict
from darkroom.inbox.keeper import LeaseKeeper
from darkroom.inbox.outage import Outage, full_jitter, told, unreachable
from darkroom.inbox.tracing import Handling, handling
from darkroom.life.objects import ObjectStore, RemovalFailed
from darkroom.life.rejected import RejectedOriginal
from darkroom.tracing import spans
from processor.dead_letters import DeadLetters
from processor.imaging.failure import Cancelled, Rejected
from processor.objects import CalledOff
from processor.rendering import Rendering, Retryable
from processor.store import Conflict, Store

log = structlog.get_logger()

ANOTHER_SUSPECT = 1.0
"""Seconds that an event under suspicion waits at most before it asks whether it is its turn."""


class End(StrEnum):
    """What became of an upload."""

    READY = "ready"
    FAILED = "failed"
    GIVEN_UP = "given_up"
    IGNORED = "ignored"
    DEAD_LETTER = "dead_letter"


class Observer:
    """Told what becomes of uploads, from several threads; does nothing by itself. Must be quick and not raise."""

    def ended(self, end: End) -> None:
        """An upload came to its end here."""

    def failed(self, code: FailureCode) -> None:
        """An asset became FAILED."""

    def retried(self) -> None:
        """An attempt failed and will be made again."""


def _utcnow() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class Processor:
    """Handles the records of ``assets.uploaded``. Thread-safe; a ``darkroom.inbox.consumer.Handler``."""

    inbox: Inbox
    keeper: LeaseKeeper
    store: Store
    rendering: Rendering
    originals: ObjectStore
    dead_letters: DeadLetters
    max_attempts: int
    backoff_seconds: float
    observer: Observer = field(default_factory=Observer)
    now: Callable[[], datetime] = field(default=_utcnow)
    suspects: threading.Lock = field(default_factory=threading.Lock)
    """Held while an event is worked on whose earlier holder vanished."""

    def __call__(self, delivery: Delivery) -> Verdict:
        """Bring the record to its end, or say when to try again."""
        try:
            return self._handle(delivery)
        except Outage:
            raise
        except Exception as defect:
            if unreachable(defect):
                raise Outage("MongoDB", self.store.probe) from defect
            if delivery.defects + 1 < self.max_attempts:
                raise
            # No attempt was counted in the inbox, or else the work itself would have come to its end.
            log.exception("record_given_up", partition=delivery.partition, offset=delivery.offset)
            self._bury(delivery, told(defect))
            return Finished()

    def _handle(self, delivery: Delivery) -> Verdict:
        try:
            event, uploaded, asset = self._read(delivery)
        except MalformedEvent as error:
            log.warning("record_refused", reason=str(error), partition=delivery.partition, offset=delivery.offset)
            self._bury(delivery, str(error))
            return Finished()
        # In the asset's trace, which is the client's if it sent one; the bridge, which cannot know that, is in another.
        with handling(event, delivery, consumer=self.inbox.consumer, trace=asset.traceparent) as attempt:
            return self._take(attempt, delivery, event, uploaded, asset)

    def _take(
        self, attempt: Handling, delivery: Delivery, event: Event, uploaded: AssetUploaded, asset: Asset
    ) -> Verdict:
        with spans.span("claim"):
            claim, asset = self._claim(event, asset, owner=delivery.owner)
        if not _abandoned(claim):
            return self._follow(attempt, claim, delivery, event, uploaded, asset)
        # Whatever kills a process takes with it all that runs there. Were the neighbours to run beside it again each
        # time, they would be given up together with it; so of such events one is claimed at a time.
        if not self.suspects.acquire(blocking=False):
            attempt.nothing_done()
            return Later(full_jitter(1, first=ANOTHER_SUSPECT, cap=ANOTHER_SUSPECT))
        try:
            with spans.span("claim"):
                claim = self.inbox.claim(event.id, owner=delivery.owner)
            return self._follow(attempt, claim, delivery, event, uploaded, asset)
        finally:
            self.suspects.release()

    def _bury(self, delivery: Delivery, reason: str) -> None:
        self.dead_letters.put(delivery, reason)
        self.observer.ended(End.DEAD_LETTER)

    def _follow(
        self,
        attempt: Handling,
        claim: Claim,
        delivery: Delivery,
        event: Event,
        uploaded: AssetUploaded,
        asset: Asset,
    ) -> Verdict:
        match claim:
            case Done():
                attempt.ended("done before")
                return Finished()
            case HeldElsewhere(seconds):
                attempt.nothing_done()
                return Later(max(seconds, SHORTEST_WAIT))
            case Claimed(lease):
                attempt.number(lease.attempts)
                with (
                    structlog.contextvars.bound_contextvars(fence=lease.fence),
                    self.keeper.hold(lease, lost=delivery.cancelled),
                ):
                    return self._work_on(_Job(event, uploaded, lease, delivery), asset)
            case _:
                assert_never(claim)

    def _read(self, delivery: Delivery) -> tuple[Event, AssetUploaded, Asset]:
        if delivery.unreadable is not None:
            raise MalformedEvent(delivery.unreadable)
        event = from_record(key=delivery.key, value=delivery.value, record_headers=delivery.headers)
        if not isinstance(event.data, AssetUploaded):
            raise MalformedEvent(f"header ce_type: {event.type} does not belong on {delivery.topic}")
        try:
            asset = self.store.find(event.asset_id)
        except PyMongoError:
            raise
        except Exception as error:
            # There is nothing to record a failure in. Once it is repaired, the dead letter can be sent again.
            raise MalformedEvent(f"asset {event.asset_id}: its document cannot be read: {told(error)}") from error
        if asset is None:
            raise MalformedEvent(f"header ce_subject: asset {event.asset_id} was never registered")
        # Only the configured bucket and the registered key are ever read, whatever an event says.
        if event.data.bucket != self.rendering.bucket.name:
            raise MalformedEvent(f"bucket: {event.data.bucket!r} is not this installation's bucket")
        if event.data.object_key != asset.object_key:
            raise MalformedEvent(f"object_key: {event.data.object_key!r} is not the asset's {asset.object_key!r}")
        return event, event.data, asset

    def _claim(self, event: Event, asset: Asset, *, owner: str) -> tuple[Claim, Asset]:
        """Claim the event, and start an asset that waits for it in the same transaction. Gives the asset after that.

        An event over which an earlier holder vanished is not claimed here.
        """
        if asset.status is Status.UPLOADING:
            try:
                started = self._caused_by(event, asset, AssetProcessing(upload_event_id=event.id))
                claim = self.store.begin(started, event.id, owner=owner, abandoned=False)
            except Conflict:
                log.info("asset_moved_on")
            except Exception as defect:
                if unreachable(defect):
                    raise
                # Claimed by itself it costs an attempt, so that what can never be written comes to an end.
                log.warning("not_begun", error=told(defect))
            else:
                return claim, started.after if isinstance(claim, Claimed) else asset
        return self.inbox.claim(event.id, owner=owner, abandoned=False), asset

    def _work_on(self, job: "_Job", asset: Asset) -> Verdict:
        try:
            return self._bring_to_its_end(job, asset)
        except LeaseLost:
            log.warning("lease_lost")
            return Later(SHORTEST_WAIT)
        except (Cancelled, CalledOff):
            self._call_off(job)
            return Later(SHORTEST_WAIT)
        except Outage:
            # The attempt is given back here and not when work goes on: this process may be gone by then.
            self._call_off(job)
            raise

    def _bring_to_its_end(self, job: "_Job", asset: Asset) -> Verdict:
        if job.lease.attempts > self.max_attempts:
            return self._give_up(job, FailureCode.RETRIES_EXHAUSTED, job.lease.last_error or "the worker died")
        try:
            return self._decided_anew(asset, lambda now: self._attempt(job, now))
        except Retryable as error:
            return self._retry(job, error)
        except (LeaseLost, Cancelled, CalledOff, Outage):
            raise
        except Exception as defect:
            if unreachable(defect):
                raise
            # An asset that brings out a defect in this code must come to an end as well, so it costs attempts.
            log.exception("attempt_defect")
            return self._retry(job, Retryable(FailureCode.RETRIES_EXHAUSTED, told(defect)))

    def _decided_anew(self, asset: Asset, decide: Callable[[Asset], Verdict]) -> Verdict:
        while True:
            try:
                return decide(asset)
            except Conflict:
                # Somebody else moved the asset on, such as the holder before us: decide by what it is now.
                asset = self._again(asset.id)

    def _again(self, asset_id: str) -> Asset:
        asset = self.store.find(asset_id)
        if asset is None:
            raise AssertionError(f"asset {asset_id} was there a moment ago and assets are never deleted")
        return asset

    def _attempt(self, job: "_Job", asset: Asset) -> Verdict:
        if (started := self._started(job, asset)) is None:
            return self._ignore(job, asset)
        try:
            ready = self.rendering.render(
                started, job.uploaded, cancelled=job.cancelled, still_ours=lambda: self.inbox.renew(job.lease)
            )
        except Rejected as rejected:
            failed = AssetFailed(failure=Failure(code=rejected.code, message=rejected.message))
            original = self.rendering.rejected(asset, job.uploaded, rejected)
            outcome = f"failed: {rejected.code}"
            with spans.span("finish", attributes={"darkroom.outcome": outcome}):
                ended = self._change(job, started, failed)
                self.store.finish(ended, job.lease, outcome=outcome, original=original)
            self._count_failed(End.FAILED, rejected.code)
            log.info("asset_failed", code=rejected.code)
            if original is not None:
                self._put_away(original)
            return Finished()
        with spans.span("finish", attributes={"darkroom.outcome": "ready"}):
            self.store.finish(self._change(job, started, ready), job.lease, outcome="ready")
        self.observer.ended(End.READY)
        log.info("asset_ready", attempts=job.lease.attempts)
        return Finished()

    def _put_away(self, original: RejectedOriginal) -> None:
        # Now that the asset is FAILED; before that, it might still be wanted. What is not done here a sweep does.
        try:
            self.originals.put_away(original)
            self.store.put_away(original.asset_id)
        except (RemovalFailed, PyMongoError) as error:
            log.warning("rejected_original_left", rejected_originals=original.policy, error=str(error))

    def _started(self, job: "_Job", asset: Asset) -> Asset | None:
        """The asset PROCESSING this upload; None if it is another upload's, or past that."""
        if asset.status is Status.UPLOADING:
            begun = self._change(job, asset, AssetProcessing(upload_event_id=job.event.id))
            self.store.start(begun, job.lease)
            return begun.after
        mine = asset.upload is not None and asset.upload.event_id == job.event.id
        return asset if asset.status is Status.PROCESSING and mine else None

    def _ignore(self, job: "_Job", asset: Asset) -> Verdict:
        # An original is written once; a second version of it, or one that comes too late, changes nothing.
        log.info("upload_ignored", status=asset.status)
        self.inbox.complete(job.lease, outcome=f"ignored: asset was {asset.status}")
        self.observer.ended(End.IGNORED)
        return Finished()

    def _retry(self, job: "_Job", error: Retryable) -> Verdict:
        if job.lease.attempts >= self.max_attempts:
            return self._give_up(job, error.code, str(error))
        delay = full_jitter(job.lease.attempts, cap=self.backoff_seconds)
        self.inbox.release(job.lease, delay=delay, error=str(error))
        self.observer.retried()
        log.info("attempt_failed", attempts=job.lease.attempts, retry_in=round(delay, 2), error=str(error))
        return Later(delay)

    def _give_up(self, job: "_Job", code: FailureCode, reason: str) -> Verdict:
        message = f"{self.max_attempts} attempts failed; last: {reason}"
        failed = AssetFailed(failure=Failure(code=code, message=message))

        def record(asset: Asset) -> Verdict:
            if (started := self._started(job, asset)) is None:
                return self._ignore(job, asset)
            with spans.span("finish", attributes={"darkroom.outcome": f"dead: {code}"}):
                self.store.give_up(self._change(job, started, failed), job.lease, outcome=f"dead: {code}")
            self._count_failed(End.GIVEN_UP, code)
            log.warning("asset_given_up", code=code, reason=reason)
            return Finished()

        try:
            return self._decided_anew(self._again(job.event.asset_id), record)
        except (LeaseLost, Outage):
            raise
        except Exception as defect:
            if unreachable(defect):
                raise
            # Not even its failure can be recorded; the watermark moves on all the same, and somebody must look.
            log.exception("failure_not_recorded", reason=reason)
            self._bury(job.delivery, f"{reason}; and its failure could not be recorded: {told(defect)}")
            self.inbox.release(job.lease, error=reason)
            return Finished()

    def _count_failed(self, end: End, code: FailureCode) -> None:
        self.observer.ended(end)
        self.observer.failed(code)

    def _call_off(self, job: "_Job") -> None:
        try:
            self.inbox.release(job.lease, refund=True)
        except LeaseLost:
            log.info("lease_lost")

    def _change(self, job: "_Job", asset: Asset, data: EventData) -> Change:
        return self._caused_by(job.event, asset, data)

    def _caused_by(self, event: Event, asset: Asset, data: EventData) -> Change:
        return change(
            asset,
            data,
            occurred_at=self.now(),
            causation_id=event.id,
            correlation_id=event.correlation_id,
            # Of the step that writes it; without a recorded one, the asset's own.
            traceparent=spans.current(),
        )


@dataclass(frozen=True)
class _Job:
    """One attempt at one event."""

    event: Event
    uploaded: AssetUploaded
    lease: Lease
    delivery: Delivery

    @property
    def cancelled(self) -> threading.Event:
        """Set when the work is to be called off."""
        return self.delivery.cancelled


def _abandoned(claim: Claim) -> bool:
    """Whether an earlier holder of the event vanished; also if this very process claimed it since."""
    match claim:
        case Claimed(lease):
            return lease.abandoned > 0
        case HeldElsewhere(abandoned=abandoned):
            return abandoned
        case Done():
            return False
        case _:
            assert_never(claim)
