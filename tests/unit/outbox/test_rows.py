"""Events as rows, and rows as records."""

import pytest

from darkroom.contracts.envelope import STREAM_SOURCE, to_record
from darkroom.outbox import SHARDS, from_row, shard_of, to_row
from darkroom.outbox.records import FIELDS
from darkroom.outbox.records import to_record as record_of_row
from support.events import failed, new_id, processing, ready, registered, step, uploaded


def test_a_row_is_read_back_as_the_event_it_was() -> None:
    first = registered(checksum_sha256="abc")
    second = step(first.after, processing())
    for change in (first, second, step(second.after, ready(second.after)), step(second.after, failed())):
        assert from_row(to_row(change.event)) == change.event


def test_the_relay_sends_the_very_record_that_the_event_is() -> None:
    first = registered()
    second = step(first.after, processing())
    for change in (first, second, step(second.after, ready(second.after))):
        row = to_row(change.event)
        read = {"_id": row["_id"]} | {name: row[name] for name in FIELDS if name in row}
        assert record_of_row(read) == to_record(change.event, source=STREAM_SOURCE)


def test_a_row_begins_unpublished_in_its_assets_shard() -> None:
    row = to_row(registered().event)
    assert row["published"] is False
    assert row["shard"] == shard_of(row["asset_id"])


def test_shards_are_used_evenly_and_never_change() -> None:
    counts = [0] * SHARDS
    for _ in range(64_000):
        counts[shard_of(new_id())] += 1
    assert min(counts) > 800
    assert shard_of("0b8f5f2e-6c1d-4d8e-9f0a-3c2b1a4d5e6f") == 47


def test_what_is_of_no_stream_is_no_row() -> None:
    with pytest.raises(ValueError, match="no sequence"):
        to_row(uploaded(registered().after))
