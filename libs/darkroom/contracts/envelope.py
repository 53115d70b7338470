"""CloudEvents 1.0 in Kafka's binary mode: attributes are ``ce_*`` headers, the data is JSON, the key is the asset."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from darkroom.contracts.events import EVENT_DATA, AssetId, EventData, EventId, EventType, OwnerId

STREAM_SOURCE = "/darkroom/assets"
BRIDGE_SOURCE = "/darkroom/s3-bridge"

Header = tuple[str, str | bytes | None]
Headers = list[Header]
"""As Kafka's clients take them."""

_SPECVERSION: Header = ("ce_specversion", b"1.0")
_CONTENT_TYPE: Header = ("content-type", b"application/json")


class MalformedEvent(ValueError):
    """A record that is no event of ours; reading it again cannot help. The message says which part is wrong."""


class Record(NamedTuple):
    """One Kafka record as a producer sends it."""

    key: bytes
    value: bytes
    headers: Headers


class Event(BaseModel):
    """One event: its data and who, when and why. ``sequence`` is its place in the asset's stream, from 1.

    AssetUploaded has neither sequence nor owner, since S3 knows neither.
    """

    model_config = ConfigDict(frozen=True)

    id: EventId
    asset_id: AssetId
    sequence: int | None = Field(default=None, ge=1)
    owner_id: OwnerId | None = None
    causation_id: str | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    occurred_at: datetime
    data: EventData

    @property
    def type(self) -> EventType:
        """The type, as its data tells."""
        return self.data.event_type


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, which is all that MongoDB keeps. A naive moment is in UTC, like MongoDB's."""
    if moment.tzinfo is None:
        return moment.isoformat(timespec="milliseconds") + "Z"
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def headers(
    *,
    event_id: str,
    event_type: str,
    data_version: int,
    source: str,
    asset_id: str,
    occurred_at: datetime,
    sequence: int | None = None,
    owner_id: str | None = None,
    causation_id: str | None = None,
    correlation_id: str | None = None,
    traceparent: str | None = None,
) -> Headers:
    """The record's headers. Attributes without a value are left out, as CloudEvents asks."""
    # Written out for speed: the relay and the bridge do this for every event there is.
    made: Headers = [
        _SPECVERSION,
        ("ce_id", event_id.encode()),
        *_of_type(event_type, data_version, source),
        ("ce_subject", asset_id.encode()),
        ("ce_time", timestamp(occurred_at).encode()),
    ]
    if sequence is not None:
        made.append(("ce_sequence", b"%d" % sequence))
    if owner_id is not None:
        made.append(("ce_ownerid", owner_id.encode()))
    if causation_id is not None:
        made.append(("ce_causationid", causation_id.encode()))
    if correlation_id is not None:
        made.append(("ce_correlationid", correlation_id.encode()))
    if traceparent is not None:
        made.append(("ce_traceparent", traceparent.encode()))
    made.append(_CONTENT_TYPE)
    return made


@lru_cache(maxsize=64)
def _of_type(event_type: str, data_version: int, source: str) -> tuple[Header, Header, Header]:
    return (
        ("ce_type", event_type.encode()),
        ("ce_source", source.encode()),
        ("ce_dataschema", f"urn:darkroom:schema:{event_type}:{data_version}".encode()),
    )


def to_record(event: Event, *, source: str) -> Record:
    """The event as a Kafka record."""
    return Record(
        key=event.asset_id.encode(),
        value=event.data.model_dump_json(exclude_none=True).encode(),
        headers=headers(
            event_id=event.id,
            event_type=event.type,
            data_version=event.data.data_version,
            source=source,
            asset_id=event.asset_id,
            occurred_at=event.occurred_at,
            sequence=event.sequence,
            owner_id=event.owner_id,
            causation_id=event.causation_id,
            correlation_id=event.correlation_id,
            traceparent=event.traceparent,
        ),
    )


def from_record(
    *, key: bytes | None, value: bytes | None, record_headers: Iterable[tuple[str, bytes | str | None]] | None
) -> Event:
    """Read a Kafka record.

    Raises:
        MalformedEvent: naming the header or field that is missing or wrong.

    """
    attributes = _attributes(record_headers or ())
    event_type = _type(attributes)
    asset_id = attributes.get("subject")
    if key is None or asset_id is None or key != asset_id.encode():
        raise MalformedEvent(f"the record's key {key!r} is not its ce_subject {asset_id!r}; both must be the asset_id")
    try:
        data = EVENT_DATA[event_type].model_validate(_json(value))
        return Event.model_validate(
            {
                "id": attributes.get("id"),
                "asset_id": asset_id,
                "sequence": attributes.get("sequence"),
                "owner_id": attributes.get("ownerid"),
                "causation_id": attributes.get("causationid"),
                "correlation_id": attributes.get("correlationid"),
                "traceparent": attributes.get("traceparent"),
                "occurred_at": attributes.get("time"),
                "data": data,
            }
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "data"
        raise MalformedEvent(f"{event_type}: {field}: {first['msg']}") from error


def _attributes(record_headers: Iterable[tuple[str, bytes | str | None]]) -> dict[str, str]:
    attributes: dict[str, str] = {}
    for name, raw in record_headers:
        if name.startswith("ce_") and raw is not None:
            try:
                attributes[name[3:]] = raw if isinstance(raw, str) else raw.decode()
            except UnicodeDecodeError as error:
                raise MalformedEvent(f"header {name}: not UTF-8") from error
    return attributes


def _type(attributes: dict[str, str]) -> EventType:
    if attributes.get("specversion") != "1.0":
        raise MalformedEvent(f"header ce_specversion: {attributes.get('specversion')!r}; must be '1.0'")
    try:
        event_type = EventType(attributes.get("type", ""))
    except ValueError as error:
        raise MalformedEvent(f"header ce_type: unknown type {attributes.get('type')!r}") from error
    expected = EVENT_DATA[event_type].dataschema()
    if attributes.get("dataschema") != expected:
        raise MalformedEvent(f"header ce_dataschema: {attributes.get('dataschema')!r}; this reader knows {expected!r}")
    return event_type


def _json(value: bytes | None) -> Any:
    if value is None:
        raise MalformedEvent("the record has no value")
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise MalformedEvent(f"the record's value is not JSON: {error}") from error
