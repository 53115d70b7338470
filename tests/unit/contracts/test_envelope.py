"""Events as Kafka records: what is written is read back, and what is wrong is named."""

from typing import Any

import pytest

from darkroom.contracts.envelope import BRIDGE_SOURCE, STREAM_SOURCE, Headers, MalformedEvent, from_record, to_record
from darkroom.contracts.events import EVENT_DATA, EventType
from support.events import processing, ready, registered, step, uploaded


def read(record: Any, **changed: Any) -> Any:
    given = {"key": record.key, "value": record.value, "record_headers": record.headers, **changed}
    return from_record(**given)


def replaced(headers: Headers, name: str, value: bytes | None) -> Headers:
    return [(n, v) for n, v in headers if n != name] + ([] if value is None else [(name, value)])


def test_an_event_is_read_back_as_it_was_written() -> None:
    first = registered()
    second = step(first.after, processing())
    third = step(second.after, ready(second.after))
    for written in (first.event, second.event, third.event, uploaded(first.after)):
        assert read(to_record(written, source=STREAM_SOURCE)) == written


def test_the_record_is_a_cloudevent_in_binary_mode() -> None:
    change = registered()
    record = to_record(change.event, source=STREAM_SOURCE)
    headers = dict(record.headers)
    assert record.key == change.after.id.encode()
    assert headers["ce_specversion"] == b"1.0"
    assert headers["ce_type"] == b"AssetRegistered"
    assert headers["ce_source"] == b"/darkroom/assets"
    assert headers["ce_subject"] == change.after.id.encode()
    assert headers["ce_time"] == b"2026-03-01T12:00:00.123Z"
    assert headers["ce_dataschema"] == b"urn:darkroom:schema:AssetRegistered:1"
    assert headers["ce_sequence"] == b"1"
    assert headers["ce_ownerid"] == b"owner-1"
    assert headers["ce_correlationid"] == b"request-1"
    assert headers["content-type"] == b"application/json"
    assert "ce_traceparent" not in headers


def test_every_type_has_data() -> None:
    assert set(EVENT_DATA) == set(EventType)


@pytest.mark.parametrize(
    ("header", "value", "named"),
    [
        ("ce_specversion", None, "ce_specversion"),
        ("ce_specversion", b"0.3", "ce_specversion"),
        ("ce_type", None, "ce_type"),
        ("ce_type", b"AssetExploded", "AssetExploded"),
        ("ce_type", b"\xff\xfe", "ce_type"),
        ("ce_dataschema", b"urn:darkroom:schema:AssetUploaded:9", "ce_dataschema"),
        ("ce_id", None, "id"),
        ("ce_id", b"not-a-uuid", "id"),
        ("ce_subject", None, "ce_subject"),
        ("ce_subject", b"0b8f5f2e-6c1d-4d8e-9f0a-3c2b1a4d5e6f", "ce_subject"),
        ("ce_time", b"yesterday", "occurred_at"),
        ("ce_time", None, "occurred_at"),
        ("ce_sequence", b"0", "sequence"),
        ("ce_sequence", b"many", "sequence"),
    ],
)
def test_a_bad_header_is_named(header: str, value: bytes | None, named: str) -> None:
    record = to_record(uploaded(registered().after), source=BRIDGE_SOURCE)
    with pytest.raises(MalformedEvent, match=named):
        read(record, record_headers=replaced(record.headers, header, value))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (None, "no value"),
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "AssetUploaded"),
        (b"{}", "bucket"),
        (b'{"bucket": "b", "object_key": "k", "size": -1}', "size"),
    ],
)
def test_a_bad_value_is_named(value: bytes | None, named: str) -> None:
    record = to_record(uploaded(registered().after), source=BRIDGE_SOURCE)
    with pytest.raises(MalformedEvent, match=named):
        read(record, value=value)


def test_a_record_without_key_or_headers_is_malformed() -> None:
    record = to_record(uploaded(registered().after), source=BRIDGE_SOURCE)
    with pytest.raises(MalformedEvent, match="key"):
        read(record, key=None)
    with pytest.raises(MalformedEvent, match="specversion"):
        read(record, record_headers=None)


def test_fields_of_a_later_version_are_ignored() -> None:
    record = to_record(uploaded(registered().after), source=BRIDGE_SOURCE)
    assert read(record, value=record.value[:-1] + b', "colour": "red"}') == read(record)
