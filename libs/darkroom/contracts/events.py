"""The event types and the shape of each type's data.

An event's data, together with its envelope, is all that is needed to fold an asset's state: nothing about an asset is
stored that its stream does not say. Readers ignore fields they do not know, so adding one is not a breaking change.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

UUID_PATTERN = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
AssetId = Annotated[str, StringConstraints(pattern=UUID_PATTERN)]
EventId = Annotated[str, StringConstraints(pattern=UUID_PATTERN)]
OwnerId = Annotated[str, StringConstraints(min_length=1)]


class EventType(StrEnum):
    """Every type of event; the value is the CloudEvents ``type``."""

    ASSET_REGISTERED = "AssetRegistered"
    ASSET_UPLOADED = "AssetUploaded"
    ASSET_PROCESSING = "AssetProcessing"
    ASSET_READY = "AssetReady"
    ASSET_FAILED = "AssetFailed"
    ASSET_EXPIRED = "AssetExpired"
    ASSET_TRASHED = "AssetTrashed"
    ASSET_RESTORED = "AssetRestored"
    ASSET_PURGED = "AssetPurged"
    ASSET_REDRIVEN = "AssetRedriven"


class Value(BaseModel):
    """A frozen value that tolerates fields added by later versions."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class EventData(Value):
    """What one event says. ``event_type`` and ``data_version`` name its schema."""

    event_type: ClassVar[EventType]
    data_version: ClassVar[int] = 1

    @classmethod
    def dataschema(cls) -> str:
        """The URI that names this type's schema and its version."""
        return f"urn:darkroom:schema:{cls.event_type}:{cls.data_version}"


class Original(Value):
    """The uploaded object as it was found: ``size`` in bytes, width and height in pixels after EXIF orientation."""

    etag: str
    version_id: str | None = None
    size: int = Field(ge=0)
    width: int = Field(ge=1)
    height: int = Field(ge=1)
    format: str


class Rendition(Value):
    """One derived picture in the bucket: ``size`` in bytes, width and height in pixels."""

    name: str
    object_key: str
    content_type: str
    size: int = Field(ge=1)
    width: int = Field(ge=1)
    height: int = Field(ge=1)


class Failure(Value):
    """Why an asset FAILED: a ``failures.FailureCode`` for programs and a sentence for people."""

    code: str
    message: str


class AssetRegistered(EventData):
    """An owner announced an upload; ``size`` is the declared number of bytes. ``reference`` and ``metadata`` are the
    owner's own."""

    event_type = EventType.ASSET_REGISTERED

    idempotency_key: str
    request_hash: str
    filename: str
    content_type: str
    size: int = Field(ge=1)
    checksum_sha256: str | None = None
    object_key: str
    reference: str | None = None
    metadata: dict[str, str] | None = None


class AssetUploaded(EventData):
    """S3 has the original. Published by the bridge, so it carries no sequence and no owner."""

    event_type = EventType.ASSET_UPLOADED

    bucket: str
    object_key: str
    etag: str | None = None
    version_id: str | None = None
    size: int | None = Field(default=None, ge=0)
    sequencer: str | None = None
    uploaded_at: datetime | None = None


class AssetProcessing(EventData):
    """A processor began with the original that ``upload_event_id`` announced."""

    event_type = EventType.ASSET_PROCESSING

    upload_event_id: EventId


class AssetReady(EventData):
    """Every rendition exists in ``bucket`` and decodes to the size recorded here.

    ``labels`` are texts by name: what the processor saw in the picture (docs/labels.md), and what the installation's
    own classifier says of it.
    """

    event_type = EventType.ASSET_READY

    bucket: str
    object_key: str
    original: Original
    renditions: tuple[Rendition, ...]
    labels: dict[str, str] = Field(default_factory=dict)


class AssetFailed(EventData):
    """The original will never become READY; retrying cannot help."""

    event_type = EventType.ASSET_FAILED

    failure: Failure


class AssetExpired(EventData):
    """Nothing was uploaded in the time given."""

    event_type = EventType.ASSET_EXPIRED


class AssetTrashed(EventData):
    """The owner put the asset into the trash; downloads are refused."""

    event_type = EventType.ASSET_TRASHED


class AssetRestored(EventData):
    """The owner took the asset out of the trash."""

    event_type = EventType.ASSET_RESTORED


class AssetPurged(EventData):
    """The asset is given up for good: its original and renditions are being removed, and nobody can have them any
    more. The record stays as a tombstone."""

    event_type = EventType.ASSET_PURGED


class AssetRedriven(EventData):
    """Somebody had an upload processed anew that had ended before. ``by`` names who, ``reason`` says why."""

    event_type = EventType.ASSET_REDRIVEN

    upload_event_id: EventId
    by: str = Field(min_length=1)
    reason: str


EVENT_DATA: dict[EventType, type[EventData]] = {
    data.event_type: data
    for data in (
        AssetRegistered,
        AssetUploaded,
        AssetProcessing,
        AssetReady,
        AssetFailed,
        AssetExpired,
        AssetTrashed,
        AssetRestored,
        AssetPurged,
        AssetRedriven,
    )
}
"""From a type to the model of its data; total over ``EventType``."""
