"""An event as its owner sees it, in a list and in a stream alike."""

import json
from collections.abc import Mapping
from typing import Any

from darkroom.contracts.envelope import timestamp


def event_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """What happened, as the how-manieth of which asset's events, when, why, and the type's data.

    Straight from the row: events of a newer version of the services pass as well.
    """
    return {
        "event_id": row["_id"],
        "asset_id": row["asset_id"],
        "sequence": row["sequence"],
        "type": row["type"],
        "data_version": row["data_version"],
        "occurred_at": timestamp(row["occurred_at"]),
        "causation_id": row.get("causation_id"),
        "correlation_id": row.get("correlation_id"),
        "data": row["data"],
    }


def event_json(row: Mapping[str, Any]) -> bytes:
    """The same as one line of JSON."""
    # What JSON has no form for is told as text: one odd row must not end everybody's stream.
    return json.dumps(event_fields(row), separators=(",", ":"), default=str).encode()
