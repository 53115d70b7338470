"""An event as its owner sees it."""

import json
from collections.abc import Mapping
from typing import Any

from darkroom.contracts.envelope import timestamp


def event_json(row: Mapping[str, Any]) -> bytes:
    """One line of JSON of a row: what happened, as the how-manieth of which asset's events, when, and the type's data.

    Straight from the row: events of a newer version of the services pass as well.
    """
    return json.dumps(
        {
            "event_id": row["_id"],
            "asset_id": row["asset_id"],
            "sequence": row["sequence"],
            "type": row["type"],
            "occurred_at": timestamp(row["occurred_at"]),
            "data": row["data"],
        },
        separators=(",", ":"),
    ).encode()
