"""What a sweep does and what it leaves alone, on a real replica set and an endpoint that keeps versions."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.stub import Stubber
from pymongo.database import Database
from pymongo.errors import OperationFailure

from darkroom.assets import Asset, Change, Status, change, fold, from_document, guard, to_document, update
from darkroom.contracts.events import AssetRestored, AssetTrashed
from darkroom.life import ObjectStore, RemovalFailed, Sweeper
from darkroom.life.sweep import REMOVALS
from darkroom.outbox import from_row, to_row
from darkroom.runtime.leased import LeasedJob, Turn
from darkroom.runtime.mongo import connect, ensure_indexes
from support.events import failed, processing, ready, registered
from support.eventually import eventually
from support.faults import failing
from support.servers import aws_client

Db = Database[dict[str, Any]]
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


class Crash(BaseException):
    """The sweeper is gone: nothing after this line runs, as after SIGKILL."""


class World:
    """One installation and its sweeper."""

    def __init__(self, client: Any, db: Db, s3: Any, bucket: str, app: str) -> None:
        self.client, self.db, self.s3, self.bucket, self.app = client, db, s3, bucket, app
        self.sweeper = Sweeper(
            client=client,
            db=db,
            objects=ObjectStore(s3, bucket=bucket),
            job=LeasedJob(db, "sweep", 30),
            uploading=DAY,
            retention=30 * DAY,
        )
        ensure_indexes(db, Sweeper.indexes())

    def asset(self, *datas: Any, age: timedelta) -> Asset:
        """An asset that has been as it is for so long."""
        moment = (datetime.now(UTC) - age).replace(microsecond=0)
        first = registered()
        changes = [change(None, first.event.data, occurred_at=moment, asset_id=first.after.id, owner_id="owner-1")]
        for data in datas:
            asset = changes[-1].after
            changes.append(change(asset, data(asset) if callable(data) else data, occurred_at=moment))
        self.db.assets.insert_one(to_document(changes[-1].after))
        self.db.outbox_events.insert_many([to_row(one.event) for one in changes])
        return changes[-1].after

    def put(self, asset: Asset, *names: str) -> None:
        for name in names:
            self.s3.put_object(Bucket=self.bucket, Key=f"assets/{asset.id}/{name}", Body=b"x")

    def objects(self, asset: Asset) -> int:
        """Versions and delete markers, of the asset and whatever else has its prefix."""
        found = self.s3.list_object_versions(Bucket=self.bucket, Prefix=f"assets/{asset.id}/")
        return len(found.get("Versions", [])) + len(found.get("DeleteMarkers", []))

    def status(self, asset: Asset) -> Status:
        """After checking the stream: gapless, and its fold is the asset (I2, I3)."""
        stream = [from_row(row) for row in self.db.outbox_events.find({"asset_id": asset.id}).sort("sequence", 1)]
        assert [event.sequence for event in stream] == list(range(1, len(stream) + 1))
        document = self.db.assets.find_one({"_id": asset.id})
        assert document == to_document(fold(stream))
        return from_document(document or {}).status

    def due_now(self) -> None:
        """A day later, as far as removals are concerned."""
        self.db[REMOVALS].update_many({}, [{"$set": {"due_at": {"$subtract": ["$due_at", 25 * 3600 * 1000]}}}])


TRASHED = (processing(), ready, AssetTrashed())


@pytest.fixture
def world(mongo_url: str, mongo_db: Db, aws_endpoint: str, bucket: str) -> Iterator[World]:
    s3 = aws_client("s3", aws_endpoint)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    app = f"sweep-{mongo_db.name}"
    with connect(mongo_url, appname=app) as client:
        yield World(client, client[mongo_db.name], s3, bucket, app)
    s3.close()


def test_an_upload_that_never_came_expires_after_its_time(world: World) -> None:
    old, young = world.asset(age=25 * HOUR), world.asset(age=23 * HOUR)
    busy, done = world.asset(processing(), age=90 * DAY), world.asset(processing(), failed(), age=90 * DAY)
    swept = world.sweeper.run()
    assert swept is not None
    assert vars(swept) == {"expired": 1, "purged": 0, "removed": 0, "unseen": 0, "put_away": 0, "failed": 0}
    assert [world.status(asset) for asset in (old, young, busy, done)] == [
        "EXPIRED",
        "UPLOADING",
        "PROCESSING",
        "FAILED",
    ]
    assert world.sweeper.run() == replace(swept, expired=0)


def test_bytes_that_came_keep_their_asset_from_expiring(world: World) -> None:
    asset = world.asset(age=25 * HOUR)
    world.put(asset, "original.jpg")
    swept = world.sweeper.run()
    assert swept is not None
    assert (swept.expired, swept.unseen) == (0, 1)
    assert world.status(asset) is Status.UPLOADING
    assert world.objects(asset) == 1


def test_what_comes_after_the_expiry_is_removed(world: World) -> None:
    asset = world.asset(age=25 * HOUR)
    world.sweeper.run()
    world.put(asset, "original.jpg")
    world.sweeper.run()
    assert world.objects(asset) == 1
    world.due_now()
    world.sweeper.run()
    assert world.objects(asset) == 0
    assert world.db[REMOVALS].count_documents({}) == 0
    assert world.status(asset) is Status.EXPIRED


def test_the_trash_is_purged_with_every_version_and_the_tombstone_stays(world: World) -> None:
    asset, kept = world.asset(*TRASHED, age=31 * DAY), world.asset(*TRASHED, age=29 * DAY)
    for one in (asset, kept):
        world.put(one, "original.jpg", "original.jpg", "thumb.jpg")
        world.s3.delete_object(Bucket=world.bucket, Key=f"assets/{one.id}/thumb.jpg")
    assert world.objects(asset) == 4
    swept = world.sweeper.run()
    assert swept is not None
    assert (swept.purged, swept.removed) == (1, 4)
    assert (world.objects(asset), world.objects(kept)) == (0, 4)
    assert (world.status(asset), world.status(kept)) == (Status.PURGED, Status.TRASHED)
    tombstone = from_document(world.db.assets.find_one({"_id": asset.id}) or {})
    assert (tombstone.filename, tombstone.renditions) == ("photo.jpg", ())
    # A worker that stood still all the time writes once more.
    world.put(asset, "thumb.jpg")
    world.due_now()
    world.sweeper.run()
    assert world.objects(asset) == 0
    assert world.db[REMOVALS].count_documents({}) == 0


def test_a_bucket_without_versions_is_emptied_as_well(world: World, aws_endpoint: str) -> None:
    name = f"{world.bucket}-plain"
    world.s3.create_bucket(Bucket=name)
    world.s3.put_object(Bucket=name, Key="assets/a/original.jpg", Body=b"x")
    world.s3.put_object(Bucket=name, Key="assets/ab/original.jpg", Body=b"x")
    assert ObjectStore(world.s3, bucket=name).remove_all("assets/a/") == 1
    assert [one["Key"] for one in world.s3.list_objects_v2(Bucket=name)["Contents"]] == ["assets/ab/original.jpg"]
    assert ObjectStore(world.s3, bucket=name).remove_all("assets/ab/") == 1
    world.s3.delete_bucket(Bucket=name)


def test_a_restore_at_the_same_moment_wins_or_loses_as_a_whole(world: World) -> None:
    asset = world.asset(*TRASHED, age=31 * DAY)
    world.put(asset, "original.jpg", "thumb.jpg")

    def restore(changed: Change) -> None:
        world.db.assets.update_one(guard(asset), update(asset, changed.after))
        world.db.outbox_events.insert_one(to_row(changed.event))

    def late() -> datetime:
        # Between the sweeper's reading and its writing.
        restore(change(asset, AssetRestored(), occurred_at=datetime.now(UTC)))
        return datetime.now(UTC)

    swept = replace(world.sweeper, now=late).run()
    assert swept is not None
    assert (swept.purged, swept.removed) == (0, 0)
    assert world.status(asset) is Status.READY
    assert world.objects(asset) == 2
    assert world.db[REMOVALS].count_documents({}) == 0


def test_a_sweep_that_died_is_taken_up(world: World) -> None:
    asset = world.asset(*TRASHED, age=31 * DAY)
    world.put(asset, "original.jpg")

    class Dies(ObjectStore):
        def remove_all(self, prefix: str) -> int:
            raise Crash(prefix)

    with pytest.raises(Crash):
        replace(world.sweeper, objects=Dies(world.s3, bucket=world.bucket)).run()
    assert (world.status(asset), world.objects(asset)) == (Status.PURGED, 1)
    swept = world.sweeper.run()
    assert swept is not None
    assert (swept.purged, swept.removed, world.objects(asset)) == (0, 1, 0)


def test_asset_event_and_removal_are_stored_together_or_not_at_all(world: World) -> None:
    asset = world.asset(*TRASHED, age=31 * DAY)
    with (
        failing(world.client, "commitTransaction", app=world.app, errorCode=2),
        pytest.raises(OperationFailure, match="failCommand"),
    ):
        world.sweeper.run()
    assert world.status(asset) is Status.TRASHED
    assert world.db[REMOVALS].count_documents({}) == 0
    swept = world.sweeper.run()
    assert swept is not None
    assert swept.purged == 1


def test_what_the_store_refuses_is_tried_again_and_stops_nothing_else(world: World) -> None:
    first, second = world.asset(*TRASHED, age=32 * DAY), world.asset(*TRASHED, age=31 * DAY)
    world.put(first, "original.jpg")
    world.put(second, "original.jpg")

    class Refuses(ObjectStore):
        def remove_all(self, prefix: str) -> int:
            if first.id in prefix:
                raise RemovalFailed(prefix)
            return super().remove_all(prefix)

    swept = replace(world.sweeper, objects=Refuses(world.s3, bucket=world.bucket)).run()
    assert swept is not None
    assert (swept.purged, swept.removed, swept.failed) == (2, 1, 1)
    assert (world.objects(first), world.objects(second)) == (1, 0)
    world.due_now()
    world.sweeper.run()
    assert world.objects(first) == 0


def test_an_error_that_s3_puts_into_its_answer_is_a_failure(world: World) -> None:
    client = aws_client("s3", "http://127.0.0.1:1")
    with Stubber(client) as stub:
        stub.add_response("list_object_versions", {"Versions": [{"Key": "assets/a/x", "VersionId": "1"}]})
        stub.add_response("delete_objects", {"Errors": [{"Key": "assets/a/x", "Code": "AccessDenied"}]})
        with pytest.raises(RemovalFailed, match="AccessDenied"):
            ObjectStore(client, bucket="b").remove_all("assets/a/")
    client.close()


def test_one_sweeps_at_a_time(world: World) -> None:
    with LeasedJob(world.db, "sweep", 30).turn() as ours:
        assert ours is not None
        assert world.sweeper.run() is None
    assert world.sweeper.run() is not None


def test_a_sweeper_that_was_overtaken_stops_and_takes_the_turn_from_nobody(world: World) -> None:
    for _ in range(2):
        world.asset(age=25 * HOUR)
    successor = LeasedJob(world.db, "sweep", 30)
    taken: list[Turn] = []

    class StandsStill(ObjectStore):
        """The lease runs out while S3 answers for the first asset."""

        def exists(self, key: str) -> bool:
            if not taken:
                turn = eventually(successor.take, deadline=5)
                assert turn is not None
                taken.append(turn)
            return super().exists(key)

    overtaken = replace(
        world.sweeper,
        job=LeasedJob(world.db, "sweep", 0.05),
        objects=StandsStill(world.s3, bucket=world.bucket),
    )
    swept = overtaken.run()
    assert swept is not None
    assert swept.expired <= 1
    assert world.sweeper.run() is None, "the successor's turn was ended by the one that it overtook"
    successor.leave(taken[0])
    assert world.sweeper.run() is not None
    assert world.db.assets.count_documents({"status": "EXPIRED"}) == 2


def test_an_asset_that_cannot_be_read_keeps_up_no_other(world: World) -> None:
    spoilt, good = world.asset(age=26 * HOUR), world.asset(age=25 * HOUR)
    world.db.assets.update_one({"_id": spoilt.id}, {"$set": {"size": "many"}})
    swept = world.sweeper.run()
    assert swept is not None
    assert (swept.expired, swept.failed) == (1, 1)
    assert world.db.assets.find_one({"_id": good.id}, {"status": 1, "_id": 0}) == {"status": "EXPIRED"}


def test_a_sweep_ends_when_it_is_told_to(world: World) -> None:
    for _ in range(3):
        world.asset(age=25 * HOUR)
    stop = threading.Event()
    stop.set()
    swept = world.sweeper.run(stop)
    assert swept is not None
    assert swept.expired == 0


@pytest.fixture
def environment(world: World, mongo_url: str, aws_endpoint: str) -> dict[str, str]:
    """For a process that sweeps this world."""
    return {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        **os.environ,
        "AWS_REGION": world.s3.meta.region_name,
        "AWS_ENDPOINT_URL": aws_endpoint,
        "DARKROOM_MONGO_URL": mongo_url,
        "DARKROOM_MONGO_DATABASE": world.db.name,
        "DARKROOM_BUCKET": world.bucket,
    }


def test_the_command_sweeps_once_or_until_sigterm(world: World, environment: dict[str, str]) -> None:
    world.asset(age=25 * HOUR)
    command = [sys.executable, "-m", "darkroom.cli", "sweep"]
    once = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert once.stdout.startswith("1 expired, 0 purged")
    with subprocess.Popen([*command, "--every", "1"], env=environment, stderr=subprocess.DEVNULL) as running:
        try:
            late = world.asset(age=25 * HOUR)
            eventually(lambda: world.status(late) is Status.EXPIRED, deadline=120)
            running.send_signal(signal.SIGTERM)
            assert running.wait(timeout=60) == 0
        finally:
            running.kill()


@pytest.mark.parametrize("command", [["sweep", "--every", "1"], ["reconcile", "--every", "1"]])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DARKROOM_MONGO_URL", "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=300"),
        ("DARKROOM_HEALTH_PORT", "99999"),
        ("DARKROOM_LOG_LEVEL", "LOUD"),
    ],
)
def test_what_goes_on_says_in_a_sentence_why_it_cannot_begin(
    environment: dict[str, str], command: list[str], name: str, value: str
) -> None:
    given = environment | {"DARKROOM_KAFKA_BOOTSTRAP": "127.0.0.1:1", name: value}
    argv = [sys.executable, "-m", "darkroom.cli", *command]
    done = subprocess.run(argv, env=given, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "Could not run:" in done.stderr
    assert value in done.stderr or name in done.stderr or "127.0.0.1:1" in done.stderr
