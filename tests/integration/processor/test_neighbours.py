"""One event in the way of its neighbours on the same partition: the consumer, the inbox and the processor together."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from darkroom.assets import Asset
from darkroom.contracts.topics import Topics, TopicSpec
from darkroom.inbox import Claimed
from darkroom.inbox.consumer import Bounds, Delivery, OrderedConsumer, consumer_config
from darkroom.runtime.kafka import ensure_topics, producer_config
from support import poisoned_processor
from support.eventually import eventually
from support.servers import aws_environment

from .conftest import World

READY = ["Registered", "Processing", "Ready"]
FAILED = ["Registered", "Processing", "Failed"]
GROUP = "processor"


@dataclass
class Partition:
    """A topic of one partition, and what the group has committed of it."""

    bootstrap: str
    prefix: str
    group: str

    @property
    def topic(self) -> str:
        return Topics(self.prefix).uploaded

    def send(self, *deliveries: Delivery) -> None:
        producer = Producer(producer_config(self.bootstrap))
        for delivery in deliveries:
            producer.produce(self.topic, key=delivery.key, value=delivery.value, headers=list(delivery.headers))
        assert producer.flush(20) == 0

    def committed(self) -> int:
        """-1001 before the first commit."""
        reader = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group})
        try:
            return reader.committed([TopicPartition(self.topic, 0)], timeout=10)[0].offset  # type: ignore[no-any-return, unused-ignore]  # untyped in some versions
        finally:
            reader.close()


@pytest.fixture
def partition(kafka_bootstrap: str, topic_names: Callable[[str], str]) -> Partition:
    prefix = topic_names(Topics().uploaded).removesuffix(Topics().uploaded)
    topics = Topics(prefix)
    ensure_topics(kafka_bootstrap, [TopicSpec(name, 1, {}) for name in (topics.uploaded, topics.uploaded_dlq)])
    return Partition(kafka_bootstrap, prefix, f"{prefix}group")


@contextmanager
def consuming(world: World, partition: Partition) -> Iterator[None]:
    consumer = OrderedConsumer(
        config=consumer_config(partition.bootstrap, group=partition.group),
        topics=[partition.topic],
        handler=world.processor,
        slots=2,
        bounds=Bounds(commit_every=0.1, grace=6.0),
    )
    stop = threading.Event()
    thread = threading.Thread(target=consumer.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(20)
        assert not thread.is_alive()


def test_a_foreign_lease_delays_its_own_asset_only_and_its_offset_is_not_passed(
    world: World, partition: Partition
) -> None:
    held, *others = (world.upload() for _ in range(6))
    first = world.delivery(held)
    foreign = world.processor.inbox.claim(world.event_id(first), owner="another")
    assert isinstance(foreign, Claimed)
    partition.send(first, *(world.delivery(asset) for asset in others))
    lost = threading.Event()
    # The other worker is alive and renews, so that the lease is valid for as long as the block lasts.
    with consuming(world, partition):
        with world.processor.keeper.hold(foreign.lease, lost=lost):
            eventually(lambda: all(world.types(asset) == READY for asset in others), deadline=40, what="the others")
            assert world.types(held) == ["Registered"]
            assert world.row(first)["lease_owner"] == "another"
            assert partition.committed() <= 0
        eventually(lambda: partition.committed() == 6, deadline=30, what="the held one, once its lease ran out")
    assert world.types(held) == READY
    assert (world.row(first)["state"], world.row(first)["attempts"]) == ("COMPLETED", 2)
    assert not lost.is_set()


def test_a_failing_asset_comes_to_its_end_while_its_neighbours_do_not_wait(world: World, partition: Partition) -> None:
    """Its back-off would last for longer than this test, were it not ended when all others are done."""
    failing, *others = (world.upload() for _ in range(6))
    world.s3.delete_object(Bucket=world.bucket, Key=failing.object_key)
    first = world.delivery(failing)
    long = {"$add": ["$$NOW", 3_600_000]}
    partition.send(first)
    with consuming(world, partition):
        eventually(lambda: world.row(first).get("last_error"), deadline=30, what="the first attempt")
        world.db.consumer_inbox.update_one(
            {"event_id": world.event_id(first), "not_before": {"$exists": True}}, [{"$set": {"not_before": long}}]
        )
        partition.send(*(world.delivery(asset) for asset in others))
        eventually(lambda: all(world.types(asset) == READY for asset in others), deadline=40, what="the others")
        assert world.types(failing) == ["Registered", "Processing"]
        assert partition.committed() <= 0
    world.run_out()
    for _ in range(2):
        world.processor(world.delivery(failing))
        world.run_out()
    with consuming(world, partition):
        eventually(lambda: partition.committed() == 6, deadline=30, what="the end")
    assert world.types(failing) == FAILED
    assert world.row(first)["state"] == "DEAD"


def test_an_asset_that_kills_its_worker_each_time_fails_alone(
    world: World, partition: Partition, mongo_url: str, aws_endpoint: str, tmp_path: Path
) -> None:
    """Its neighbours run beside it and die with it, but only once: they are READY; it is FAILED, with AssetFailed."""
    poison, *others = (world.upload() for _ in range(5))
    deliveries = [world.delivery(asset) for asset in (poison, *others)]
    partition.send(*deliveries)
    settings = {
        "DARKROOM_MONGO_URL": mongo_url,
        "AWS_ENDPOINT_URL": aws_endpoint,
        "DARKROOM_MONGO_DATABASE": world.db.name,
        "DARKROOM_KAFKA_BOOTSTRAP": partition.bootstrap,
        "DARKROOM_TOPIC_PREFIX": partition.prefix,
        "DARKROOM_BUCKET": world.bucket,
        "DARKROOM_PROCESSOR_GROUP": partition.group,
        "DARKROOM_PROCESSOR_SLOTS": "5",
        "DARKROOM_PROCESSOR_DECODERS": "1",
        "DARKROOM_SESSION_SECONDS": "6",
        "DARKROOM_LEASE_SECONDS": "2",
        "DARKROOM_MAX_ATTEMPTS": "2",
        "DARKROOM_GRACE_SECONDS": "3",
    }
    ended = 0
    log = tmp_path / "log"
    process = _start(poison, settings | aws_environment(), log)
    try:

        def done() -> bool:
            nonlocal process, ended
            if (code := process.poll()) is not None:
                assert code == -signal.SIGKILL, log.read_text()[-2000:]
                ended += 1
                process = _start(poison, settings | aws_environment(), log)
            return partition.committed() == len(deliveries)

        eventually(done, deadline=90, what="the end of all")
    finally:
        process.kill()
        process.wait()
    assert ended == 2, "as often as there are attempts"
    assert world.types(poison) == FAILED
    assert [world.types(asset) for asset in others] == [READY] * len(others)
    rows = {row["event_id"]: row for row in world.db.consumer_inbox.find()}
    dead, *alive = (rows[world.event_id(delivery)] for delivery in deliveries)
    assert dead["state"] == "DEAD"
    assert all(row["attempts"] <= 2 for row in alive)


def _start(poison: Asset, settings: dict[str, Any], log: Path) -> "subprocess.Popen[bytes]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DARKROOM_")}
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, str(poisoned_processor.__file__), poison.id],
            env=inherited | settings,
            stdout=file,
            stderr=file,
        )
