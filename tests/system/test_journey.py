"""One asset's whole journey, and what repetition and death on the way must not change."""

import json
from io import BytesIO

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition
from PIL import Image

from darkroom.assets import fold, to_document
from darkroom.cli.client import Sent
from darkroom.contracts.events import AssetReady
from darkroom.outbox import from_row
from support import pictures
from support.eventually import eventually
from support.failpoints import PROCESSOR, RELAY
from system.conftest import World

STREAM = ["AssetRegistered", "AssetProcessing", "AssetReady"]


def send(world: World, data: bytes | None = None, filename: str = "photo.jpg") -> Sent:
    return world.uploader.send(filename=filename, content_type="image/jpeg", data=data or pictures.jpeg(300, 200))


def assert_one_ready(world: World, asset_id: str) -> None:
    """The stream is what it must be, the document is its fold, and subscribers saw each event first in order."""
    world.wait_published(asset_id, "AssetReady")
    world.wait_quiet(asset_id)
    assert world.types(asset_id) == STREAM
    events = [from_row(row) for row in world.rows(asset_id)]
    assert world.db.assets.find_one({"_id": asset_id}) == to_document(fold(events))
    first_appearances = list(dict.fromkeys(event.sequence for event in world.published(asset_id)))
    assert first_appearances == [1, 2, 3]
    assert len({event.id for event in world.published(asset_id) if event.type == "AssetReady"}) == 1


def test_a_photo_becomes_ready_renditions(world: World) -> None:
    sent = send(world, pictures.jpeg(1600, 1200))
    assert_one_ready(world, sent.asset_id)
    asset = world.uploader.get(sent.asset_id)
    assert asset["status"] == "READY"
    assert (asset["original"]["width"], asset["original"]["height"]) == (1600, 1200)
    sizes = {}
    for rendition in asset["renditions"]:
        answer = httpx.get(rendition["url"])
        picture = Image.open(BytesIO(answer.content))
        assert answer.headers["content-type"] == rendition["content_type"] == "image/jpeg"
        assert picture.size == (rendition["width"], rendition["height"])
        sizes[rendition["name"]] = picture.size
    assert sizes == {"thumb": (256, 192), "preview": (1024, 768)}
    assert httpx.get(asset["original"]["url"]).content == pictures.jpeg(1600, 1200)


def test_the_events_tell_cause_and_owner(world: World) -> None:
    sent = send(world)
    world.wait_published(sent.asset_id, "AssetReady")
    by_type = {str(event.type): event for event in world.published(sent.asset_id)}
    upload = world.db.assets.find_one({"_id": sent.asset_id})
    assert upload is not None
    assert by_type["AssetReady"].causation_id == by_type["AssetProcessing"].causation_id == upload["upload"]["event_id"]
    assert {event.owner_id for event in by_type.values()} == {"system-test"}
    assert len({event.correlation_id for event in by_type.values()}) == 1
    ready = by_type["AssetReady"].data
    assert isinstance(ready, AssetReady)
    assert ready.bucket == world.stack.outputs.bucket


def test_a_broken_picture_fails_with_its_reason(world: World) -> None:
    sent = send(world, pictures.jpeg(300, 200)[:-400])
    world.wait_published(sent.asset_id, "AssetFailed")
    asset = world.uploader.get(sent.asset_id)
    assert (asset["status"], asset["failure"]["code"]) == ("FAILED", "corrupt_or_truncated")
    assert world.types(sent.asset_id) == ["AssetRegistered", "AssetProcessing", "AssetFailed"]


def test_a_repeated_notification_changes_nothing(world: World) -> None:
    sent = send(world)
    world.wait_published(sent.asset_id, "AssetReady")
    asset = world.db.assets.find_one({"_id": sent.asset_id})
    assert asset is not None
    version = world.s3().head_object(Bucket=world.stack.outputs.bucket, Key=asset["object_key"])
    body = _notification(world.stack.outputs.bucket, asset["object_key"], version["VersionId"], version["ETag"])
    before = world.db.consumer_inbox.count_documents({})
    for _ in range(3):
        world.sqs().send_message(QueueUrl=world.stack.outputs.queue_url, MessageBody=body)
    # A later asset of the same journey shows that the repeated messages had their turn.
    assert_one_ready(world, send(world).asset_id)
    world.wait_consumed()
    assert_one_ready(world, sent.asset_id)
    assert world.db.consumer_inbox.count_documents({}) == before + 1


def test_a_repeated_record_changes_nothing(world: World) -> None:
    sent = send(world)
    world.wait_published(sent.asset_id, "AssetReady")
    record = _uploaded_record(world, sent.asset_id)
    for _ in range(3):
        world.produce(**record)
    world.wait_consumed()
    assert_one_ready(world, sent.asset_id)


@pytest.mark.parametrize(
    ("command", "hit"),
    [
        ("findAndModify", "claiming"),
        ("commitTransaction", "recording that processing began, or how it ended"),
    ],
)
def test_a_processor_killed_in_the_middle_is_replaced(world: World, command: str, hit: str) -> None:
    world.failpoints.stall(command, app=PROCESSOR, seconds=6, times=1)
    sent = send(world)
    eventually(lambda: _stalled(world, command), what=f"the processor is {hit}", deadline=30)
    world.processor.kill()
    world.failpoints.off()
    world.processor.start()
    assert_one_ready(world, sent.asset_id)


def test_a_processor_killed_before_the_final_commit_is_replaced(world: World) -> None:
    world.relay.stop()  # its row of AssetProcessing stays unmarked, which is how the moment is known
    sent = send(world, pictures.photo_jpeg(2000, 1500))
    eventually(lambda: "AssetProcessing" in world.types(sent.asset_id), what="processing began", deadline=30)
    world.processor.kill()
    world.relay.start()
    world.processor.start()
    assert_one_ready(world, sent.asset_id)
    row = world.db.consumer_inbox.find_one({"event_id": world.rows(sent.asset_id)[1]["causation_id"]})
    assert row is not None
    assert row["state"] == "COMPLETED"


def test_a_processor_that_stood_still_past_its_lease_writes_nothing(world: World) -> None:
    world.failpoints.stall("commitTransaction", app=PROCESSOR, seconds=1, times=1)
    sent = send(world, pictures.photo_jpeg(2000, 1500))
    eventually(lambda: world.db.consumer_inbox.find_one({"state": "PROCESSING"}), what="a lease", deadline=30)
    world.processor.pause()
    try:
        # Nobody renews it: on the server's clock the lease runs out, whatever this host thinks.
        eventually(
            lambda: world.db.consumer_inbox.find_one(
                {"state": "PROCESSING", "$expr": {"$lt": ["$lease_until", "$$NOW"]}}
            ),
            what="the lease ran out",
            deadline=30,
        )
    finally:
        world.processor.resume()
    assert_one_ready(world, sent.asset_id)


def test_an_upload_waits_for_the_processor_that_is_down(world: World) -> None:
    world.processor.stop()
    sent = send(world)
    world.wait_published(sent.asset_id, "AssetRegistered")
    assert world.status(sent.asset_id) == "UPLOADING"
    world.processor.start()
    assert_one_ready(world, sent.asset_id)


def test_a_relay_killed_between_publishing_and_marking_repeats_and_loses_nothing(world: World) -> None:
    # Marks, and only this client's: what it sends reaches Kafka, but never gets marked.
    world.failpoints.fail("update", app=RELAY)
    sent = send(world)
    world.wait_published(sent.asset_id, "AssetRegistered")
    assert not any(row["published"] for row in world.rows(sent.asset_id))
    world.relay.kill()
    world.failpoints.off()
    world.relay.start()
    assert_one_ready(world, sent.asset_id)
    repeated = [event.sequence for event in world.published(sent.asset_id)]
    assert repeated.count(1) == 2, "the restarted relay had to send again what was not marked"


def test_a_relay_that_is_down_delays_and_loses_nothing(world: World) -> None:
    world.relay.stop()
    sent = send(world)
    eventually(lambda: world.status(sent.asset_id) == "READY", what="READY", deadline=30)
    assert world.published(sent.asset_id) == []
    world.relay.start()
    assert_one_ready(world, sent.asset_id)


def _stalled(world: World, command: str) -> bool:
    running = world.db.client.admin.aggregate([{"$currentOp": {"allUsers": True, "idleSessions": False}}])
    return any(
        command in operation.get("command", {}) for operation in running if operation.get("appName") == PROCESSOR
    )


def _notification(bucket: str, key: str, version_id: str, etag: str) -> str:
    thing = {"key": key, "size": 1, "eTag": etag.strip('"'), "versionId": version_id, "sequencer": "00"}
    record = {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": bucket}, "object": thing},
    }
    return json.dumps({"Records": [record]})


def _uploaded_record(world: World, asset_id: str) -> dict[str, object]:
    """The asset's own record on assets.uploaded, as it is there."""
    topic = world.stack.topics.uploaded
    consumer = Consumer({"bootstrap.servers": world.stack.servers.kafka_bootstrap, "group.id": f"find-{asset_id}"})
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])

        def found() -> dict[str, object] | None:
            message = consumer.poll(1)
            if message is None or message.error() is not None or message.key() != asset_id.encode():
                return None
            return {"key": message.key(), "value": message.value(), "headers": message.headers()}

        return eventually(found, what="the record", deadline=20) or {}
    finally:
        consumer.close()
