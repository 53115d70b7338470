"""Events as rows of ``outbox_events``. Plain dictionaries; no driver here."""

from collections.abc import Mapping
from typing import Any
from zlib import crc32

from darkroom.contracts.envelope import Event
from darkroom.contracts.events import EVENT_DATA, EventType

COLLECTION = "outbox_events"
SHARDS = 64
"""How many ways the relay's work is split. Rows keep the shard they were written with, so it never changes."""


def shard_of(asset_id: str) -> int:
    """The shard of all of an asset's events, 0 … 63."""
    return crc32(asset_id.encode()) % SHARDS


def to_row(event: Event) -> dict[str, Any]:
    """The row to insert in the transaction that changes the asset."""
    if event.sequence is None or event.owner_id is None:
        raise ValueError(f"{event.type} {event.id} is not of an asset's stream: it has no sequence or no owner_id")
    row = {
        "_id": event.id,
        "asset_id": event.asset_id,
        "sequence": event.sequence,
        "shard": shard_of(event.asset_id),
        "type": str(event.type),
        "data_version": event.data.data_version,
        "data": event.data.model_dump(mode="json", exclude_none=True),
        "owner_id": event.owner_id,
        "causation_id": event.causation_id,
        "correlation_id": event.correlation_id,
        "traceparent": event.traceparent,
        "occurred_at": event.occurred_at,
        "published": False,
        "attempts": 0,
    }
    return {name: value for name, value in row.items() if value is not None}


def from_row(row: Mapping[str, Any]) -> Event:
    """The event as it was written."""
    data = EVENT_DATA[EventType(row["type"])].model_validate(row["data"])
    return Event.model_validate({**row, "id": row["_id"], "data": data})


INDEXES: tuple[tuple[list[tuple[str, int]], dict[str, Any]], ...] = (
    ([("asset_id", 1), ("sequence", 1)], {"unique": True}),
    # Only unpublished rows are in it, in the order the relay reads them: its cost does not grow with history.
    (
        [("shard", 1), ("asset_id", 1), ("sequence", 1)],
        {"name": "unpublished", "partialFilterExpression": {"published": False}},
    ),
)
