"""Whole services as processes, on the session's servers, with what a test needs to look into them."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pymongo import MongoClient
from pymongo.database import Database

from darkroom.cli.client import Uploader
from darkroom.contracts.envelope import Event, from_record
from darkroom.contracts.topics import Topics
from darkroom.local.processes import SupervisedProcess
from darkroom.local.servers import AWS_VARIABLE, KAFKA_VARIABLE, MONGO_VARIABLE
from darkroom.local.stack import Stack, start_stack
from darkroom.runtime.kafka import producer_config
from support.eventually import eventually
from support.failpoints import FailPoints
from support.servers import aws_client, aws_environment, aws_session

OWNER = "system-test"
SETTINGS = {
    # Short leases, so that a takeover is waited for in seconds.
    "DARKROOM_LEASE_SECONDS": "3",
    "DARKROOM_SESSION_SECONDS": "6",
    "DARKROOM_RELAY_LEASE_SECONDS": "3",
    "DARKROOM_BACKOFF_SECONDS": "1",
}


@dataclass
class World:
    """A running stack and the hands to touch it with."""

    stack: Stack
    db: Database[dict[str, Any]]
    uploader: Uploader
    failpoints: FailPoints
    aws_endpoint: str
    records: list[Event] = field(default_factory=list)

    @property
    def processor(self) -> SupervisedProcess:
        return self.stack.services["processor"][0]

    @property
    def relay(self) -> SupervisedProcess:
        return self.stack.services["outbox_relay"][0]

    def status(self, asset_id: str) -> str:
        return str(self.uploader.get(asset_id)["status"])

    def rows(self, asset_id: str) -> list[dict[str, Any]]:
        return list(self.db.outbox_events.find({"asset_id": asset_id}).sort("sequence"))

    def types(self, asset_id: str) -> list[str]:
        return [row["type"] for row in self.rows(asset_id)]

    def published(self, asset_id: str) -> list[Event]:
        """What subscribers saw of the asset, in the order of the topic, repetitions included."""
        return [event for event in list(self.records) if event.asset_id == asset_id]

    def wait_published(self, asset_id: str, event_type: str, *, deadline: float = 40.0) -> None:
        eventually(
            lambda: event_type in [event.type for event in self.published(asset_id)],
            deadline=deadline,
            what=f"{event_type} of {asset_id} on Kafka",
        )

    def wait_quiet(self, asset_id: str) -> None:
        """Wait until every row of the asset is marked, so that nothing more of it is to come."""
        eventually(lambda: all(row["published"] for row in self.rows(asset_id)), what="all rows marked", deadline=30)

    def wait_consumed(self, *, deadline: float = 40.0) -> None:
        """Wait until the processors have committed everything that is on their topic."""
        eventually(lambda: self.lag() == 0, what="no lag", deadline=deadline)

    def lag(self) -> int:
        consumer = Consumer(
            {
                "bootstrap.servers": self.stack.servers.kafka_bootstrap,
                "group.id": f"{self.stack.topics.prefix}processor",
            }
        )
        try:
            topic = self.stack.topics.uploaded
            partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
            committed = consumer.committed([TopicPartition(topic, p) for p in partitions], timeout=10)
            ends = [consumer.get_watermark_offsets(place, timeout=10) for place in committed]
            return sum(
                high - max(place.offset, low) for place, (low, high) in zip(committed, ends, strict=True) if high > low
            )
        finally:
            consumer.close()

    def produce(self, **record: Any) -> None:
        producer = Producer(producer_config(self.stack.servers.kafka_bootstrap))
        producer.produce(self.stack.topics.uploaded, **record)
        assert producer.flush(10) == 0

    def sqs(self) -> Any:
        return aws_client("sqs", self.aws_endpoint)

    def s3(self) -> Any:
        return aws_client("s3", self.aws_endpoint)


@contextmanager
def start_world(
    folder: Path,
    name: str,
    *,
    mongo_url: str,
    kafka_bootstrap: str,
    aws_endpoint: str,
    settings: Mapping[str, str] | None = None,
) -> Iterator[World]:
    """A stack of that name on the session's servers, with a database, topics and a bucket of its own."""
    prefix = f"{name}."
    given = {MONGO_VARIABLE: mongo_url, KAFKA_VARIABLE: kafka_bootstrap, AWS_VARIABLE: aws_endpoint}
    with (
        start_stack(
            folder,
            topic_prefix=prefix,
            database=name,
            stack_name=name,
            settings=SETTINGS
            | {"DARKROOM_PROCESSOR_GROUP": f"{prefix}processor"}
            | aws_environment()
            | dict(settings or {}),
            session=aws_session(),
            environment=given,
        ) as stack,
        MongoClient[dict[str, Any]](mongo_url, tz_aware=True) as client,
    ):
        uploader = Uploader(stack.api_url, stack.token(OWNER))
        world = World(stack, client[name], uploader, FailPoints(client), aws_endpoint)
        stop = threading.Event()
        reader = threading.Thread(target=_read_all, args=(kafka_bootstrap, Topics(prefix), world.records, stop))
        reader.start()
        yield world
        stop.set()
        reader.join()
        uploader.close()
        client.drop_database(name)


@pytest.fixture(scope="session")
def world(
    tmp_path_factory: pytest.TempPathFactory, mongo_url: str, kafka_bootstrap: str, aws_endpoint: str
) -> Iterator[World]:
    """One stack for the session: starting it takes longer than most tests."""
    with start_world(
        tmp_path_factory.mktemp("system"),
        "system",
        mongo_url=mongo_url,
        kafka_bootstrap=kafka_bootstrap,
        aws_endpoint=aws_endpoint,
    ) as started:
        yield started


@pytest.fixture(autouse=True)
def _all_is_well(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test killed or broke is running and whole for the next one."""
    yield
    if "world" in request.fixturenames:
        world: World = request.getfixturevalue("world")
        world.failpoints.off()
        for processes in world.stack.services.values():
            for process in processes:
                if not process.running:
                    process.start()


def _read_all(bootstrap: str, topics: Topics, records: list[Event], stop: threading.Event) -> None:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"reader-{time.time_ns()}", "enable.auto.commit": False}
    )
    partitions = consumer.list_topics(topics.events, timeout=10).topics[topics.events].partitions
    consumer.assign([TopicPartition(topics.events, partition, 0) for partition in partitions])
    while not stop.is_set():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            records.append(
                from_record(key=message.key(), value=message.value(), record_headers=message.headers())  # type: ignore[arg-type]  # bytes, as produced
            )
    consumer.close()
