"""What goes wrong at night is seen, explained and mended by the commands of the runbook."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in its __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from darkroom.chaos.messages import notification
from darkroom.cli.client import Sent, Uploader
from darkroom.contracts.events import AssetUploaded
from darkroom.ops.topics import Offsets
from support import pictures
from support.eventually import eventually
from support.failpoints import PROCESSOR
from support.servers import aws_environment
from system.conftest import OWNER, World, start_world

LOST = 20
LATE = "2"
NAMED = {"DARKROOM_OPERATOR": "night shift"}


# Calls the command once a line, so that a test does not wait for its imports a dozen times.
CALLED = """
import contextlib, io, json, os, sys
from darkroom.cli.main import app
for line in sys.stdin:
    call = json.loads(line)
    os.environ.update(call["environment"])
    out, code = io.StringIO(), 0
    with contextlib.redirect_stdout(out):
        try:
            app(call["arguments"])
        except SystemExit as end:
            code = end.code or 0
    print(json.dumps({"code": code, "out": out.getvalue()}), flush=True)
"""


class Darkroom:
    """The command, as an engineer calls it, with the environment that ``darkroom up`` writes down."""

    def __init__(self, world: World) -> None:
        self._stack = world.stack
        self._process = subprocess.Popen(
            [sys.executable, "-c", CALLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.communicate(timeout=30)

    def __call__(self, *arguments: str, code: int | None = None) -> Any:
        """What it printed as JSON; ``code`` is the exit code that it must end with."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        environment = aws_environment() | self._stack.operations_environment() | NAMED
        self._process.stdin.write(json.dumps({"arguments": [*arguments, "--json"], "environment": environment}) + "\n")
        self._process.stdin.flush()
        done = json.loads(self._process.stdout.readline())
        assert code is None or done["code"] == code, f"{arguments}: {done}"
        return json.loads(done["out"])

    def cause(self, asset_id: str) -> str:
        """What `why` names."""
        return str(self("why", asset_id, "--late", LATE)["waits_for"]["cause"])

    def problems(self) -> str:
        """What `status` complains of."""
        return "\n".join(problem["what"] for problem in self("status", "--late", LATE)["problems"])


@pytest.fixture
def night(tmp_path: Path, mongo_url: str, kafka_bootstrap: str, aws_endpoint: str) -> Iterator[World]:
    """A stack of its own: nobody else's letters lie about in it."""
    with start_world(
        tmp_path, "night", mongo_url=mongo_url, kafka_bootstrap=kafka_bootstrap, aws_endpoint=aws_endpoint
    ) as started:
        yield started


@contextmanager
def unnotified(world: World) -> Iterator[None]:
    """S3 notifies nobody: what is uploaded meanwhile is never announced."""
    s3, bucket = world.s3(), world.stack.outputs.bucket
    notifications = s3.get_bucket_notification_configuration(Bucket=bucket)
    notifications.pop("ResponseMetadata")
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration={})
    try:
        yield
    finally:
        s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=notifications)


@contextmanager
def largest_message(world: World, size: int) -> Iterator[None]:
    """The topic of events takes no record of more bytes, so the relay parks what is larger."""
    admin = AdminClient({"bootstrap.servers": world.stack.servers.kafka_bootstrap})

    def configure(operation: AlterConfigOpType, value: str | None) -> None:
        entry = ConfigEntry("max.message.bytes", value, incremental_operation=operation)
        asked = ConfigResource(ConfigResource.Type.TOPIC, world.stack.topics.events, incremental_configs=[entry])
        admin.incremental_alter_configs([asked])[asked].result(timeout=10)

    configure(AlterConfigOpType.SET, str(size))
    world.relay.stop()
    world.relay.start()
    try:
        yield
    finally:
        configure(AlterConfigOpType.DELETE, None)
        world.relay.stop()
        world.relay.start()


def send(world: World, data: bytes | None = None) -> Sent:
    return world.uploader.send(filename="a.jpg", content_type="image/jpeg", data=data or pictures.jpeg(60, 40))


def ready(world: World, asset_id: str) -> Callable[[], bool]:
    return lambda: world.status(asset_id) == "READY"


@pytest.fixture
def darkroom(night: World) -> Iterator[Darkroom]:
    with Darkroom(night) as command:
        yield command


@pytest.mark.timeout(600)
def test_a_night_on_call(night: World, darkroom: Darkroom) -> None:
    world = night
    assert darkroom("status", code=0)["problems"] == []
    lost, dead, parked, orphaned, refused, dead_notification = _Night(world).everything()

    # Seen.
    def all_is_seen() -> bool:
        told = darkroom.problems()
        return all(
            text in told
            for text in (
                f"{LOST + 2} of the",  # those whose announcements are dead letters among them
                "leases have run out",
                "1 letters in SQS",
                "1 letters in Kafka",
                "1 letters in the inbox",
                "1 letters in the outbox",
            )
        )

    eventually(all_is_seen, deadline=60, what="status shows everything")

    # Explained.
    # For a while a notification that is not there might still be on its way.
    eventually(
        lambda: {darkroom.cause(one) for one in lost[:2]} == {"lost_notification"}, deadline=120, what="two causes"
    )
    assert darkroom.cause(dead) == "dead"
    assert darkroom.cause(parked) == "parked"
    assert darkroom.cause(orphaned) in ("queued", "no_processor", "stuck")
    assert darkroom.cause(refused) == "announcement_dead"
    assert darkroom.cause(dead_notification) == "notification_dead"

    # Mended.
    world.processor.start()
    plan = darkroom("reconcile", "--pass", "unfinished", "--unfinished-after", "1", "--dry-run", code=1)
    assert {one["asset_id"] for one in plan["findings"] if one["kind"] == "lost_notification"} >= set(lost)
    darkroom("reconcile", "--pass", "unfinished", "--unfinished-after", "1", code=0)
    assert darkroom("dlq", "redrive", "nope", "--why", "a slip of the pen", code=1)["letters"] == []
    planned = darkroom("dlq", "redrive", "--all", "--dry-run", code=0)["letters"]
    done = darkroom("dlq", "redrive", "--all", "--why", "the night is over", code=0)["letters"]
    assert {(one["source"], one["id"]) for one in done} == {(one["source"], one["id"]) for one in planned}
    assert {one["source"] for one in done} == {"sqs", "kafka", "inbox", "outbox"}

    # And every asset comes to its end.
    for asset_id in (*lost, dead, parked, orphaned, refused, dead_notification):
        eventually(ready(world, asset_id), deadline=90, what=f"{asset_id} is READY")
        world.wait_quiet(asset_id)
        assert world.types(asset_id).count("AssetReady") == 1
    assert world.types(dead)[-3:] == ["AssetFailed", "AssetRedriven", "AssetReady"]
    world.wait_published(dead, "AssetRedriven")
    redriven = next(event for event in world.published(dead) if event.type == "AssetRedriven")
    ends = {event.causation_id for event in world.published(dead) if event.type in ("AssetFailed", "AssetReady")}
    assert ends == {redriven.causation_id}
    assert redriven.data.model_dump()["by"] == "night shift"
    assert darkroom("verify", code=0)["clean"]
    assert darkroom("rebuild", "--dry-run", code=0)["assets"] == []
    (absent,) = darkroom("rebuild", "--asset", "nope", code=1)["assets"]
    assert absent["why"] == "nobody registered an asset of this id"
    world.wait_consumed()
    eventually(lambda: darkroom.problems() == "", deadline=60, what="nothing to look at")
    assert darkroom.cause(dead) == "ready"
    nothing = dict.fromkeys(("expired", "purged", "removed", "unseen", "put_away", "failed"), 0)
    assert darkroom("sweep", code=0) == {"ran": True, **nothing}
    assert [one["differs"] for one in darkroom("setup", code=0)] == [{}] * len(world.stack.topics.specs())
    assert [one["created"] for one in darkroom("setup", code=0)] == [False] * len(world.stack.topics.specs())
    for topic in darkroom("setup", "--partitions", "13", "--retention-days", "8", code=0):
        assert topic["differs"]["partitions"] == {"is": "12", "asked": "13"}
        assert set(topic["differs"]) == {"partitions", "retention.ms"}
    told = darkroom("token", OWNER, "--hours", "1", code=0)
    assert told["expires_in"] == 3600
    with closing(Uploader(world.stack.api_url, told["access_token"])) as somebody:
        assert somebody.get(dead)["status"] == "READY"


class _Night:
    """Everything that goes wrong in the test, each once it has taken its effect."""

    def __init__(self, world: World) -> None:
        self._world = world

    def everything(self) -> tuple[list[str], str, str, str, str, str]:
        world = self._world
        with unnotified(world):
            lost = [send(world).asset_id for _ in range(LOST)]
            dead_notification = send(world).asset_id
            refused = send(world).asset_id
        dead = self._dead()
        parked = self._parked()
        self._dead_notification(dead_notification)
        self._refused(refused)
        return lost, dead, parked, self._killed(), refused, dead_notification

    def _dead(self) -> str:
        """An event whose attempts are used up: its original was away for as long as they lasted."""
        world, s3, bucket = self._world, self._world.s3(), self._world.stack.outputs.bucket
        with unnotified(world):
            sent = send(world)
        key = world.db.assets.find_one({"_id": sent.asset_id})["object_key"]  # type: ignore[index]  # registered
        head = s3.head_object(Bucket=bucket, Key=key)
        body = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        s3.delete_object(Bucket=bucket, Key=key, VersionId=head["VersionId"])
        self._announce(key, head)
        failed = lambda: world.db.consumer_inbox.find_one({"state": "DEAD", "outcome": "dead: object_missing"})  # noqa: E731
        eventually(failed, deadline=60, what="the attempts are used up")
        s3.put_object(Bucket=bucket, Key=key, Body=body)
        return sent.asset_id

    def _parked(self) -> str:
        """An event that was too large for its topic when the relay sent it."""
        world = self._world
        with largest_message(world, 1000):
            sent = send(world)
            rows = {"asset_id": sent.asset_id, "parked_at": {"$exists": True}}
            eventually(lambda: world.db.outbox_events.find_one(rows), deadline=60, what="the event is parked")
        return sent.asset_id

    def _dead_notification(self, asset_id: str) -> None:
        """A notification that the bridge could not handle in three receives."""
        world, outputs = self._world, self._world.stack.outputs
        key = f"assets/{asset_id}/original.jpg"
        head = world.s3().head_object(Bucket=outputs.bucket, Key=key)
        world.sqs().send_message(QueueUrl=outputs.dlq_url, MessageBody=self._notification(key, head))

    def _refused(self, asset_id: str) -> None:
        """A record that came before its asset could be seen, and so became a dead letter."""
        world = self._world
        key = f"assets/{asset_id}/original.jpg"
        head = world.s3().head_object(Bucket=world.stack.outputs.bucket, Key=key)
        document = world.db.assets.find_one_and_delete({"_id": asset_id})
        assert document is not None
        before = self._letters()
        self._announce(key, head)
        eventually(lambda: self._letters() > before, deadline=60, what="it is a dead letter")
        world.db.assets.insert_one(document)

    def _killed(self) -> str:
        """An asset whose worker is killed for good."""
        world = self._world
        world.failpoints.stall("commitTransaction", app=PROCESSOR, seconds=6, times=1)
        sent = send(world, pictures.photo_jpeg(2000, 1500))
        leased = {"state": "PROCESSING", "lease_owner": {"$exists": True}}
        eventually(lambda: world.db.consumer_inbox.find_one(leased), deadline=60, what="it is worked on")
        world.processor.kill()
        world.failpoints.off()
        return sent.asset_id

    def _announce(self, key: str, head: Mapping[str, Any]) -> None:
        self._world.sqs().send_message(
            QueueUrl=self._world.stack.outputs.queue_url, MessageBody=self._notification(key, head)
        )

    def _notification(self, key: str, head: Mapping[str, Any]) -> str:
        bucket = self._world.stack.outputs.bucket
        etag, version = head["ETag"].strip('"'), head["VersionId"]
        uploaded = AssetUploaded(
            bucket=bucket, object_key=key, etag=etag, version_id=version, size=head["ContentLength"]
        )
        return notification(bucket, uploaded)

    def _letters(self) -> int:
        topic = self._world.stack.topics.uploaded_dlq
        with Offsets(self._world.stack.servers.kafka_bootstrap) as offsets:
            return sum(offsets.ends([topic]).values())
