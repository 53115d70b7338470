"""The whole store is checked, and what differs from its stream is made anew."""

from typing import Any

import pytest

from darkroom.ops.rebuild import Step, rebuild
from darkroom.ops.verify import verify
from darkroom.ops.walk import Range
from integration.ops.conftest import Place
from support import events, pictures


def test_a_clean_store_is_clean_and_everything_in_it_was_looked_at(place: Place) -> None:
    for _ in range(3):
        place.ready()
    place.upload()
    place.put("assets/not-an-id/original.jpg")
    seen: list[Range] = []
    verdict = verify(place.installation, on_progress=lambda part, _: seen.append(part))
    assert verdict.as_json() == {
        "clean": True,
        "assets": 4,
        "events": 10,
        "renditions": 3,
        "decoded": 0,
        "violations": {},
        "examples": [],
    }
    assert (seen[-1].number, seen[-1].of) == (1, 1)


def test_a_store_of_many_ranges_is_walked_to_its_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("darkroom.ops.walk.ASSETS_A_RANGE", 2)
    made = {place.upload().id for _ in range(40)}
    seen: list[Range] = []
    assert verify(place.installation, on_progress=lambda part, _: seen.append(part)).assets == 40
    assert len(seen) == seen[0].of == 256
    assert {kept.asset_id for part in seen for kept in part.kept} == made


def test_each_violation_is_found(place: Place) -> None:
    gap, other, lost, twice = place.ready(), place.ready(), place.ready(), place.ready()
    place.db.outbox_events.delete_one({"asset_id": gap.id, "sequence": 2})
    place.db.assets.update_one({"_id": other.id}, {"$set": {"filename": "another.jpg"}})
    place.delete(lost.renditions[0].object_key)
    cause = place.db.outbox_events.find_one({"asset_id": other.id, "sequence": 3})["causation_id"]
    place.db.outbox_events.update_one({"asset_id": twice.id, "sequence": 3}, {"$set": {"causation_id": cause}})
    verdict = verify(place.installation)
    assert not verdict.clean
    found = {(violation.invariant, violation.asset_id) for violation in verdict.examples}
    assert found >= {("I2", gap.id), ("I3", other.id), ("I10", lost.id)}
    assert next(v for v in verdict.examples if v.invariant == "I4").asset_id in (other.id, twice.id)


def test_what_changes_while_it_is_read_is_no_violation(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    asset = place.begin(place.upload())
    walk = __import__("darkroom.ops.verify", fromlist=["walk"]).walk

    def moves_on(*given: Any, **named: Any) -> Any:
        for part in walk(*given, **named):
            place.db.assets.update_one({"_id": asset.id}, {"$set": {"filename": "photo.jpg"}})
            yield part

    place.db.assets.update_one({"_id": asset.id}, {"$set": {"filename": "half-written.jpg"}})
    monkeypatch.setattr("darkroom.ops.verify.walk", moves_on)
    assert verify(place.installation).clean


def test_renditions_are_decoded_on_request(place: Place) -> None:
    good, bad = place.ready(), place.ready()
    for asset, data in ((good, pictures.jpeg(40, 30)), (bad, pictures.jpeg(41, 30))):
        place.put(asset.renditions[0].object_key, data)
        place.db.outbox_events.update_one(
            {"asset_id": asset.id, "sequence": 3}, {"$set": {"data.renditions.0.size": len(data)}}
        )
    assert {one.step for one in rebuild(place.installation, dry_run=False)} == {Step.REPLACE}
    assert verify(place.installation).clean
    verdict = verify(place.installation, decode=True)
    assert verdict.decoded == 2
    assert [(v.invariant, v.asset_id) for v in verdict.examples] == [("I10", bad.id)]


def test_a_rebuild_makes_documents_what_their_streams_tell(place: Place) -> None:
    changed, gone, right = place.ready(), place.ready(), place.ready()
    before = place.stored(right)
    place.db.assets.update_one({"_id": changed.id}, {"$set": {"status": "FAILED", "extra": 1}, "$unset": {"labels": 1}})
    place.db.assets.delete_one({"_id": gone.id})
    plan = list(rebuild(place.installation, dry_run=True))
    steps = {one.asset_id: one.step for one in plan}
    assert steps == {changed.id: Step.REPLACE, gone.id: Step.INSERT}
    differing = next(one.fields for one in plan if one.asset_id == changed.id)
    assert differing == {"status": ("FAILED", "READY"), "extra": (1, None), "labels": (None, {"tone": "warm"})}
    assert place.stored(changed)["status"] == "FAILED"
    assert len(list(rebuild(place.installation, dry_run=False))) == 2
    assert verify(place.installation).clean
    assert place.stored(right) == before
    assert list(rebuild(place.installation, dry_run=False)) == []


def test_a_rebuild_of_one_asset_leaves_the_others(place: Place) -> None:
    one, other = place.ready(), place.ready()
    place.db.assets.update_many({}, {"$set": {"status": "FAILED"}})
    assert [r.asset_id for r in rebuild(place.installation, asset_ids=[one.id], dry_run=False)] == [one.id]
    assert (place.stored(one)["status"], place.stored(other)["status"]) == ("READY", "FAILED")


def test_what_cannot_be_folded_is_told_and_left(place: Place) -> None:
    asset = place.ready()
    place.db.outbox_events.delete_one({"asset_id": asset.id, "sequence": 1})
    stray = events.registered().after
    place.db.assets.insert_one({"_id": stray.id, "status": "UPLOADING", "version": 1})
    found = {one.asset_id: one for one in rebuild(place.installation, dry_run=False)}
    assert {one.step for one in found.values()} == {Step.REMAINS}
    assert "cannot be folded" in found[asset.id].why
    assert "no stream" in found[stray.id].why
