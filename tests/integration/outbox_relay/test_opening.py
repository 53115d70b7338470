"""When a partition is opened, and what a publisher assumes of a topic that it may not look into."""

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in its __all__
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from darkroom.contracts.envelope import Record
from darkroom.contracts.topics import TopicSpec
from darkroom.local.kafka import start_kafka
from darkroom.local.processes import Supervisor
from darkroom.runtime.kafka import ensure_topics
from outbox_relay.publisher import BROKER_DEFAULT_BYTES, Publisher, describe_topic
from support.eventually import eventually
from support.relay_stage import Stage

RECORD = Record(b"one key", b"x", [])


def settle(publisher: Publisher) -> None:
    def settled() -> bool:
        publisher.poll(0.05)
        return not publisher.in_flight

    eventually(settled, deadline=20, what="the acknowledgements")


def test_partitions_are_opened_anew_once_a_broker_may_have_forgotten_the_producer(stage: Stage) -> None:
    publisher = stage.publisher()
    publisher.send("a", RECORD)
    settle(publisher)
    publisher.refresh()
    publisher.send("b", RECORD)
    publisher.send("c", RECORD)
    settle(publisher)
    # As if its hour had passed.
    publisher._open_until = time.monotonic() - 1
    publisher.refresh()
    publisher.send("d", RECORD)
    with pytest.raises(BufferError, match="not open yet"):
        publisher.send("e", RECORD)
    settle(publisher)
    publisher.send("e", RECORD)
    publisher.send("f", RECORD)
    settle(publisher)
    # From then on the hour counts anew.
    publisher.refresh()
    publisher.send("g", RECORD)
    publisher.send("h", RECORD)
    settle(publisher)
    assert publisher.take_acked() == list("abcdefgh")
    publisher.abandon()


def test_a_topic_whose_settings_may_not_be_read_is_published_to_all_the_same(tmp_path: Path) -> None:
    """A broker with authorization, which lets us write to the topic and not read its settings."""
    topic = "events"
    with Supervisor(tmp_path / "logs") as supervisor:
        cluster = start_kafka(supervisor, tmp_path / "kafka", deadline=120.0)
        (broker,) = cluster.brokers
        (properties,) = tmp_path.glob("kafka/*/server.properties")
        with properties.open("a") as file:
            file.write(
                "\nauthorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
                "\nallow.everyone.if.no.acl.found=true\n"
            )
        broker.restart(deadline=120.0)
        ensure_topics(cluster.bootstrap, [TopicSpec(topic, 1, {"max.message.bytes": "5000"})])
        assert describe_topic(cluster.bootstrap, topic, {}, seconds=20).max_message_bytes == 5000
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        rules = [
            AclBinding(
                ResourceType.TOPIC,
                topic,
                ResourcePatternType.LITERAL,
                "User:ANONYMOUS",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for operation in (AclOperation.DESCRIBE, AclOperation.WRITE)
        ]
        for made in admin.create_acls(rules).values():
            made.result(20)
        facts = eventually(
            lambda: [
                found
                for found in (describe_topic(cluster.bootstrap, topic, {}, seconds=20),)
                if found.max_message_bytes == BROKER_DEFAULT_BYTES
            ],
            deadline=40,
            what="the refusal",
        )[0]
        assert facts.partitions == 1
        publisher = Publisher(bootstrap=cluster.bootstrap, topic=topic, facts=facts)
        publisher.send("a", RECORD)
        settle(publisher)
        assert publisher.take_acked() == ["a"]
        publisher.abandon()
