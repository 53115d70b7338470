"""What the API answers. URLs are presigned and live for minutes; ask again for fresh ones."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from asset_api.filenames import download_name
from asset_api.presign import Presigner, SignedUpload
from darkroom.assets import Asset, Status
from darkroom.contracts.envelope import timestamp
from darkroom.contracts.events import Original

LABELS = Field(
    description="what is known of a READY picture; `thumbhash` is a blurred stand-in for it, base64 of a ThumbHash",
    examples=[{"thumbhash": "1QcSHQRnh493V4dIh4eXh1h4kJUI", "orientation": "landscape", "kind": "photo"}],
)


class FailureView(BaseModel):
    """Why an asset FAILED."""

    code: str
    message: str


class OriginalView(BaseModel):
    """The uploaded picture as it was found: ``size`` in bytes, width and height in pixels."""

    width: int
    height: int
    format: str
    size: int
    content_type: str
    url: str


class RenditionView(BaseModel):
    """One derived picture: ``size`` in bytes, width and height in pixels."""

    name: str
    width: int
    height: int
    content_type: str
    size: int
    url: str


class AssetView(BaseModel):
    """An asset; ``size`` in bytes as declared. ``original`` and ``renditions`` are there once it is READY."""

    asset_id: str
    status: Status
    version: int
    filename: str
    content_type: str
    size: int
    reference: str | None
    metadata: dict[str, str]
    failure: FailureView | None
    original: OriginalView | None
    renditions: list[RenditionView]
    labels: dict[str, str] = LABELS
    created_at: str = Field(json_schema_extra={"format": "date-time"})
    updated_at: str = Field(json_schema_extra={"format": "date-time"})


class UploadView(BaseModel):
    """How to upload: this method, this URL, exactly these headers, before ``expires_at``."""

    method: Literal["PUT"]
    url: str
    headers: dict[str, str]
    expires_at: str = Field(json_schema_extra={"format": "date-time"})


class RegisteredView(AssetView):
    """The asset of the key; ``upload`` is there as long as it is UPLOADING."""

    upload: UploadView | None


class RenditionSummary(BaseModel):
    """A derived picture, without its URL."""

    name: str
    width: int
    height: int
    content_type: str
    size: int


class AssetSummary(BaseModel):
    """An asset in a list: all but URLs, which ``GET /assets/{asset_id}`` gives."""

    asset_id: str
    status: Status
    version: int
    filename: str
    content_type: str
    size: int
    reference: str | None
    metadata: dict[str, str]
    failure: FailureView | None
    renditions: list[RenditionSummary]
    labels: dict[str, str] = LABELS
    created_at: str = Field(json_schema_extra={"format": "date-time"})
    updated_at: str = Field(json_schema_extra={"format": "date-time"})


class AssetPage(BaseModel):
    """Some of the owner's assets, newest first; ``next_cursor`` is there if there are more."""

    assets: list[AssetSummary]
    next_cursor: str | None


class DownloadView(BaseModel):
    """A URL that works without a token until ``expires_at``, and saves the picture as ``filename``."""

    url: str
    filename: str
    content_type: str
    size: int
    expires_at: str = Field(json_schema_extra={"format": "date-time"})


class EventView(BaseModel):
    """One event of an asset's stream, see ``event_view``; ``data`` is what its type's schema says."""

    event_id: str
    asset_id: str
    sequence: int
    type: str
    data_version: int
    occurred_at: str = Field(json_schema_extra={"format": "date-time"})
    causation_id: str | None
    correlation_id: str | None
    data: dict[str, Any]


class EventPage(BaseModel):
    """Some of an asset's events in their order; ``next_after`` is there if there are more."""

    events: list[EventView]
    next_after: int | None


def summary(asset: Asset) -> AssetSummary:
    """The asset in a list."""
    # An asset that is no longer READY keeps its renditions, but nobody can have them.
    renditions = asset.renditions if asset.status is Status.READY else ()
    shown = [RenditionSummary.model_validate(one.model_dump()) for one in renditions]
    return AssetSummary.model_validate({**_facts(asset), "renditions": shown})


async def download_view(asset: Asset, *, rendition: str | None, presigner: Presigner) -> DownloadView | None:
    """How to download the original of a READY asset, or one of its renditions; None if it has none of that name."""
    if (original := asset.original) is None:
        raise ValueError(f"asset {asset.id} is {asset.status} and has no original that was looked at")
    if rendition is None:
        object_key, content_type, size = asset.object_key, original_type(original), original.size
        name = download_name(asset.filename, format=original.format)
    else:
        found = next((one for one in asset.renditions if one.name == rendition), None)
        if found is None:
            return None
        object_key, content_type, size = found.object_key, found.content_type, found.size
        name = download_name(asset.filename, format=content_type.removeprefix("image/"), rendition=found.name)
    signed = await presigner.download(object_key, content_type=content_type, filename=name)
    return DownloadView(
        url=signed.url, filename=name, content_type=content_type, size=size, expires_at=timestamp(signed.expires_at)
    )


def original_type(original: Original) -> str:
    """What an original is served as: it was decoded as that, whatever the client declared."""
    return f"image/{original.format.lower()}"


async def asset_view(asset: Asset, *, presigner: Presigner) -> AssetView:
    """The asset as its owner sees it."""
    return AssetView.model_validate(await _fields(asset, presigner=presigner))


async def registered_view(asset: Asset, *, presigner: Presigner, until: datetime) -> RegisteredView:
    """The asset, and how to upload it if that is still to be done: before ``until``, when it expires."""
    signed = await presigner.upload(asset, until=until) if asset.status is Status.UPLOADING else None
    upload = None if signed is None else _upload(signed)
    return RegisteredView.model_validate({**await _fields(asset, presigner=presigner), "upload": upload})


async def _fields(asset: Asset, *, presigner: Presigner) -> dict[str, object]:
    original, renditions = await _pictures(asset, presigner=presigner)
    return {**_facts(asset), "original": original, "renditions": renditions}


def _facts(asset: Asset) -> dict[str, object]:
    failure = asset.failure
    return {
        "asset_id": asset.id,
        "status": asset.status,
        "version": asset.version,
        "filename": asset.filename,
        "content_type": asset.content_type,
        "size": asset.size,
        "reference": asset.reference,
        "metadata": asset.metadata or {},
        "failure": None if failure is None else FailureView(code=failure.code, message=failure.message),
        # Like its pictures: they tell of what it shows.
        "labels": asset.labels if asset.status is Status.READY else {},
        "created_at": timestamp(asset.created_at),
        "updated_at": timestamp(asset.updated_at),
    }


async def _pictures(asset: Asset, *, presigner: Presigner) -> tuple[OriginalView | None, list[RenditionView]]:
    found = asset.original
    if asset.status is not Status.READY or found is None:
        return None, []
    content_type = original_type(found)
    name = download_name(asset.filename, format=found.format)
    original = OriginalView(
        width=found.width,
        height=found.height,
        format=found.format,
        size=found.size,
        content_type=content_type,
        # Saved, never shown: an original may be a picture and a web page at once.
        url=(await presigner.download(asset.object_key, content_type=content_type, filename=name)).url,
    )
    renditions = [
        RenditionView(
            name=rendition.name,
            width=rendition.width,
            height=rendition.height,
            content_type=rendition.content_type,
            size=rendition.size,
            url=(await presigner.download(rendition.object_key, content_type=rendition.content_type)).url,
        )
        for rendition in asset.renditions
    ]
    return original, renditions


def _upload(signed: SignedUpload) -> UploadView:
    return UploadView(method="PUT", url=signed.url, headers=signed.headers, expires_at=timestamp(signed.expires_at))
