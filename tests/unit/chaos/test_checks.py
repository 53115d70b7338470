"""Each check passes over a run that went well and fails when the one thing that it guards is spoilt."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from darkroom.chaos.checks import CHECKS, check_all
from darkroom.chaos.evidence import Evidence, Stored
from darkroom.contracts.events import EventType
from darkroom.ops.topics import TopicRecord
from unit.chaos.evidence_made import (
    BROKEN,
    GARBAGE,
    GOOD,
    TOPICS,
    all_well,
    changes,
    dead_letter,
    rendition,
    topic_record,
    uploaded,
    with_asset,
    with_inbox,
    with_row,
    without_records,
)

Spoil = Callable[[Evidence], Evidence]


def violations(evidence: Evidence) -> dict[str, tuple[str, ...]]:
    return {one.invariant.split()[0]: one.violations for one in check_all(evidence) if one.violations}


def test_a_run_that_went_well_has_no_violation() -> None:
    assert violations(all_well()) == {}


def test_every_check_had_something_to_look_at() -> None:
    assert [one.invariant for one in check_all(all_well()) if one.looked_at == 0] == []


def told_another_id(evidence: Evidence) -> Evidence:
    evidence.uploads[0].asset_ids.add(BROKEN)
    return evidence


def another_asset_of_the_key(evidence: Evidence) -> Evidence:
    twin = {**evidence.assets[0], "_id": BROKEN}
    return replace(evidence, assets=[*evidence.assets, twin])


def upload_gave_up(evidence: Evidence) -> Evidence:
    evidence.uploads[0].error = "not uploaded in 120 s"
    return evidence


def second_terminal_row(evidence: Evidence) -> Evidence:
    row = {**evidence.rows[2], "_id": "another", "sequence": 4}
    return replace(evidence, rows=[*evidence.rows, row])


def second_terminal_event_on_the_topic(evidence: Evidence) -> Evidence:
    event = changes(GOOD)[-1].event.model_copy(update={"id": BROKEN, "sequence": 4})
    return replace(evidence, records=[*evidence.records, topic_record(event, offset=6)])


def swapped_on_the_topic(evidence: Evidence) -> Evidence:
    records = list(evidence.records)
    places = [at for at, one in enumerate(records) if one.topic == TOPICS.events]
    first, second = places[0], places[1]
    records[first], records[second] = records[second], records[first]
    return replace(evidence, records=records)


def other_data_on_the_topic(evidence: Evidence) -> Evidence:
    return with_row(evidence, 0, correlation_id="another")


def unknown_upload_committed(evidence: Evidence) -> Evidence:
    return replace(evidence, inbox=evidence.inbox[1:])


def dead_without_its_event(evidence: Evidence) -> Evidence:
    return with_inbox(evidence, state="DEAD", outcome="dead: retries_exhausted")


def other_event_id(evidence: Evidence) -> Evidence:
    event = uploaded(GOOD).model_copy(update={"id": BROKEN})
    return replace(evidence, records=[*evidence.records, topic_record(event, offset=3, topic=TOPICS.uploaded)])


def of(topic: str, event_type: EventType | None = None) -> Callable[[TopicRecord], bool]:
    return lambda one: (
        one.topic == topic and (event_type is None or (one.event is not None and one.event.type is event_type))
    )


SPOILT: list[tuple[str, str, Spoil]] = [
    ("I1", "another id was told", told_another_id),
    ("I1", "two assets of one key", another_asset_of_the_key),
    ("I1", "the told asset is gone", lambda e: replace(e, assets=e.assets[1:])),
    ("I2", "a gap", lambda e: replace(e, rows=[e.rows[0], *e.rows[2:]])),
    ("I2", "a sequence twice", lambda e: with_row(e, 1, sequence=1)),
    ("I2", "an id that is not the event's", lambda e: with_row(e, 1, _id=BROKEN)),
    ("I2", "a version ahead", lambda e: with_asset(e, version=4)),
    ("I2", "an asset without stream", lambda e: replace(e, rows=e.rows[3:])),
    ("I2", "a stream without asset", lambda e: replace(e, assets=e.assets[1:])),
    ("I3", "another status", lambda e: with_asset(e, status="PROCESSING")),
    ("I3", "an extra field", lambda e: with_asset(e, labels={"cat": "yes"})),
    ("I3", "an impossible stream", lambda e: with_row(e, 1, type="AssetExpired", data={})),
    ("I4", "two in the outbox", second_terminal_row),
    ("I4", "two on the topic", second_terminal_event_on_the_topic),
    ("I5", "past a running event", lambda e: with_inbox(e, state="PROCESSING")),
    ("I5", "past an unclaimed event", unknown_upload_committed),
    ("I5", "past an event that died silently", dead_without_its_event),
    ("I5", "past garbage nobody wrote down", lambda e: without_records(e, of(TOPICS.uploaded_dlq))),
    ("I5", "while it ran", lambda e: replace(e, early_commits=["partition 0"])),
    ("I6", "never published", lambda e: without_records(e, of(TOPICS.events, EventType.ASSET_PROCESSING))),
    ("I6", "not marked", lambda e: with_row(e, 2, published=False)),
    ("I6", "parked", lambda e: with_row(e, 2, published=False, parked_at=1, last_error="too large")),
    ("I6", "out of order", swapped_on_the_topic),
    ("I6", "an event nobody wrote", lambda e: replace(e, rows=e.rows[:-1])),
    ("I6", "another event than the row", other_data_on_the_topic),
    ("I6", "marked too early", lambda e: replace(e, early_marks=["event 1"])),
    ("I7", "written for an unfinished event", lambda e: with_inbox(e, state="PROCESSING", outcome=None)),
    ("I7", "another outcome", lambda e: with_inbox(e, outcome="failed: decode_timeout")),
    ("I7", "finished and leased", lambda e: with_inbox(e, lease_owner="somebody")),
    ("I7", "never claimed", lambda e: with_inbox(e, fence=0)),
    ("I7", "finished without an event", lambda e: replace(e, rows=[*e.rows[:2], *e.rows[3:]])),
    ("I7", "begun for another event", lambda e: with_row(e, 1, causation_id=BROKEN)),
    ("I8", "an asset left open", lambda e: with_asset(e, status="PROCESSING")),
    ("I8", "an event left open", lambda e: with_inbox(e, state="PROCESSING")),
    ("I8", "a record left", lambda e: replace(e, committed={(TOPICS.uploaded, 0): 2})),
    ("I9", "never announced", lambda e: without_records(e, of(TOPICS.uploaded))),
    ("I9", "another id", other_event_id),
    ("I9", "the object is gone", lambda e: replace(e, announced={})),
    ("I9", "messages left", lambda e: replace(e, queued=1)),
    ("I9", "dead letters left", lambda e: replace(e, dead_lettered=1)),
    ("I10", "missing", lambda e: replace(e, objects={})),
    ("I10", "another size", lambda e: replace(e, objects={rendition(GOOD).object_key: Stored(10, 2, 2)})),
    ("I10", "unreadable", lambda e: replace(e, objects={rendition(GOOD).object_key: "unreadable"})),
    ("I10", "no renditions", lambda e: with_asset(e, renditions=[])),
    ("I11", "a stranger sees it", lambda e: replace(e, strangers={"GET /assets/1": 403})),
    ("I13", "a process died", lambda e: replace(e, deaths=["processor ended by itself"])),
    ("I13", "garbage vanished", lambda e: without_records(e, of(TOPICS.uploaded_dlq))),
    ("I13", "a good event is a dead letter", lambda e: replace(e, records=[*e.records, dead_letter(0, 0)])),
    ("right", "a good picture failed", lambda e: with_asset(e, status="FAILED")),
    ("right", "an upload gave up", upload_gave_up),
]


@pytest.mark.parametrize(("invariant", "what", "spoil"), SPOILT, ids=[f"{i}: {what}" for i, what, _ in SPOILT])
def test_what_is_spoilt_is_found(invariant: str, what: str, spoil: Spoil) -> None:
    assert invariant in violations(spoil(all_well()))


def test_every_check_but_the_one_by_construction_can_fail() -> None:
    assert {name.split()[0] for name, *_ in CHECKS} - {invariant for invariant, *_ in SPOILT} == {"I12"}


def test_a_repetition_of_a_record_is_no_violation() -> None:
    evidence = all_well()
    again: list[Any] = [one for one in evidence.records if one.topic == TOPICS.events]
    assert violations(replace(evidence, records=[*evidence.records, *again])) == {}


def test_garbage_is_known_by_its_place() -> None:
    assert GARBAGE in all_well().garbage
