"""What counts as lost, and what only takes its time."""

from datetime import timedelta
from typing import Any

import pytest

from darkroom.assets import Asset, to_document
from darkroom.contracts.events import AssetTrashed
from darkroom.ops.findings import Finding, Kind, Patience, orphan, stored, unfinished
from darkroom.ops.integrity import Kept, Listed
from support import events
from support.events import NOW

LATER = NOW + timedelta(hours=1)
PATIENCE = Patience(orphan=600, grace=3600)


def uploading() -> Asset:
    return events.registered().after


def processing() -> Asset:
    asset = uploading()
    return events.step(asset, events.processing(events.uploaded(asset).id)).after


def row(**fields: Any) -> dict[str, Any]:
    return {"state": "PROCESSING", "attempts": 2, **fields}


HELD = {"lease_until": LATER + timedelta(seconds=5)}
RUN_OUT = {"lease_until": LATER - timedelta(seconds=5)}
RESTING = {"not_before": LATER + timedelta(seconds=5)}
CASES = [
    ("nothing was uploaded", uploading, False, None, None),
    ("nobody was told", uploading, True, None, Kind.LOST_NOTIFICATION),
    ("claimed and abandoned before it began", uploading, True, row(**RUN_OUT), Kind.STUCK_PROCESSING),
    ("claimed a moment ago", uploading, True, row(**HELD), None),
    ("worked on", processing, True, row(**HELD), None),
    ("waiting for its next attempt", processing, True, row(**RESTING), None),
    ("the worker is gone", processing, True, row(**RUN_OUT), Kind.STUCK_PROCESSING),
    ("given back", processing, True, row(), Kind.STUCK_PROCESSING),
    ("the inbox forgot it", processing, True, None, Kind.STUCK_PROCESSING),
    ("the inbox says it ended", processing, True, row(state="COMPLETED"), Kind.INCONSISTENT),
    ("the inbox says it is dead", processing, True, row(state="DEAD"), Kind.INCONSISTENT),
]


@pytest.mark.parametrize(("what", "made", "uploaded", "inbox", "kind"), CASES, ids=[case[0] for case in CASES])
def test_what_has_been_under_way_for_long(what: str, made: Any, uploaded: bool, inbox: Any, kind: Kind | None) -> None:
    asset = made()
    found = unfinished(asset, events.uploaded(asset) if uploaded else None, inbox, now=LATER)
    assert (None if found is None else found.kind) is kind
    if found is not None:
        assert found.event == events.uploaded(asset)


def kept(*steps: Any, lost: tuple[str, ...] = (), age: float = 3600) -> Kept:
    asset = processing()
    for data in (events.ready, *steps):
        asset = events.step(asset, data(asset) if callable(data) else data).after
    sizes = {asset.object_key: 1234, f"assets/{asset.id}/thumb.jpg": 10}
    listed = {k: Listed(s, LATER - timedelta(seconds=age)) for k, s in sizes.items() if not k.endswith(lost or ("-",))}
    return Kept(asset.id, to_document(asset), (), listed)


def kinds(one: Kept) -> list[Kind]:
    return [finding.kind for finding in stored(one, now=LATER, patience=PATIENCE)]


def test_records_and_objects() -> None:
    assert kinds(kept()) == []
    assert kinds(kept(lost=("thumb.jpg",))) == [Kind.LOST_RENDITION]
    assert kinds(kept(lost=("original.jpg",))) == [Kind.ORIGINAL_GONE]
    (both,) = stored(kept(lost=(".jpg",)), now=LATER, patience=PATIENCE)
    assert (both.kind, "1 of its renditions" in both.what) == (Kind.ORIGINAL_GONE, True)
    assert kinds(kept(AssetTrashed(), lost=("original.jpg",))) == [Kind.ORIGINAL_GONE]


def test_objects_without_a_record_are_given_time() -> None:
    assert kinds(Kept("a", None, (), kept().objects)) == [Kind.ORPHAN_FOUND] * 2
    assert kinds(Kept("a", None, (), kept(age=599).objects)) == []


@pytest.mark.parametrize(("tagged", "kind"), [(None, Kind.ORPHAN_FOUND), (3599, None), (3601, Kind.ORPHAN_EXPIRED)])
def test_an_orphan_is_tagged_then_left_alone_then_removed(tagged: float | None, kind: Kind | None) -> None:
    finding = Finding(Kind.ORPHAN_FOUND, "a", "no record", key="assets/a/x")
    tagged_at = None if tagged is None else LATER - timedelta(seconds=tagged)
    found = orphan(finding, tagged_at, now=LATER, patience=PATIENCE)
    assert (None if found is None else found.kind) is kind
