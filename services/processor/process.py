"""One AssetUploaded from Kafka to its end: claim, start, work, finish.

The work may happen more than once, its effect does not: bytes go to keys that depend on the asset alone, and what the
database says changes in one transaction that only the last holder of the lease can commit.
"""

import hashlib
import threading
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol, assert_never

import structlog
from pymongo.errors import AutoReconnect, ConnectionFailure, PyMongoError

from darkroom.assets import Asset, Change, Status, change
from darkroom.contracts.envelope import Event, MalformedEvent, from_record
from darkroom.contracts.events import (
    AssetFailed,
    AssetProcessing,
    AssetReady,
    AssetUploaded,
    EventData,
    Failure,
    Original,
    Rendition,
)
from darkroom.contracts.failures import FailureCode
from darkroom.inbox import Claimed, Done, HeldElsewhere, Inbox, Lease, LeaseLost
from darkroom.inbox.consumer import Delivery, Finished, Later, Outage, Verdict, full_jitter
from darkroom.inbox.keeper import LeaseKeeper
from processor.classifier import Classifier, ClassifierFailed, OnFailure, Picture
from processor.dead_letters import DeadLetters
from processor.imaging.failure import Cancelled, DecoderUnavailable, Rejected
from processor.imaging.rendition import Limits, Rendered, RenditionSpec
from processor.objects import (
    Bucket,
    CalledOff,
    DownloadRefused,
    Fetched,
    ObjectMissing,
    RejectedOriginals,
    StorageFailed,
)
from processor.store import Conflict, Store

log = structlog.get_logger()

SHORTEST_WAIT = 0.05
"""Seconds. A lease that has just run out is asked for again at once, but not in a spin."""


class Decoder(Protocol):
    """Turns a picture's bytes into renditions, where a hostile picture can harm nobody."""

    def render(
        self, data: bytes, specs: Sequence[RenditionSpec], limits: Limits, *, cancelled: threading.Event | None = None
    ) -> Rendered: ...


class _Retryable(Exception):
    """This attempt failed for a reason that may pass. ``code`` is the asset's failure if it never does."""

    def __init__(self, code: FailureCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def _utcnow() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class Processor:
    """Handles the records of ``assets.uploaded``. Thread-safe; a ``darkroom.inbox.consumer.Handler``."""

    inbox: Inbox
    keeper: LeaseKeeper
    store: Store
    bucket: Bucket
    decoder: Decoder
    dead_letters: DeadLetters
    specs: tuple[RenditionSpec, ...]
    limits: Limits
    max_upload_bytes: int
    max_attempts: int
    backoff_seconds: float
    rejected_originals: RejectedOriginals = RejectedOriginals.KEEP
    classifier: Classifier | None = None
    now: Callable[[], datetime] = field(default=_utcnow)

    def __call__(self, delivery: Delivery) -> Verdict:
        """Bring the record to its end, or say when to try again."""
        try:
            return self._handle(delivery)
        except PyMongoError as error:
            if _unreachable(error):
                raise Outage("MongoDB", self.store.probe) from error
            raise

    def _handle(self, delivery: Delivery) -> Verdict:
        try:
            event, uploaded, asset = self._read(delivery)
        except MalformedEvent as error:
            log.warning("record_refused", reason=str(error), partition=delivery.partition, offset=delivery.offset)
            self.dead_letters.put(delivery, str(error))
            return Finished()
        claim = self.inbox.claim(event.id, owner=delivery.owner)
        match claim:
            case Done():
                return Finished()
            case HeldElsewhere(seconds):
                return Later(max(seconds, SHORTEST_WAIT))
            case Claimed(lease):
                with (
                    structlog.contextvars.bound_contextvars(asset_id=asset.id, event_id=event.id, fence=lease.fence),
                    self.keeper.hold(lease, lost=delivery.cancelled),
                ):
                    return self._work_on(_Job(event, uploaded, lease, delivery.cancelled), asset)
            case _:
                assert_never(claim)

    def _read(self, delivery: Delivery) -> tuple[Event, AssetUploaded, Asset]:
        event = from_record(key=delivery.key, value=delivery.value, record_headers=delivery.headers)
        if not isinstance(event.data, AssetUploaded):
            raise MalformedEvent(f"header ce_type: {event.type} does not belong on {delivery.topic}")
        asset = self.store.find(event.asset_id)
        if asset is None:
            raise MalformedEvent(f"header ce_subject: asset {event.asset_id} was never registered")
        # Only the configured bucket and the registered key are ever read, whatever an event says.
        if event.data.bucket != self.bucket.name:
            raise MalformedEvent(f"bucket: {event.data.bucket!r} is not this installation's bucket")
        if event.data.object_key != asset.object_key:
            raise MalformedEvent(f"object_key: {event.data.object_key!r} is not the asset's {asset.object_key!r}")
        return event, event.data, asset

    def _work_on(self, job: "_Job", asset: Asset) -> Verdict:
        try:
            while True:
                try:
                    return self._attempt(job, asset)
                except Conflict:
                    # Somebody else moved the asset on, such as the holder before us: decide by what it is now.
                    asset = self._again(asset.id)
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

    def _again(self, asset_id: str) -> Asset:
        asset = self.store.find(asset_id)
        if asset is None:
            raise AssertionError(f"asset {asset_id} was there a moment ago and assets are never deleted")
        return asset

    def _attempt(self, job: "_Job", asset: Asset) -> Verdict:
        mine = asset.upload is not None and asset.upload.event_id == job.event.id
        if asset.status is Status.UPLOADING:
            started = self._change(job, asset, AssetProcessing(upload_event_id=job.event.id))
            self.store.start(started, job.lease)
            asset = started.after
        elif asset.status is not Status.PROCESSING or not mine:
            # An original is written once; a second version of it, or one that comes too late, changes nothing.
            log.info("upload_ignored", status=asset.status)
            self.inbox.complete(job.lease, outcome=f"ignored: asset was {asset.status}")
            return Finished()
        if job.lease.attempts > self.max_attempts:
            return self._give_up(job, asset, FailureCode.RETRIES_EXHAUSTED, job.lease.last_error or "the worker died")
        try:
            ready = self._render(job, asset)
        except Rejected as rejected:
            failed = AssetFailed(failure=Failure(code=rejected.code, message=rejected.message))
            self.store.finish(self._change(job, asset, failed), job.lease, outcome=f"failed: {rejected.code}")
            log.info("asset_failed", code=rejected.code)
            self._put_away(job, asset, rejected)
            return Finished()
        except _Retryable as error:
            return self._retry(job, asset, error)
        except (LeaseLost, Cancelled, CalledOff, Outage, PyMongoError):
            raise
        except Exception as defect:
            # A picture that brings out a defect in this code must come to an end as well, so it costs attempts.
            log.exception("attempt_defect")
            reason = f"{type(defect).__name__}: {defect}"
            return self._retry(job, asset, _Retryable(FailureCode.RETRIES_EXHAUSTED, reason))
        self.store.finish(self._change(job, asset, ready), job.lease, outcome="ready")
        log.info("asset_ready", attempts=job.lease.attempts)
        return Finished()

    def _render(self, job: "_Job", asset: Asset) -> AssetReady:
        try:
            original = self._fetch(job, asset)
            rendered = self.decoder.render(original.data, self.specs, self.limits, cancelled=job.cancelled)
            labels = self._classify(asset, rendered)
            return self._store_renditions(job, asset, original, rendered, labels)
        except ObjectMissing as error:
            raise _Retryable(FailureCode.OBJECT_MISSING, str(error)) from error
        except StorageFailed as error:
            self._blame(error)
            raise _Retryable(FailureCode.RETRIES_EXHAUSTED, str(error)) from error
        except DecoderUnavailable as error:
            raise _Retryable(FailureCode.RETRIES_EXHAUSTED, str(error)) from error

    def _fetch(self, job: "_Job", asset: Asset) -> Fetched:
        if job.uploaded.size == 0:
            raise Rejected(FailureCode.EMPTY_OBJECT, "the uploaded object has no bytes")
        if asset.size > self.max_upload_bytes:
            raise Rejected(FailureCode.TOO_LARGE, f"{asset.size} bytes; at most {self.max_upload_bytes} are processed")
        try:
            original = self.bucket.fetch(
                asset.object_key, version_id=job.uploaded.version_id, size=asset.size, cancelled=job.cancelled
            )
        except DownloadRefused as error:
            code = FailureCode.SIZE_MISMATCH if error.size else FailureCode.EMPTY_OBJECT
            raise Rejected(code, f"{asset.size} bytes were declared, {error.size} were uploaded") from error
        if asset.checksum_sha256 is not None:
            actual = b64encode(hashlib.sha256(original.data).digest()).decode()
            if actual != asset.checksum_sha256:
                raise Rejected(FailureCode.CHECKSUM_MISMATCH, f"SHA-256 is {actual}, not {asset.checksum_sha256}")
        return original

    def _classify(self, asset: Asset, rendered: Rendered) -> dict[str, str]:
        labels = dict(rendered.labels)
        if self.classifier is None:
            return labels
        largest = max(rendered.renditions, key=lambda made: made.width * made.height)
        picture = Picture(
            asset_id=asset.id,
            content_type=largest.content_type,
            width=largest.width,
            height=largest.height,
            data=largest.data,
            labels=rendered.labels,
        )
        try:
            return labels | self.classifier.labels(picture)
        except ClassifierFailed as error:
            log.warning("classifier_failed", reason=str(error))
            match self.classifier.on_failure:
                case OnFailure.SKIP:
                    return labels
                case OnFailure.RETRY:
                    raise _Retryable(FailureCode.RETRIES_EXHAUSTED, f"classifier: {error}") from error
                case _ as never:
                    assert_never(never)

    def _put_away(self, job: "_Job", asset: Asset, rejected: Rejected) -> None:
        """Tag or delete the original, now that the asset is FAILED. Before that, it might still be wanted.

        A crash or an outage right here leaves the original as it was, which harms nobody; it is not tried again.
        """
        version = job.uploaded.version_id
        try:
            self.bucket.reject(asset.object_key, version_id=version, policy=self.rejected_originals, code=rejected.code)
        except StorageFailed as error:
            log.warning("rejected_original_left", policy=self.rejected_originals, error=str(error))

    def _store_renditions(
        self, job: "_Job", asset: Asset, original: Fetched, rendered: Rendered, labels: dict[str, str]
    ) -> AssetReady:
        renditions = []
        for made in rendered.renditions:
            if job.cancelled.is_set():
                raise CalledOff
            key = f"assets/{asset.id}/{made.name}.{made.extension}"
            self.bucket.store(
                key, made.data, content_type=made.content_type, still_ours=lambda: self.inbox.renew(job.lease)
            )
            renditions.append(
                Rendition(
                    name=made.name,
                    object_key=key,
                    content_type=made.content_type,
                    size=len(made.data),
                    width=made.width,
                    height=made.height,
                )
            )
        return AssetReady(
            bucket=self.bucket.name,
            object_key=asset.object_key,
            original=Original(
                etag=original.etag,
                version_id=original.version_id,
                size=len(original.data),
                width=rendered.width,
                height=rendered.height,
                format=rendered.format,
            ),
            renditions=tuple(renditions),
            labels=labels,
        )

    def _blame(self, error: StorageFailed) -> None:
        """Is it this object, or all of S3? In the second case nobody's attempt is spent.

        Raises:
            Outage: the bucket does not answer at all.

        """
        try:
            self.bucket.probe()
        except Exception as down:
            raise Outage("S3", self.bucket.probe) from down
        log.info("storage_failed", error=str(error))

    def _retry(self, job: "_Job", asset: Asset, error: _Retryable) -> Verdict:
        if job.lease.attempts >= self.max_attempts:
            return self._give_up(job, asset, error.code, str(error))
        delay = full_jitter(job.lease.attempts, cap=self.backoff_seconds)
        self.inbox.release(job.lease, delay=delay, error=str(error))
        log.info("attempt_failed", attempts=job.lease.attempts, retry_in=round(delay, 2), error=str(error))
        return Later(delay)

    def _give_up(self, job: "_Job", asset: Asset, code: FailureCode, reason: str) -> Verdict:
        failed = AssetFailed(failure=Failure(code=code, message=f"{self.max_attempts} attempts failed; last: {reason}"))
        self.store.give_up(self._change(job, asset, failed), job.lease, outcome=f"dead: {code}")
        log.warning("asset_given_up", code=code, reason=reason)
        return Finished()

    def _call_off(self, job: "_Job") -> None:
        try:
            self.inbox.release(job.lease, refund=True)
        except LeaseLost:
            log.info("lease_lost")

    def _change(self, job: "_Job", asset: Asset, data: EventData) -> Change:
        return change(
            asset,
            data,
            occurred_at=self.now(),
            causation_id=job.event.id,
            correlation_id=job.event.correlation_id,
            traceparent=job.event.traceparent,
        )


@dataclass(frozen=True)
class _Job:
    """One attempt at one event."""

    event: Event
    uploaded: AssetUploaded
    lease: Lease
    cancelled: threading.Event


def _unreachable(error: PyMongoError) -> bool:
    """Whether the server was out of reach or changing, rather than refusing what it was asked."""
    return (
        isinstance(error, AutoReconnect | ConnectionFailure)
        or error.timeout
        or error.has_error_label("TransientTransactionError")
        or error.has_error_label("RetryableWriteError")
    )
