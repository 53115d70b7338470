"""From an upload in the bucket to its renditions there. What that means for the asset is decided by ``process``."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

import structlog

from darkroom.assets import Asset
from darkroom.contracts.events import AssetReady, AssetUploaded, Original, Rendition
from darkroom.contracts.failures import FailureCode
from darkroom.inbox.outage import Outage
from darkroom.life.rejected import RejectedOriginal, RejectedOriginals
from darkroom.tracing import spans
from processor.classifier import Classifier, ClassifierFailed, OnFailure, Picture
from processor.imaging.failure import DecoderUnavailable, Rejected
from processor.imaging.rendition import Limits, Rendered, RenditionBytes, RenditionSpec
from processor.objects import (
    Bucket,
    CalledOff,
    DownloadRefused,
    Fetched,
    ObjectMissing,
    StorageFailed,
)

log = structlog.get_logger()


class Decoder(Protocol):
    """Turns a picture's bytes, in pieces, into renditions, where a hostile picture can harm nobody."""

    def render(
        self,
        data: Sequence[bytes],
        specs: Sequence[RenditionSpec],
        limits: Limits,
        *,
        cancelled: threading.Event | None = None,
    ) -> Rendered: ...

    def probe(self, *, cancelled: threading.Event | None = None) -> None:
        """See whether pictures can be decoded at all; whatever this raises means that they cannot now."""


class Retryable(Exception):
    """This attempt failed for a reason that may pass. ``code`` is the asset's failure if it never does."""

    def __init__(self, code: FailureCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Rendering:
    """Downloads, decodes, classifies and stores. Knows of no lease and writes to no database. Thread-safe."""

    bucket: Bucket
    decoder: Decoder
    specs: tuple[RenditionSpec, ...]
    limits: Limits
    max_upload_bytes: int
    rejected_originals: RejectedOriginals = RejectedOriginals.KEEP
    classifier: Classifier | None = None

    def render(
        self, asset: Asset, uploaded: AssetUploaded, *, cancelled: threading.Event, still_ours: Callable[[], None]
    ) -> AssetReady:
        """Make the renditions of an upload; gives what is to be told of them.

        ``still_ours`` raises when another worker took the event over; asked before anything in the bucket is replaced.

        Raises:
            Rejected: this file can never have renditions.
            Retryable: it failed, and may not the next time.
            Outage: S3 or the decoder cannot be used now, for any file.
            CalledOff, Cancelled: ``cancelled`` was set.
            Exception: whatever ``still_ours`` raises.

        """
        try:
            original = self._fetch(asset, uploaded, cancelled)
            with spans.span("decode", attributes={"darkroom.bytes": asset.size}):
                rendered = self.decoder.render(original.chunks, self.specs, self.limits, cancelled=cancelled)
            labels = self._classify(asset, rendered)
            renditions = tuple(self._store(asset, made, cancelled, still_ours) for made in rendered.renditions)
        except ObjectMissing as error:
            raise Retryable(FailureCode.OBJECT_MISSING, str(error)) from error
        except StorageFailed as error:
            self._blame(error)
            raise Retryable(FailureCode.RETRIES_EXHAUSTED, str(error)) from error
        except DecoderUnavailable as error:
            # Raised before a child was given the picture, which therefore is not to blame.
            raise Outage("the decoder", lambda: self.decoder.probe(cancelled=cancelled)) from error
        return AssetReady(
            bucket=self.bucket.name,
            object_key=asset.object_key,
            original=Original(
                etag=original.etag,
                version_id=original.version_id,
                size=asset.size,
                width=rendered.width,
                height=rendered.height,
                format=rendered.format,
            ),
            renditions=renditions,
            labels=labels,
        )

    def rejected(self, asset: Asset, uploaded: AssetUploaded, rejected: Rejected) -> RejectedOriginal | None:
        """What is to become of an original once its asset is FAILED; None: nothing."""
        if self.rejected_originals is RejectedOriginals.KEEP:
            return None
        return RejectedOriginal(
            asset_id=asset.id,
            object_key=asset.object_key,
            version_id=uploaded.version_id,
            policy=self.rejected_originals,
            code=rejected.code,
        )

    def _fetch(self, asset: Asset, uploaded: AssetUploaded, cancelled: threading.Event) -> Fetched:
        if uploaded.size == 0:
            raise Rejected(FailureCode.EMPTY_OBJECT, "the uploaded object has no bytes")
        if asset.size > self.max_upload_bytes:
            raise Rejected(FailureCode.TOO_LARGE, f"{asset.size} bytes; at most {self.max_upload_bytes} are processed")
        try:
            with spans.span("download", kind=spans.SpanKind.CLIENT, attributes={"darkroom.bytes": asset.size}):
                original = self.bucket.fetch(
                    asset.object_key,
                    version_id=uploaded.version_id,
                    size=asset.size,
                    cancelled=cancelled,
                    hashed=asset.checksum_sha256 is not None,
                )
        except DownloadRefused as error:
            code = FailureCode.SIZE_MISMATCH if error.size else FailureCode.EMPTY_OBJECT
            raise Rejected(code, f"{asset.size} bytes were declared, {error.size} were uploaded") from error
        if original.sha256 != asset.checksum_sha256:
            raise Rejected(FailureCode.CHECKSUM_MISMATCH, f"SHA-256 is {original.sha256}, not {asset.checksum_sha256}")
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
            with spans.span("classify"):
                return labels | self.classifier.labels(picture)
        except ClassifierFailed as error:
            log.warning("classifier_failed", reason=str(error))
            match self.classifier.on_failure:
                case OnFailure.SKIP:
                    return labels
                case OnFailure.RETRY:
                    raise Retryable(FailureCode.RETRIES_EXHAUSTED, f"classifier: {error}") from error
                case _ as never:
                    assert_never(never)

    def _store(
        self, asset: Asset, made: RenditionBytes, cancelled: threading.Event, still_ours: Callable[[], None]
    ) -> Rendition:
        if cancelled.is_set():
            raise CalledOff
        key = f"assets/{asset.id}/{made.name}.{made.extension}"
        attributes: dict[str, str | int] = {"darkroom.rendition": made.name, "darkroom.bytes": len(made.data)}
        with spans.span("upload", kind=spans.SpanKind.CLIENT, attributes=attributes):
            self.bucket.store(key, made.data, content_type=made.content_type, still_ours=still_ours)
        return Rendition(
            name=made.name,
            object_key=key,
            content_type=made.content_type,
            size=len(made.data),
            width=made.width,
            height=made.height,
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
