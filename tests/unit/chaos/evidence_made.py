"""What a run leaves behind when all went well, made without any server; tests spoil one piece of it each."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from darkroom.assets import Change, change, to_document
from darkroom.chaos.evidence import Evidence, Stored
from darkroom.chaos.frontend import OWNER, Upload
from darkroom.chaos.pictures import Picture
from darkroom.contracts.envelope import BRIDGE_SOURCE, STREAM_SOURCE, Event, from_record, to_record
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
from darkroom.contracts.topics import Topics
from darkroom.ops.topics import TopicRecord
from darkroom.outbox import to_row

TOPICS = Topics()
BUCKET = "bucket"
NOW = datetime(2026, 3, 1, tzinfo=UTC)
GOOD, BROKEN = "0b8f5f2e-6c1d-4d8e-9f0a-3c2b1a4d5e6f", "7d1f0c3a-2b44-4a57-8c19-5e6f70819a2b"
GARBAGE = (0, 2)
"""Behind the uploads of both assets, in partition 0."""


def rendition(asset_id: str) -> Rendition:
    key = f"assets/{asset_id}/thumb.jpg"
    return Rendition(name="thumb", object_key=key, content_type="image/jpeg", size=10, width=2, height=1)


def object_key(asset_id: str) -> str:
    return f"assets/{asset_id}/original.jpg"


def ending(asset_id: str) -> EventData:
    if asset_id == BROKEN:
        return AssetFailed(failure=Failure(code="corrupt_or_truncated", message="it ends too early"))
    return AssetReady(
        bucket=BUCKET,
        object_key=object_key(asset_id),
        original=Original(etag="e", size=3, width=4, height=2, format="JPEG"),
        renditions=(rendition(asset_id),),
    )


def uploaded(asset_id: str) -> Event:
    data = AssetUploaded(bucket=BUCKET, object_key=object_key(asset_id), etag="e", size=3)
    event_id = upload_event_id(BUCKET, object_key(asset_id), None, "e")
    return Event(id=event_id, asset_id=asset_id, occurred_at=NOW, data=data)


def changes(asset_id: str) -> list[Change]:
    registered = AssetRegistered(
        idempotency_key=f"key-{asset_id}",
        request_hash="h",
        filename="a.jpg",
        content_type="image/jpeg",
        size=3,
        object_key=object_key(asset_id),
    )
    made = [change(None, registered, occurred_at=NOW, asset_id=asset_id, owner_id=OWNER)]
    cause = uploaded(asset_id).id
    for data in (AssetProcessing(upload_event_id=cause), ending(asset_id)):
        made.append(change(made[-1].after, data, occurred_at=NOW, causation_id=cause))
    return made


def topic_record(event: Event, *, offset: int, topic: str = TOPICS.events) -> TopicRecord:
    source = BRIDGE_SOURCE if topic == TOPICS.uploaded else STREAM_SOURCE
    key, value, headers = to_record(event, source=source)
    again = from_record(key=key, value=value, record_headers=headers)
    return TopicRecord(topic, 0, offset, key, value, tuple(headers), again, 0.0)


def dead_letter(partition: int, offset: int) -> TopicRecord:
    headers = (("dlq_partition", str(partition).encode()), ("dlq_offset", str(offset).encode()))
    return TopicRecord(TOPICS.uploaded_dlq, 0, offset, None, b"", headers, None, 0.0)


def inbox_row(asset_id: str) -> dict[str, Any]:
    outcome = "ready" if asset_id == GOOD else "failed: corrupt_or_truncated"
    return {"event_id": uploaded(asset_id).id, "state": "COMPLETED", "fence": 1, "attempts": 1, "outcome": outcome}


def all_well() -> Evidence:
    """A good and a broken picture, one piece of garbage, and every step of theirs as it should be."""
    streams = {asset_id: changes(asset_id) for asset_id in (GOOD, BROKEN)}
    events = [one.event for stream in streams.values() for one in stream]
    return Evidence(
        owner=OWNER,
        topics=TOPICS,
        uploads=[
            Upload(f"key-{asset_id}", Picture("a.jpg", "image/jpeg", b"abc", asset_id == GOOD), {asset_id}, sent=1.0)
            for asset_id in streams
        ],
        assets=[to_document(stream[-1].after) for stream in streams.values()],
        rows=[to_row(event) | {"published": True} for event in events],
        inbox=[inbox_row(asset_id) for asset_id in streams],
        records=[
            *(topic_record(uploaded(a), offset=n, topic=TOPICS.uploaded) for n, a in enumerate(streams)),
            TopicRecord(TOPICS.uploaded, *GARBAGE, None, None, (), None, 0.0),
            dead_letter(*GARBAGE),
            *(topic_record(event, offset=offset) for offset, event in enumerate(events)),
        ],
        committed={(TOPICS.uploaded, 0): 3},
        announced={asset_id: uploaded(asset_id).id for asset_id in streams},
        objects={rendition(GOOD).object_key: Stored(10, 2, 1)},
        garbage=frozenset({GARBAGE}),
        strangers={f"GET /assets/{GOOD}": 404},
    )


def with_row(evidence: Evidence, number: int, **changed: Any) -> Evidence:
    """The evidence with one row of the outbox changed; a field set to ... is left out."""
    rows = [dict(row) for row in evidence.rows]
    rows[number] = {name: value for name, value in {**rows[number], **changed}.items() if value is not ...}
    return replace(evidence, rows=rows)


def with_inbox(evidence: Evidence, **changed: Any) -> Evidence:
    """The evidence with the good asset's inbox row changed."""
    return replace(evidence, inbox=[{**evidence.inbox[0], **changed}, *evidence.inbox[1:]])


def with_asset(evidence: Evidence, **changed: Any) -> Evidence:
    """The evidence with the good asset's document changed."""
    return replace(evidence, assets=[{**evidence.assets[0], **changed}, *evidence.assets[1:]])


def without_records(evidence: Evidence, unwanted: Callable[[TopicRecord], bool]) -> Evidence:
    """The evidence without some records."""
    return replace(evidence, records=[record for record in evidence.records if not unwanted(record)])
