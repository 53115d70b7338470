"""Events as rows, and rows as records."""

import pytest

from darkroom.contracts.envelope import STREAM_SOURCE, to_record
from darkroom.outbox import SHARDS, from_row, shard_of, to_row
from darkroom.outbox.records import FIELDS, UnsendableRow
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


def test_a_row_as_the_driver_reads_it_without_time_zones_gives_the_same_record() -> None:
    row = to_row(registered().event)
    naive = {**row, "occurred_at": row["occurred_at"].replace(tzinfo=None)}
    assert record_of_row(naive) == record_of_row(row)


@pytest.mark.parametrize(
    "wrong",
    [{"data_version": None, "type": 7}, {"data": {"x": object()}}, {"occurred_at": "now"}, {"asset_id": None}],
)
def test_a_row_that_is_no_event_says_so(wrong: dict[str, object]) -> None:
    with pytest.raises(UnsendableRow, match="no event"):
        record_of_row(to_row(registered().event) | wrong)


def test_a_row_without_a_field_names_it() -> None:
    row = to_row(registered().event)
    del row["owner_id"]
    with pytest.raises(UnsendableRow, match="owner_id"):
        record_of_row(row)


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
