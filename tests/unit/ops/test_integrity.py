"""What one asset's document, stream and objects must be to each other."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from darkroom.assets import Change, change, to_document
from darkroom.contracts.events import AssetRedriven
from darkroom.ops.integrity import Kept, Listed, violations
from darkroom.ops.walk import ASSETS_A_RANGE, ranges
from darkroom.outbox import to_row
from support import events


def stream(*more: Any) -> list[Change]:
    """From registration to READY, and what is added; each may be made from the asset before it."""
    made = [events.registered()]
    for data in (events.processing(), events.ready, *more):
        before = made[-1].after
        cause = before.upload.event_id if before.upload else None
        given = data(before) if callable(data) else data
        made.append(change(before, given, occurred_at=events.NOW, causation_id=cause))
    return made


def kept(*more: Any) -> Kept:
    changes = stream(*more)
    asset = changes[-1].after
    objects = {one.object_key: Listed(one.size, events.NOW) for one in asset.renditions}
    return Kept(asset.id, to_document(asset), [to_row(one.event) for one in changes], objects)


def redriven(asset: Any) -> AssetRedriven:
    return AssetRedriven(upload_event_id=asset.upload.event_id, by="operator", reason="a rendition was lost")


def test_an_asset_that_went_well_violates_nothing() -> None:
    assert violations(kept()) == []


def test_a_redriven_asset_may_end_once_more() -> None:
    assert violations(kept(redriven, events.ready)) == []


def changed(one: Kept, number: int, **fields: Any) -> Kept:
    rows = [dict(row) for row in one.rows]
    rows[number] |= fields
    return replace(one, rows=rows)


def spoilt(one: Kept, **fields: Any) -> Kept:
    return replace(one, asset={**(one.asset or {}), **fields})


SPOILT: list[tuple[str, str, Callable[[Kept], Kept]]] = [
    ("I2", "a gap", lambda k: replace(k, rows=[k.rows[0], *k.rows[2:]])),
    ("I2", "another id", lambda k: changed(k, 1, _id="another")),
    ("I2", "no stream", lambda k: replace(k, rows=[])),
    ("I2", "no document", lambda k: replace(k, asset=None)),
    ("I3", "another status", lambda k: spoilt(k, status="PROCESSING")),
    ("I3", "an extra field", lambda k: spoilt(k, surprise=None)),
    ("I3", "a row that is no event", lambda k: changed(k, 1, data={})),
    ("I4", "two ends", lambda k: replace(k, rows=[*k.rows, {**k.rows[-1], "sequence": 4}])),
    ("I4", "an end by another upload", lambda k: replace(k, rows=[*k.rows, {**k.rows[-1], "causation_id": "b"}])),
    ("I10", "a rendition is gone", lambda k: replace(k, objects={})),
    ("I10", "a rendition of another size", lambda k: replace(k, objects={n: Listed(9, events.NOW) for n in k.objects})),
    ("I10", "no renditions", lambda k: spoilt(k, renditions=[])),
]


@pytest.mark.parametrize(("invariant", "what", "spoil"), SPOILT, ids=[f"{i}: {what}" for i, what, _ in SPOILT])
def test_what_is_spoilt_is_found(invariant: str, what: str, spoil: Callable[[Kept], Kept]) -> None:
    assert invariant in {violation.invariant for violation in violations(spoil(kept()))}


def test_ranges_cover_every_id_and_stay_small() -> None:
    assert ranges(10) == [""]
    for assets in (5_000, 100_000, 10**7):
        found = ranges(assets)
        assert assets / len(found) <= ASSETS_A_RANGE
        assert found == sorted(found)
        assert len(found) == 16 ** len(found[0])
