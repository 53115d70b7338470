"""An asset's state is the fold of its stream: ``apply`` is the one place that knows what an event does to it."""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from functools import reduce
from typing import NoReturn

from pydantic import Field

from darkroom.contracts.envelope import Event
from darkroom.contracts.events import (
    AssetExpired,
    AssetFailed,
    AssetId,
    AssetProcessing,
    AssetPurged,
    AssetReady,
    AssetRedriven,
    AssetRegistered,
    AssetRestored,
    AssetTrashed,
    EventId,
    Failure,
    Original,
    OwnerId,
    Rendition,
    Value,
)


class Status(StrEnum):
    """Where an asset is in its life."""

    UPLOADING = "UPLOADING"
    PROCESSING = "PROCESSING"
    READY = "READY"
    FAILED = "FAILED"
    EXPIRED = "EXPIRED"
    TRASHED = "TRASHED"
    PURGED = "PURGED"

    @property
    def terminal(self) -> bool:
        """Whether processing is over."""
        return self not in (Status.UPLOADING, Status.PROCESSING)


class Upload(Value):
    """Which AssetUploaded is being, or was, processed."""

    event_id: EventId


class Asset(Value):
    """One asset. ``version`` is the sequence of the last event in its stream; ``size`` the declared bytes."""

    id: AssetId
    owner_id: OwnerId
    idempotency_key: str
    request_hash: str
    filename: str
    content_type: str
    size: int = Field(ge=1)
    checksum_sha256: str | None = None
    object_key: str
    reference: str | None = None
    metadata: dict[str, str] | None = None
    status: Status
    status_before_trash: Status | None = None
    version: int = Field(ge=1)
    upload: Upload | None = None
    failure: Failure | None = None
    original: Original | None = None
    renditions: tuple[Rendition, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    correlation_id: str | None = None
    traceparent: str | None = None
    created_at: datetime
    updated_at: datetime


class IllegalTransition(ValueError):
    """The event cannot follow the asset's state. The message names both."""


def apply(asset: Asset | None, event: Event) -> Asset:  # noqa: C901 -- one branch a transition
    """The asset after ``event``.

    Raises:
        IllegalTransition: the event is not the next of this stream, or its type cannot follow this status.

    """
    if asset is None:
        return _registered(event)
    if event.asset_id != asset.id or event.sequence != asset.version + 1:
        raise IllegalTransition(
            f"event {event.sequence} of asset {event.asset_id} cannot follow version {asset.version} of {asset.id}"
        )
    match asset.status, event.data:
        case Status.UPLOADING, AssetProcessing(upload_event_id=upload):
            changed: dict[str, object] = {"status": Status.PROCESSING, "upload": Upload(event_id=upload)}
        case Status.PROCESSING, AssetReady() as ready:
            changed = {
                "status": Status.READY,
                "original": ready.original,
                "renditions": ready.renditions,
                "labels": ready.labels,
            }
        case Status.PROCESSING, AssetFailed(failure=failure):
            changed = {"status": Status.FAILED, "failure": failure}
        case ((Status.READY | Status.FAILED), AssetRedriven(upload_event_id=again)) if _was_upload(asset, again):
            # As it was when processing began: what the last end said no longer holds.
            changed = {
                "status": Status.PROCESSING,
                "failure": None,
                "original": None,
                "renditions": (),
                "labels": {},
            }
        case Status.UPLOADING, AssetExpired():
            changed = {"status": Status.EXPIRED}
        case ((Status.READY | Status.FAILED), AssetTrashed()):
            changed = {"status": Status.TRASHED, "status_before_trash": asset.status}
        case Status.TRASHED, AssetRestored():
            changed = {"status": asset.status_before_trash, "status_before_trash": None}
        case Status.TRASHED, AssetPurged():
            changed = {"status": Status.PURGED, "renditions": ()}
        case _:
            _illegal(asset, event)
    return asset.model_copy(update={**changed, "version": event.sequence, "updated_at": event.occurred_at})


def fold(stream: Iterable[Event]) -> Asset:
    """The asset that a stream tells of, from its first event on.

    Raises:
        IllegalTransition: the stream is empty, has a gap or an impossible step.

    """
    asset = reduce(apply, stream, None)
    if asset is None:
        raise IllegalTransition("an empty stream is no asset")
    return asset


def _registered(event: Event) -> Asset:
    if not isinstance(event.data, AssetRegistered) or event.sequence != 1 or event.owner_id is None:
        raise IllegalTransition(
            f"a stream begins with AssetRegistered 1 of an owner, not {event.type} {event.sequence}"
        )
    return Asset(
        id=event.asset_id,
        owner_id=event.owner_id,
        **event.data.model_dump(),
        status=Status.UPLOADING,
        version=1,
        correlation_id=event.correlation_id,
        traceparent=event.traceparent,
        created_at=event.occurred_at,
        updated_at=event.occurred_at,
    )


def _was_upload(asset: Asset, event_id: str) -> bool:
    return asset.upload is not None and asset.upload.event_id == event_id


def _illegal(asset: Asset, event: Event) -> NoReturn:
    raise IllegalTransition(f"{event.type} cannot follow {asset.status} (asset {asset.id}, version {asset.version})")
