"""Events and assets for tests, made the way the services make them."""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from darkroom.assets import Asset, Change, change
from darkroom.contracts.envelope import BRIDGE_SOURCE, Event, Record, to_record
from darkroom.contracts.events import (
    AssetFailed,
    AssetProcessing,
    AssetReady,
    AssetRegistered,
    AssetUploaded,
    EventData,
    Failure,
    Original,
    Rendition,
)
from darkroom.contracts.ids import upload_event_id

NOW = datetime(2026, 3, 1, 12, 0, 0, 123000, tzinfo=UTC)


def new_id() -> str:
    return str(uuid.uuid4())


def registered(*, asset_id: str | None = None, owner_id: str = "owner-1", **fields: Any) -> Change:
    """A fresh asset, UPLOADING at version 1."""
    asset_id = asset_id or new_id()
    given: dict[str, Any] = {
        "idempotency_key": f"key-{asset_id}",
        "request_hash": "0" * 64,
        "filename": "photo.jpg",
        "content_type": "image/jpeg",
        "size": 1234,
        "object_key": f"assets/{asset_id}/original.jpg",
        **fields,
    }
    return change(
        None,
        AssetRegistered(**given),
        occurred_at=NOW,
        asset_id=asset_id,
        owner_id=owner_id,
        correlation_id="request-1",
    )


def step(before: Asset, data: EventData) -> Change:
    return change(before, data, occurred_at=NOW, causation_id=new_id())


def processing(upload_event_id: str | None = None) -> AssetProcessing:
    return AssetProcessing(upload_event_id=upload_event_id or new_id())


def ready(asset: Asset, *, bucket: str = "bucket") -> AssetReady:
    return AssetReady(
        bucket=bucket,
        object_key=asset.object_key,
        original=Original(etag="e", version_id="v", size=asset.size, width=40, height=30, format="jpeg"),
        renditions=(
            Rendition(
                name="thumb",
                object_key=f"assets/{asset.id}/thumb.jpg",
                content_type="image/jpeg",
                size=10,
                width=40,
                height=30,
            ),
        ),
        labels={"tone": "warm"},
    )


def failed(code: str = "corrupt_or_truncated") -> AssetFailed:
    return AssetFailed(failure=Failure(code=code, message="cannot be decoded"))


def uploaded(asset: Asset, *, bucket: str = "bucket", version_id: str | None = None, **fields: Any) -> Event:
    """What the bridge publishes for the asset's original."""
    given: dict[str, Any] = {"size": asset.size, "etag": "etag", **fields}
    data = AssetUploaded(bucket=bucket, object_key=asset.object_key, version_id=version_id, **given)
    return Event(
        id=upload_event_id(bucket, asset.object_key, version_id, data.etag),
        asset_id=asset.id,
        occurred_at=NOW,
        data=data,
    )


def uploaded_record(asset: Asset, **fields: Any) -> Record:
    return to_record(uploaded(asset, **fields), source=BRIDGE_SOURCE)


def without_id(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "_id"}
