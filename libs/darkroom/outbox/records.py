"""Rows as Kafka records, without a detour over models: the relay does this for every event there is."""

from collections.abc import Mapping
from typing import Any

import orjson

from darkroom.contracts.envelope import STREAM_SOURCE, Record, headers

FIELDS = (
    "asset_id",
    "sequence",
    "shard",
    "type",
    "data_version",
    "data",
    "owner_id",
    "causation_id",
    "correlation_id",
    "traceparent",
    "occurred_at",
    "parked_at",
)
"""What must be read of a row."""


class UnsendableRow(ValueError):
    """A row that is no event: sending it again cannot help. The message says what is wrong."""


def to_record(row: Mapping[str, Any]) -> Record:
    """The record of one row: the same as of the event it was made from.

    Raises:
        UnsendableRow: a field is missing or of a type that no event has.

    """
    try:
        return _record(row)
    except KeyError as error:
        raise UnsendableRow(f"the row has no {error.args[0]}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise UnsendableRow(f"the row is no event: {error}") from error


def _record(row: Mapping[str, Any]) -> Record:
    return Record(
        key=row["asset_id"].encode(),
        value=orjson.dumps(row["data"]),
        headers=headers(
            event_id=row["_id"],
            event_type=row["type"],
            data_version=row["data_version"],
            source=STREAM_SOURCE,
            asset_id=row["asset_id"],
            occurred_at=row["occurred_at"],
            sequence=row["sequence"],
            owner_id=row["owner_id"],
            causation_id=row.get("causation_id"),
            correlation_id=row.get("correlation_id"),
            traceparent=row.get("traceparent"),
        ),
    )
