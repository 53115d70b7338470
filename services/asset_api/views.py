"""What the API answers. URLs are presigned and live for minutes; ask again for fresh ones."""

from typing import Literal

from pydantic import BaseModel, Field

from asset_api.presign import Presigner, SignedUpload
from darkroom.assets import Asset, Status
from darkroom.contracts.envelope import timestamp


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


async def asset_view(asset: Asset, *, presigner: Presigner) -> AssetView:
    """The asset as its owner sees it."""
    return AssetView.model_validate(await _fields(asset, presigner=presigner))


async def registered_view(asset: Asset, *, presigner: Presigner) -> RegisteredView:
    """The asset, and how to upload it if that is still to be done."""
    upload = _upload(await presigner.upload(asset)) if asset.status is Status.UPLOADING else None
    return RegisteredView.model_validate({**await _fields(asset, presigner=presigner), "upload": upload})


async def _fields(asset: Asset, *, presigner: Presigner) -> dict[str, object]:
    original, renditions = await _pictures(asset, presigner=presigner)
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
        "original": original,
        "renditions": renditions,
        "created_at": timestamp(asset.created_at),
        "updated_at": timestamp(asset.updated_at),
    }


async def _pictures(asset: Asset, *, presigner: Presigner) -> tuple[OriginalView | None, list[RenditionView]]:
    found = asset.original
    if asset.status is not Status.READY or found is None:
        return None, []
    # The content was decoded as `format`, so it is served as that and not as what the client declared.
    content_type = f"image/{found.format.lower()}"
    original = OriginalView(
        width=found.width,
        height=found.height,
        format=found.format,
        size=found.size,
        content_type=content_type,
        # Saved, never shown: an original may be a picture and a web page at once.
        url=await presigner.download(asset.object_key, content_type=content_type, filename=asset.filename),
    )
    renditions = [
        RenditionView(
            name=rendition.name,
            width=rendition.width,
            height=rendition.height,
            content_type=rendition.content_type,
            size=rendition.size,
            url=await presigner.download(rendition.object_key, content_type=rendition.content_type),
        )
        for rendition in asset.renditions
    ]
    return original, renditions


def _upload(signed: SignedUpload) -> UploadView:
    return UploadView(method="PUT", url=signed.url, headers=signed.headers, expires_at=timestamp(signed.expires_at))
