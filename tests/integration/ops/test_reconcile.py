"""What is lost between MongoDB, S3 and Kafka is found and mended; what only takes its time is left alone."""

from datetime import timedelta
from typing import Any

import pytest

from darkroom.assets import Asset
from darkroom.contracts.envelope import Event, from_record
from darkroom.ops.findings import Finding, Kind, Patience
from darkroom.ops.reconcile import TAG, Pass, Reconciler
from darkroom.ops.verify import verify
from darkroom.runtime.leased import LeasedJob, TurnLost
from integration.ops.conftest import Place
from s3_bridge.notification import read_notification
from support import events, s3_messages
from support.events import NOW
from support.eventually import eventually
from support.queues import read_topic

AT_ONCE = Patience(unfinished=0, orphan=-60, grace=-60)


def reconciler(place: Place, patience: Patience = AT_ONCE, **given: Any) -> Reconciler:
    return Reconciler(installation=place.installation, patience=patience, rate=0, **given)


def run(place: Place, name: Pass, patience: Patience = AT_ONCE) -> list[tuple[Kind, str, str | None]]:
    told: list[tuple[Kind, str, str | None]] = []

    def tell(finding: Finding, problem: str | None) -> None:
        told.append((finding.kind, finding.asset_id, problem))

    report = reconciler(place, patience).run(name, on_finding=tell)
    assert report is not None
    assert report.finished
    return told


def announcements(place: Place, count: int) -> list[Event]:
    records = read_topic(place.installation.bootstrap, place.installation.topics.uploaded, count=count, deadline=10)
    return [from_record(key=r.key(), value=r.value(), record_headers=r.headers()) for r in records]  # type: ignore[arg-type]


def bridged(place: Place, asset: Asset) -> Event:
    """The event that the bridge makes of S3's notification of this object."""
    bucket = place.installation.bucket
    head = place.installation.s3.head_object(Bucket=bucket, Key=asset.object_key)
    found = {"size": head["ContentLength"], "eTag": head["ETag"].strip('"'), "versionId": head["VersionId"]}
    body = s3_messages.body(s3_messages.s3_record(asset.object_key, bucket=bucket, **found))
    (event,) = read_notification(body, bucket=bucket, sent_at=NOW).events
    return event


def test_a_lost_notification_is_made_good_under_the_bridges_own_id(whole: Place) -> None:
    lost, pending = whole.upload(), whole.register()
    assert [finding.kind for finding in reconciler(whole).plan(Pass.UNFINISHED)] == [Kind.LOST_NOTIFICATION]
    assert whole.db.jobs.count_documents({}) == whole.db.operations.count_documents({}) == 0
    assert run(whole, Pass.UNFINISHED) == [(Kind.LOST_NOTIFICATION, lost.id, None)]
    (event,) = announcements(whole, 1)
    expected = bridged(whole, lost)
    assert (event.id, event.asset_id) == (expected.id, lost.id)
    assert event.data.model_copy(update={"uploaded_at": None, "sequencer": None}) == expected.data.model_copy(
        update={"uploaded_at": None, "sequencer": None}
    )
    (operation,) = whole.db.operations.find()
    assert (operation["action"], operation["asset_id"], operation["event_id"]) == ("announce", lost.id, event.id)
    # The processors may be behind: it is not announced again and again.
    assert run(whole, Pass.UNFINISHED) == []
    assert whole.stored(pending)["status"] == "UPLOADING"


def test_what_is_young_or_worked_on_is_left_alone(whole: Place) -> None:
    whole.db.assets.update_one({"_id": whole.upload().id}, [{"$set": {"updated_at": "$$NOW"}}])
    assert run(whole, Pass.UNFINISHED, Patience(unfinished=60)) == []
    busy = whole.begin(whole.upload())
    whole.inbox(
        busy, state="PROCESSING", lease_owner="worker", lease_until=whole.installation.now() + timedelta(minutes=1)
    )
    assert run(whole, Pass.UNFINISHED, Patience(unfinished=60)) == []


def test_an_upload_whose_worker_is_gone_is_announced_again(whole: Place) -> None:
    asset = whole.begin(whole.upload())
    assert asset.upload is not None
    whole.inbox(asset, state="PROCESSING", lease_owner="gone", lease_until=NOW - timedelta(days=400))
    # A second version must not be taken for the one that is processed.
    whole.put(asset.object_key, b"another")
    assert run(whole, Pass.UNFINISHED) == [(Kind.STUCK_PROCESSING, asset.id, None)]
    (event,) = announcements(whole, 1)
    assert (event.id, event.data.model_dump()["size"]) == (asset.upload.event_id, asset.size)


def test_an_upload_that_ended_without_its_asset_is_told_and_left(whole: Place) -> None:
    asset = whole.begin(whole.upload())
    whole.inbox(asset, state="COMPLETED", outcome="ready")
    assert run(whole, Pass.UNFINISHED) == [(Kind.INCONSISTENT, asset.id, None)]
    assert whole.db.operations.count_documents({}) == 0


def test_a_lost_rendition_has_its_upload_redriven(whole: Place) -> None:
    asset, fine = whole.ready(), whole.ready()
    whole.delete(asset.renditions[0].object_key)
    assert run(whole, Pass.OBJECTS) == [(Kind.LOST_RENDITION, asset.id, None)]
    stored = whole.stored(asset)
    assert (stored["status"], stored["version"]) == ("PROCESSING", 4)
    assert whole.row(asset)["state"] == "PROCESSING"
    assert whole.stored(fine)["version"] == 3
    assert verify(whole.installation).clean
    assert run(whole, Pass.OBJECTS) == []


def test_a_lost_original_is_told_each_time(whole: Place) -> None:
    asset = whole.ready()
    whole.delete(asset.object_key)
    for _ in range(2):
        assert run(whole, Pass.OBJECTS) == [(Kind.ORIGINAL_GONE, asset.id, None)]
    assert whole.stored(asset)["status"] == "READY"
    assert whole.db.jobs.find_one({"_id": "reconcile.objects"})["last"]["found"] == {"original_gone": 1}


def test_an_orphan_is_tagged_and_later_removed(whole: Place) -> None:
    s3, bucket = whole.installation.s3, whole.installation.bucket
    stranger, kept = events.registered().after, whole.ready()
    whole.put(stranger.object_key)
    tag = {"Key": "team", "Value": "a"}
    s3.put_object_tagging(Bucket=bucket, Key=stranger.object_key, Tagging={"TagSet": [tag]})
    assert run(whole, Pass.OBJECTS, Patience()) == []
    patient = Patience(orphan=-60, grace=3600)
    assert run(whole, Pass.OBJECTS, patient) == [(Kind.ORPHAN_FOUND, stranger.id, None)]
    tags = {t["Key"]: t["Value"] for t in s3.get_object_tagging(Bucket=bucket, Key=stranger.object_key)["TagSet"]}
    assert set(tags) == {TAG, "team"}
    assert run(whole, Pass.OBJECTS, patient) == []
    assert run(whole, Pass.OBJECTS) == [(Kind.ORPHAN_EXPIRED, stranger.id, None)]
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket, Prefix=f"assets/{stranger.id}/")
    assert len(s3.list_objects_v2(Bucket=bucket, Prefix=f"assets/{kept.id}/")["Contents"]) == 2


def test_only_one_runs_at_a_time_and_a_stopped_one_goes_on_where_it_was(
    whole: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("darkroom.ops.walk.ASSETS_A_RANGE", 1)
    assets = sorted(whole.ready().id for _ in range(4))
    for asset_id in assets:
        whole.delete(f"assets/{asset_id}/original.jpg")
    first = reconciler(whole)
    told: list[str] = []

    def stop_after_two(finding: Finding, _problem: str | None) -> None:
        assert reconciler(whole).run(Pass.OBJECTS) is None
        told.append(finding.asset_id)
        if len(told) == 2:
            first.stop.set()

    report = first.run(Pass.OBJECTS, on_finding=stop_after_two)
    assert report is not None
    assert not report.finished
    assert first.last_end(Pass.OBJECTS) is None
    assert told == assets[:2]
    rest = [asset_id for _, asset_id, _ in run(whole, Pass.OBJECTS)]
    # Those of a range that was not finished come again; none is left out.
    assert rest[-2:] == assets[2:]
    assert len(run(whole, Pass.OBJECTS)) == 4
    assert first.last_end(Pass.OBJECTS) is not None
    assert first.last_end(Pass.UNFINISHED) is None


def test_a_job_that_was_taken_over_cannot_be_kept(place: Place) -> None:
    first = LeasedJob(place.installation.db, "job", lease_seconds=0.2)
    second = LeasedJob(place.installation.db, "job", lease_seconds=60)
    turn = first.take()
    assert turn is not None
    assert second.take() is None
    first.keep(turn, cursor={"at": 1})
    taken = eventually(second.take, what="the lease has run out")
    assert taken is not None
    assert (taken.fence, taken.cursor) == (turn.fence + 1, {"at": 1})
    with pytest.raises(TurnLost):
        first.keep(turn, cursor=2)
    with pytest.raises(TurnLost):
        first.end(turn, result={})
    with pytest.raises(TurnLost):
        first.leave(turn)
    assert first.last_end() is None
    second.end(taken, result={"found": 1})
    assert first.last_end() == place.db.jobs.find_one({"_id": "job"})["last"]["at"]
    again = first.take()
    assert again is not None
    assert again.cursor is None
    assert place.db.jobs.find_one({"_id": "job"})["last"]["found"] == 1


def test_findings_that_cannot_be_mended_are_counted_and_do_not_stop_the_rest(whole: Place) -> None:
    broken, fine = whole.ready(), whole.ready()
    for asset in (broken, fine):
        whole.delete(asset.renditions[0].object_key)
    # Its row is still open, which a READY asset's never is: it must not be touched.
    whole.db.consumer_inbox.update_one({"event_id": whole.row(broken)["event_id"]}, {"$set": {"state": "PROCESSING"}})
    told = {asset_id: problem for _, asset_id, problem in run(whole, Pass.OBJECTS)}
    assert "has not" in str(told[broken.id])
    assert told[fine.id] is None
    assert whole.stored(broken)["version"] == 3
    assert whole.db.jobs.find_one({"_id": "reconcile.objects"})["last"]["failed"] == {"lost_rendition": 1}


def test_an_asset_that_cannot_be_read_keeps_up_no_other(whole: Place) -> None:
    spoilt, lost = whole.upload(), whole.upload()
    whole.db.assets.update_one({"_id": spoilt.id}, {"$set": {"size": "many"}})
    assert run(whole, Pass.UNFINISHED) == [(Kind.LOST_NOTIFICATION, lost.id, None)]
