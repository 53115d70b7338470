"""One event through a whole processor on real servers, and every way in which that goes wrong."""

import hashlib
import os
import signal
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any

import pytest
from PIL import Image
from pymongo.errors import OperationFailure

from darkroom.assets import to_document
from darkroom.inbox import Claim, Claimed, Lease
from darkroom.inbox.consumer import Finished, Later
from darkroom.inbox.outage import Outage
from darkroom.life.objects import ObjectStore, RemovalFailed
from darkroom.life.rejected import COLLECTION, RejectedOriginal, RejectedOriginals
from darkroom.life.sweep import Sweeper
from darkroom.outbox import to_row
from darkroom.runtime.leased import LeasedJob
from processor.classifier import Classifier, OnFailure, Picture
from processor.imaging.failure import DecoderUnavailable
from processor.imaging.labels import NAMES
from processor.imaging.pool import DecoderPool
from processor.objects import Bucket, ObjectMissing
from processor.store import Conflict, Store
from support import events, pictures
from support.eventually import eventually
from support.faults import failing

from .conftest import PICTURE, Crash, World, direct_at, s3_at

READY = ["Registered", "Processing", "Ready"]
FAILED = ["Registered", "Processing", "Failed"]


def test_an_upload_becomes_ready(world: World) -> None:
    asset = world.upload(checksum_sha256=b64encode(hashlib.sha256(PICTURE).digest()).decode())
    delivery = world.delivery(asset)
    assert world.processor(delivery) == Finished()
    assert world.types(asset) == READY
    world.check_renditions(asset)
    ready = world.asset(asset)
    assert ready.original is not None
    assert (ready.original.width, ready.original.height, ready.original.format) == (600, 400, "jpeg")
    assert (ready.original.size, ready.original.etag) == (len(PICTURE), hashlib.md5(PICTURE).hexdigest())  # noqa: S324 -- what S3's eTag is
    row = world.row(delivery)
    assert (row["state"], row["outcome"], row["attempts"]) == ("COMPLETED", "ready", 1)
    for event in world.stream(asset)[1:]:
        assert event.causation_id == world.event_id(delivery)
        assert event.correlation_id == "request-1"


def test_a_redelivery_after_success_changes_nothing(world: World) -> None:
    asset = world.upload()
    assert world.processor(world.delivery(asset)) == Finished()
    worker, decoder = world.with_decoder()
    assert worker(world.delivery(asset)) == Finished()
    assert decoder.calls == 0
    assert world.types(asset) == READY


def test_another_workers_valid_lease_is_waited_for(world: World) -> None:
    asset = world.upload()
    delivery = world.delivery(asset)
    assert isinstance(world.processor.inbox.claim(world.event_id(delivery), owner="another"), Claimed)
    verdict = world.processor(delivery)
    assert isinstance(verdict, Later)
    assert 0.5 < verdict.seconds <= 1.5
    assert world.types(asset) == ["Registered"]
    world.run_out()
    assert world.processor(delivery) == Finished()
    assert world.types(asset) == READY
    assert world.row(delivery)["attempts"] == 2


@pytest.mark.parametrize(
    ("data", "registered", "code"),
    [
        (b"\xff\xd8\xff" + bytes(500), {}, "corrupt_or_truncated"),
        (b"plain text, no picture", {}, "unsupported_format"),
        (b"", {"size": 10}, "empty_object"),
        (PICTURE, {"size": len(PICTURE) + 1}, "size_mismatch"),
        (PICTURE, {"checksum_sha256": b64encode(bytes(32)).decode()}, "checksum_mismatch"),
        (PICTURE, {"size": 1_000_001}, "too_large"),
    ],
)
@pytest.mark.parametrize("told_size", [True, False])
def test_a_picture_at_fault_fails_at_once(
    world: World, data: bytes, registered: dict[str, Any], code: str, told_size: bool
) -> None:
    asset = world.upload(data, **registered)
    delivery = world.delivery(asset, size=len(data) if told_size else None)
    assert world.processor(delivery) == Finished()
    assert world.types(asset) == FAILED
    failure = world.asset(asset).failure
    assert failure is not None
    assert failure.code == code
    assert (world.row(delivery)["state"], world.row(delivery)["attempts"]) == ("COMPLETED", 1)
    assert world.keys(asset) == {"original.jpg"}


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("policy", RejectedOriginals)
def test_a_rejected_original_is_treated_by_policy(world: World, policy: RejectedOriginals, versioned: bool) -> None:
    if versioned:
        world.s3.put_bucket_versioning(Bucket=world.bucket, VersioningConfiguration={"Status": "Enabled"})
    asset = world.upload(b"no picture")
    head = world.s3.head_object(Bucket=world.bucket, Key=asset.object_key)
    worker = world.rendering(rejected_originals=policy)
    assert worker(world.delivery(asset, version_id=head.get("VersionId"))) == Finished()
    assert world.types(asset) == FAILED
    failure = world.asset(asset).failure
    assert failure is not None
    assert failure.code == "unsupported_format"
    assert world.keys(asset) == (set() if policy is RejectedOriginals.DELETE else {"original.jpg"})
    if policy is not RejectedOriginals.DELETE:
        expected = {"darkroom-state": "rejected", "darkroom-failure": "unsupported_format"}
        assert world.tags(asset) == (expected if policy is RejectedOriginals.TAG else {})
    assert world.db[COLLECTION].count_documents({}) == 0


def test_a_rejected_original_is_put_away_only_once_its_asset_is_failed(world: World) -> None:
    asset = world.upload(b"no picture")
    delivery = world.delivery(asset)
    # The lease is lost unawares while it is looked at, so this worker may not say how it ended.
    worker, _ = world.with_decoder(before=lambda _: world.take_over(delivery))
    assert isinstance(
        replace(worker, rendering=replace(worker.rendering, rejected_originals=RejectedOriginals.DELETE))(delivery),
        Later,
    )
    assert world.types(asset) == ["Registered", "Processing"]
    assert world.keys(asset) == {"original.jpg"}


def test_a_good_original_is_neither_tagged_nor_deleted(world: World) -> None:
    for policy in RejectedOriginals:
        asset = world.upload()
        assert world.rendering(rejected_originals=policy)(world.delivery(asset)) == Finished()
        assert world.types(asset) == READY
        assert "original.jpg" in world.keys(asset)
        assert world.s3.get_object_tagging(Bucket=world.bucket, Key=asset.object_key)["TagSet"] == []


class Dying(ObjectStore):
    """A store whose user is gone, as after SIGKILL, before it is asked."""

    def put_away(self, original: RejectedOriginal) -> None:
        raise Crash(original.object_key)


class Refusing(ObjectStore):
    """S3, when it is out of order."""

    def put_away(self, original: RejectedOriginal) -> None:
        raise RemovalFailed(f"SlowDown: {original.object_key}")


@pytest.mark.parametrize("policy", [RejectedOriginals.TAG, RejectedOriginals.DELETE])
@pytest.mark.parametrize("store", [Dying, Refusing])
def test_what_a_processor_did_not_live_to_put_away_a_sweep_does(
    world: World, policy: RejectedOriginals, store: type[ObjectStore]
) -> None:
    asset = world.upload(b"no picture")
    worker = replace(world.rendering(rejected_originals=policy), originals=store(world.s3, bucket=world.bucket))
    with suppress(Crash):
        worker(world.delivery(asset))
    assert world.types(asset) == FAILED
    assert world.tags(asset) == {}
    sweeper = Sweeper(
        client=world.db.client,
        db=world.db,
        objects=ObjectStore(world.s3, bucket=world.bucket),
        job=LeasedJob(world.db, "sweep", 60),
        uploading=timedelta(days=1),
        retention=timedelta(days=30),
    )
    swept = sweeper.run()
    assert swept is not None
    assert swept.put_away == 0, "the processor has its own time for it"
    world.db[COLLECTION].update_many({}, [{"$set": {"due_at": "$$NOW"}}])
    # One that a later release wrote is in the way of no other, and S3 does not do it at first: it is tried again.
    odd = {
        "_id": "odd",
        "object_key": "k",
        "version_id": None,
        "policy": "shred",
        "code": "c",
        "due_at": datetime.now(UTC),
    }
    world.db[COLLECTION].insert_one(odd)
    swept = replace(sweeper, objects=Refusing(world.s3, bucket=world.bucket)).run()
    assert swept is not None
    assert (swept.put_away, swept.failed) == (0, 2)
    world.db[COLLECTION].delete_one({"_id": "odd"})
    world.db[COLLECTION].update_many({}, [{"$set": {"due_at": "$$NOW"}}])
    swept = sweeper.run()
    assert swept is not None
    assert (swept.put_away, swept.failed) == (1, 0)
    if policy is RejectedOriginals.DELETE:
        assert world.keys(asset) == set()
    else:
        assert world.tags(asset) == {"darkroom-state": "rejected", "darkroom-failure": "unsupported_format"}
    assert world.db[COLLECTION].count_documents({}) == 0


def test_an_original_that_is_gone_is_put_away(world: World) -> None:
    asset = world.upload(b"no picture")
    delivery = world.delivery(asset)
    # It disappears before it is tagged.
    gone, _ = world.with_decoder(
        before=lambda _: world.s3.delete_object(Bucket=world.bucket, Key=asset.object_key),
    )
    assert (
        replace(gone, rendering=replace(gone.rendering, rejected_originals=RejectedOriginals.TAG))(delivery)
        == Finished()
    )
    assert world.types(asset) == FAILED
    assert world.row(delivery)["state"] == "COMPLETED"
    assert world.db[COLLECTION].count_documents({}) == 0


def test_labels_are_told_in_the_event_and_kept_with_the_asset(world: World) -> None:
    asset = world.upload()
    assert world.processor(world.delivery(asset)) == Finished()
    assert world.types(asset) == READY
    labels = world.asset(asset).labels
    assert set(labels) == set(NAMES)
    assert (labels["orientation"], labels["animated"], labels["has_alpha"]) == ("landscape", "false", "false")


def broken(_: Picture) -> Mapping[str, str]:
    raise RuntimeError("no model")


def sized(picture: Picture) -> Mapping[str, str]:
    with Image.open(BytesIO(picture.data)) as image:
        return {"seen": f"{image.format} {image.width}x{image.height}", "asset": picture.asset_id}


def test_an_own_classifiers_labels_stand_beside_the_others(world: World) -> None:
    own = Classifier(sized, seconds=5, on_failure=OnFailure.RETRY, limit=1)
    asset = world.upload()
    assert world.rendering(classifier=own)(world.delivery(asset)) == Finished()
    assert world.types(asset) == READY
    labels = world.asset(asset).labels
    assert (labels["seen"], labels["asset"]) == ("JPEG 300x200", asset.id)
    assert set(NAMES) < set(labels)


def test_a_classifier_that_fails_is_skipped_or_costs_attempts(world: World) -> None:
    skip, retry = (Classifier(broken, seconds=5, on_failure=policy, limit=1) for policy in OnFailure)
    skipped = world.upload()
    assert world.rendering(classifier=skip)(world.delivery(skipped)) == Finished()
    assert world.types(skipped) == READY
    assert set(world.asset(skipped).labels) == set(NAMES)
    retried = world.upload()
    delivery = world.delivery(retried)
    worker = world.rendering(classifier=retry)
    for _ in range(2):
        assert isinstance(worker(delivery), Later)
        world.run_out()
    assert worker(delivery) == Finished()
    assert world.types(retried) == FAILED
    failure = world.asset(retried).failure
    assert failure is not None
    assert failure.code == "retries_exhausted"
    assert "no model" in failure.message


def test_a_missing_object_is_tried_again_and_then_given_up(world: World) -> None:
    asset = world.upload()
    world.s3.delete_object(Bucket=world.bucket, Key=asset.object_key)
    delivery = world.delivery(asset)
    for attempt in (1, 2):
        verdict = world.processor(delivery)
        assert isinstance(verdict, Later)
        assert world.row(delivery)["attempts"] == attempt
        # The back-off holds for everybody, and is not an attempt.
        assert isinstance(world.processor(world.delivery(asset)), Later)
        assert world.types(asset) == ["Registered", "Processing"]
        world.run_out()
    assert world.processor(delivery) == Finished()
    assert world.types(asset) == FAILED
    failure = world.asset(asset).failure
    assert failure is not None
    assert failure.code == "object_missing"
    assert (world.row(delivery)["state"], world.row(delivery)["attempts"]) == ("DEAD", 3)
    assert world.processor(world.delivery(asset)) == Finished()


def test_an_object_that_appears_late_becomes_ready(world: World) -> None:
    asset = world.upload()
    world.s3.delete_object(Bucket=world.bucket, Key=asset.object_key)
    delivery = world.delivery(asset)
    assert isinstance(world.processor(delivery), Later)
    world.s3.put_object(Bucket=world.bucket, Key=asset.object_key, Body=PICTURE)
    world.run_out()
    assert world.processor(delivery) == Finished()
    assert world.types(asset) == READY


def test_an_outage_of_s3_costs_no_attempt(world: World) -> None:
    dead = s3_at("http://127.0.0.1:9", connect_timeout=1)
    asset = world.upload()
    cut_off = world.rendering(
        bucket=Bucket(dead, name=world.bucket, download_seconds=5, direct=direct_at(dead, world.bucket))
    )
    for _ in range(5):
        # Each time another process, as when they are restarted during the outage.
        delivery = world.delivery(asset)
        with pytest.raises(Outage) as caught:
            cut_off(delivery)
        assert caught.value.server == "S3"
        with pytest.raises(Exception, match="Could not connect"):
            caught.value.probe()
    assert world.row(delivery)["attempts"] == 0
    assert world.processor(world.delivery(asset)) == Finished()
    assert world.types(asset) == READY
    dead.close()


def test_a_decoder_that_cannot_start_costs_no_attempt(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asset = world.upload()
    with DecoderPool(size=1) as pool:
        worker = world.rendering(decoder=pool)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", "/nowhere/python")
            os.kill(pool.pids()[0], signal.SIGKILL)
            for _ in range(4):
                # More often than there are attempts, and each time as another process.
                delivery = world.delivery(asset)
                with pytest.raises(Outage) as caught:
                    worker(delivery)
                assert caught.value.server == "the decoder"
                with pytest.raises(DecoderUnavailable):
                    caught.value.probe()
        assert world.row(delivery)["attempts"] == 0
        eventually(lambda: passes(caught.value.probe), what="a new child")
        assert worker(world.delivery(asset)) == Finished()
    assert world.types(asset) == READY


def passes(probe: Callable[[], object]) -> bool:
    with suppress(DecoderUnavailable):
        probe()
        return True
    return False


@pytest.mark.parametrize("code", [13, 14031])
def test_a_mongodb_that_serves_nobody_is_an_outage(world: World, code: int) -> None:
    asset = world.upload()
    delivery = world.delivery(asset)
    with failing(world.db.client, "insert", app=world.app, errorCode=code), pytest.raises(Outage):
        world.processor(delivery)
    assert world.processor(delivery) == Finished()
    assert world.types(asset) == READY
    assert world.row(delivery)["attempts"] == 1


def test_an_outage_of_mongodb_is_told_as_one(world: World) -> None:
    asset = world.upload()
    delivery = world.delivery(asset)
    with failing(world.db.client, "find", app=world.app, closeConnection=True), pytest.raises(Outage) as caught:
        world.processor(delivery)
    assert caught.value.server == "MongoDB"
    caught.value.probe()
    assert world.processor(delivery) == Finished()
    assert world.types(asset) == READY


@pytest.mark.parametrize(
    ("commands", "fault"),
    [
        (["commitTransaction"], {"errorCode": 10107}),
        (["commitTransaction"], {"errorCode": 8, "errorLabels": ["UnknownTransactionCommitResult"]}),
        (["commitTransaction"], {"writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}}),
        (["insert"], {"errorCode": 112, "errorLabels": ["TransientTransactionError"]}),
        (["update"], {"closeConnection": True}),
    ],
)
@pytest.mark.parametrize("end", ["ready", "failed"])
def test_a_faltering_final_transaction_has_one_effect(
    world: World, commands: list[str], fault: dict[str, Any], end: str
) -> None:
    asset = world.upload(PICTURE if end == "ready" else b"no picture")
    delivery = world.delivery(asset)
    with ExitStack() as faults:
        worker, _ = world.with_decoder(
            before=lambda _: faults.enter_context(failing(world.db.client, *commands, app=world.app, times=2, **fault))
        )
        assert worker(delivery) == Finished()
    assert world.types(asset) == (READY if end == "ready" else FAILED)
    assert (world.row(delivery)["state"], world.row(delivery)["attempts"]) == ("COMPLETED", 1)


class CrashAfterFinish(Store):
    def finish(self, *args: Any, **options: Any) -> None:
        super().finish(*args, **options)
        raise Crash


class CrashAfterPut(Bucket):
    def store(self, *args: Any, **options: Any) -> None:
        super().store(*args, **options)
        raise Crash


def crash(_: object = None) -> None:
    raise Crash


def test_a_crash_after_the_start_is_taken_over(world: World) -> None:
    asset = world.upload()
    worker, _ = world.with_decoder(before=crash)
    with pytest.raises(Crash):
        worker(world.delivery(asset))
    assert world.types(asset) == ["Registered", "Processing"]
    second = world.delivery(asset)
    assert isinstance(world.processor(second), Later)
    world.run_out()
    assert world.processor(second) == Finished()
    assert world.types(asset) == READY
    assert world.row(second)["attempts"] == 2


def test_a_crash_after_a_rendition_was_written_is_taken_over(world: World) -> None:
    asset = world.upload()
    there = CrashAfterPut(world.s3, name=world.bucket, download_seconds=5)
    with pytest.raises(Crash):
        world.rendering(bucket=there)(world.delivery(asset))
    assert world.keys(asset) == {"original.jpg", "thumb.jpg"}
    world.run_out()
    assert world.processor(world.delivery(asset)) == Finished()
    assert world.types(asset) == READY
    world.check_renditions(asset)


def test_a_crash_after_the_end_is_only_a_redelivery(world: World) -> None:
    asset = world.upload()
    store = world.processor.store
    with pytest.raises(Crash):
        replace(world.processor, store=CrashAfterFinish(store.client, store.db, store.inbox))(world.delivery(asset))
    assert world.processor(world.delivery(asset)) == Finished()
    assert world.types(asset) == READY


def test_crashes_count_and_end_in_a_failed_asset(world: World) -> None:
    asset = world.upload()
    worker, decoder = world.with_decoder(before=crash)
    for _ in range(3):
        with pytest.raises(Crash):
            worker(world.delivery(asset))
        world.run_out()
    last = world.delivery(asset)
    assert worker(last) == Finished()
    assert decoder.calls == 3, "the poison is not touched a fourth time"
    assert world.types(asset) == FAILED
    failure = world.asset(asset).failure
    assert failure is not None
    assert failure.code == "retries_exhausted"
    assert world.row(last)["state"] == "DEAD"


def test_of_the_events_whose_holder_vanished_one_is_worked_on_at_a_time(world: World) -> None:
    """Or the neighbours of a picture that kills its process would run beside it, and be given up, each time."""
    first, second, fresh = world.upload(), world.upload(), world.upload()
    crashing, _ = world.with_decoder(before=crash)
    for asset in (first, second):
        with pytest.raises(Crash):
            crashing(world.delivery(asset))
    world.run_out()
    verdicts: list[object] = []

    def meanwhile(_: object) -> None:
        if not verdicts:
            waiting = world.delivery(second)
            verdicts.append(world.processor(waiting))
            verdicts.append(world.row(waiting)["attempts"])
            verdicts.append(world.processor(world.delivery(fresh)))

    worker, _ = world.with_decoder(before=meanwhile)
    assert worker(world.delivery(first)) == Finished()
    waited, attempts, free = verdicts
    assert isinstance(waited, Later)
    assert attempts == 1, "the one that waits has its attempt back"
    assert free == Finished(), "a fresh one goes on beside it"
    assert worker(world.delivery(second)) == Finished()
    assert [world.types(asset) for asset in (first, second, fresh)] == [READY] * 3


def test_giving_up_is_one_transaction(world: World) -> None:
    asset = world.upload()
    worker, _ = world.with_decoder(before=crash)
    with pytest.raises(Crash):
        worker(world.delivery(asset))
    world.run_out()
    once = replace(world.processor, max_attempts=1)
    last = world.delivery(asset)
    with failing(world.db.client, "insert", app=world.app, errorCode=13), pytest.raises(Outage):
        once(last)
    assert world.row(last)["state"] == "PROCESSING"
    assert world.types(asset) == ["Registered", "Processing"]
    assert once(last) == Finished()
    assert world.types(asset) == FAILED
    assert world.row(last)["state"] == "DEAD"


def test_a_lease_lost_while_rendering_calls_the_work_off(world: World) -> None:
    asset = world.upload()
    delivery = world.delivery(asset)

    def overtaken(cancelled: threading.Event | None) -> None:
        world.take_over(delivery)
        assert cancelled is not None
        assert cancelled.wait(10), "the keeper notices at its next renewal"

    worker, _ = world.with_decoder(before=overtaken)
    verdict = worker(delivery)
    assert isinstance(verdict, Later)
    assert world.types(asset) == ["Registered", "Processing"]
    assert world.keys(asset) == {"original.jpg"}
    row = world.row(delivery)
    assert (row["lease_owner"], row["fence"], row["attempts"], row["state"]) == ("another", 2, 2, "PROCESSING")


@pytest.mark.parametrize("end", ["ready", "failed", "retry", "given up"])
def test_a_worker_that_was_overtaken_unawares_writes_nothing(world: World, end: str) -> None:
    asset = world.upload(b"no picture" if end == "failed" else PICTURE)
    delivery = world.delivery(asset)

    def overtaken() -> None:
        world.take_over(delivery)
        if end in ("retry", "given up"):
            raise ObjectMissing("gone")

    attempts = 1 if end == "given up" else 3
    worker, _ = world.with_decoder(before=lambda _: overtaken())
    # This worker's keeper stands still, as the whole process does after SIGSTOP.
    worker.keeper.close()
    verdict = replace(worker, max_attempts=attempts)(delivery)
    assert isinstance(verdict, Later)
    assert world.types(asset) == ["Registered", "Processing"]
    assert (world.row(delivery)["lease_owner"], world.row(delivery)["attempts"]) == ("another", 2)


def test_a_worker_that_was_overtaken_before_it_began_does_not_begin(world: World) -> None:
    asset = world.upload()
    delivery = world.delivery(asset)
    lease = world.processor.inbox.claim(world.event_id(delivery), owner=delivery.owner)
    assert isinstance(lease, Claimed)

    class Stalled(Store):
        def begin(self, *_: Any, **__: Any) -> Claim:
            raise Conflict("it is claimed by itself")

        def start(self, change: Any, lease: Lease) -> None:
            world.take_over(delivery)
            super().start(change, lease)

    store = world.processor.store
    verdict = replace(world.processor, store=Stalled(store.client, store.db, store.inbox))(delivery)
    assert isinstance(verdict, Later)
    assert world.types(asset) == ["Registered"]


def test_an_event_that_another_holds_is_not_begun(world: World) -> None:
    asset = world.upload()
    delivery = world.delivery(asset)
    assert isinstance(world.processor.inbox.claim(world.event_id(delivery), owner="another"), Claimed)
    before = world.row(delivery)
    assert isinstance(world.processor(delivery), Later)
    assert world.types(asset) == ["Registered"]
    assert world.row(delivery) == before


def test_what_cannot_be_begun_costs_an_attempt(world: World) -> None:
    asset = world.upload()
    delivery = world.delivery(asset)

    class Refused(Store):
        def _write(self, *_: Any) -> None:
            raise OperationFailure("never", 2)

    store = world.processor.store
    with suppress(OperationFailure):
        replace(world.processor, store=Refused(store.client, store.db, store.inbox))(delivery)
    assert world.types(asset) == ["Registered"]
    assert world.row(delivery)["attempts"] == 1


def test_work_that_is_called_off_gives_its_attempt_back(world: World) -> None:
    asset = world.upload()
    delivery = world.delivery(asset)
    worker, _ = world.with_decoder(before=lambda _: delivery.cancelled.set())
    assert isinstance(worker(delivery), Later)
    row = world.row(delivery)
    assert row["attempts"] == 0
    assert "lease_owner" not in row
    again = world.delivery(asset)
    assert world.processor(again) == Finished()
    assert world.row(again)["attempts"] == 1


def test_a_defect_costs_attempts_and_ends(world: World) -> None:
    asset = world.upload()
    delivery = world.delivery(asset)

    def defect(_: object) -> None:
        raise ZeroDivisionError("a defect")

    worker, decoder = world.with_decoder(before=defect)
    for _ in range(2):
        assert isinstance(worker(delivery), Later)
        assert world.row(delivery)["last_error"] == "ZeroDivisionError: a defect"
        world.run_out()
    assert worker(delivery) == Finished()
    assert decoder.calls == 3
    assert world.types(asset) == FAILED
    assert world.row(delivery)["state"] == "DEAD"


def test_a_defect_before_the_work_costs_attempts_and_ends(world: World) -> None:
    asset = world.upload()
    calls = 0

    class Defective(Store):
        def begin(self, *_: Any, **__: Any) -> Claim:
            raise ZeroDivisionError("a defect \ud800")

        def start(self, change: Any, lease: Lease) -> None:
            nonlocal calls
            calls += 1
            if calls <= 3:
                raise ZeroDivisionError("a defect \ud800")
            super().start(change, lease)

    store = world.processor.store
    worker = replace(world.processor, store=Defective(store.client, store.db, store.inbox))
    for attempt in (1, 2):
        delivery = world.delivery(asset)
        assert isinstance(worker(delivery), Later)
        assert world.row(delivery)["attempts"] == attempt
        assert world.row(delivery)["last_error"] == "ZeroDivisionError: a defect \\ud800"
        world.run_out()
    assert worker(delivery) == Finished()
    assert world.types(asset) == FAILED
    failure = world.asset(asset).failure
    assert failure is not None
    assert failure.code == "retries_exhausted"
    assert (world.row(delivery)["state"], world.row(delivery)["attempts"]) == ("DEAD", 3)


def test_two_workers_at_once_have_one_effect(world: World) -> None:
    asset = world.upload()
    verdicts: list[object] = []
    together = threading.Barrier(4)

    def work() -> None:
        delivery = world.delivery(asset)
        together.wait(10)
        verdicts.append(world.processor(delivery))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(verdicts) == 4
    assert Finished() in verdicts
    assert world.types(asset) == READY


@pytest.mark.parametrize("end", ["ready", "failed"])
def test_another_upload_of_a_done_asset_changes_nothing(world: World, end: str) -> None:
    asset = world.upload(PICTURE if end == "ready" else b"no picture")
    world.processor(world.delivery(asset))
    before = world.types(asset)
    world.s3.put_object(Bucket=world.bucket, Key=asset.object_key, Body=pictures.jpeg(80, 80))
    second = world.delivery(asset, etag="another")
    worker, decoder = world.with_decoder()
    assert worker(second) == Finished()
    assert decoder.calls == 0
    assert world.types(asset) == before
    assert world.row(second)["outcome"] == f"ignored: asset was {end.upper()}"


def test_an_asset_that_moved_on_meanwhile_is_decided_anew(world: World) -> None:
    """Another upload event of the same asset is processed between reading the asset and starting."""
    asset = world.upload()
    other = events.new_id()

    class Slow(Store):
        def find(self, asset_id: str) -> Any:
            found = super().find(asset_id)
            if found is not None and found.version == 1:
                change = events.step(found, events.processing(other))
                world.db.assets.replace_one({"_id": asset_id}, to_document(change.after))
                world.db.outbox_events.insert_one(to_row(change.event))
            return found

    store = world.processor.store
    delivery = world.delivery(asset)
    assert replace(world.processor, store=Slow(store.client, store.db, store.inbox))(delivery) == Finished()
    assert world.types(asset) == ["Registered", "Processing"]
    assert world.row(delivery)["outcome"] == "ignored: asset was PROCESSING"
