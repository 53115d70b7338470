"""Records that are no upload of ours leave the topic with their bytes, their headers and the reason."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from bson.datetime_ms import DatetimeMS
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pymongo.errors import OperationFailure

from darkroom.contracts.envelope import STREAM_SOURCE, to_record
from darkroom.inbox.consumer import Delivery, Finished, Later
from darkroom.inbox.outage import Outage
from darkroom.outbox import to_row
from darkroom.runtime.kafka import producer_config
from processor.dead_letters import DeadLetters
from support import events
from support.eventually import eventually

from .conftest import World

Read = Callable[[], Any]


@pytest.fixture
def read(kafka_bootstrap: str, topic_names: Callable[[str], str]) -> Iterator[Read]:
    """The next dead letter."""
    name = topic_names("dlq")
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.create_topics([NewTopic(name, num_partitions=1)])[name].result(timeout=10)
    reader = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": name, "auto.offset.reset": "earliest"})
    # Not by subscription: joining a group takes seconds.
    reader.assign([TopicPartition(name, 0, 0)])

    def one() -> Any:
        # In a list, since a message without a value is as false as none.
        message = eventually(lambda: [m for m in (reader.poll(0.2),) if m is not None], what="a dead letter")[0]
        assert message.error() is None
        return message

    yield one
    reader.close()


def without(delivery: Delivery, header: str) -> Delivery:
    return replace(delivery, headers=[(name, value) for name, value in delivery.headers if name != header])


def with_header(delivery: Delivery, header: str, value: bytes) -> Delivery:
    return replace(delivery, headers=[*without(delivery, header).headers, (header, value)])


def with_data(delivery: Delivery, **fields: Any) -> Delivery:
    return replace(delivery, value=json.dumps({**json.loads(delivery.value or b""), **fields}).encode())


MALFORMED: dict[str, tuple[Callable[[Delivery], Delivery], str]] = {
    "not JSON": (lambda d: replace(d, value=b"\xff{"), "not JSON"),
    "no value": (lambda d: replace(d, value=None), "no value"),
    "no key": (lambda d: replace(d, key=None), "key"),
    "no headers": (lambda d: replace(d, headers=[]), "ce_specversion"),
    "headers that are no text": (
        lambda d: replace(d, headers=[], unreadable="the record's headers cannot be read: utf-8"),
        "headers cannot be read",
    ),
    "no id": (lambda d: without(d, "ce_id"), "id"),
    "unknown type": (lambda d: with_header(d, "ce_type", b"AssetEaten"), "ce_type"),
    "unknown schema": (lambda d: with_header(d, "ce_dataschema", b"urn:x"), "ce_dataschema"),
    "another bucket": (lambda d: with_data(d, bucket="elsewhere"), "bucket: 'elsewhere'"),
    "another key": (lambda d: with_data(d, object_key="assets/other/original.jpg"), "object_key"),
    "a lone surrogate": (
        lambda d: replace(d, value=b'{"bucket": "\\ud800", "object_key": "k"}'),
        "this installation's bucket",
    ),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_record_becomes_a_dead_letter(world: World, read: Read, kind: str) -> None:
    asset = world.upload()
    spoil, reason = MALFORMED[kind]
    delivery = spoil(world.delivery(asset))
    assert world.processor(delivery) == Finished()
    letter = read()
    assert (letter.key(), letter.value()) == (delivery.key, delivery.value)
    headers = letter.headers()
    assert headers[: len(delivery.headers)] == list(delivery.headers)
    notes = dict(headers[len(delivery.headers) :])
    assert reason in notes["dlq_reason"].decode()
    assert notes["dlq_topic"] == b"uploads"
    assert (notes["dlq_partition"], notes["dlq_offset"]) == (b"0", str(delivery.offset).encode())
    assert world.types(asset) == ["Registered"]
    assert world.db.consumer_inbox.count_documents({}) == 0


def test_an_event_of_an_unknown_asset_becomes_a_dead_letter(world: World, read: Read) -> None:
    assert world.processor(world.delivery(events.registered().after)) == Finished()
    assert "never registered" in dict(read().headers())["dlq_reason"].decode()


def test_an_event_of_another_type_becomes_a_dead_letter(world: World, read: Read) -> None:
    asset = world.upload()
    record = to_record(world.stream(asset)[0], source=STREAM_SOURCE)
    delivery = replace(world.delivery(asset), value=record.value, headers=record.headers)
    assert world.processor(delivery) == Finished()
    assert "AssetRegistered does not belong" in dict(read().headers())["dlq_reason"].decode()


def test_a_record_too_large_for_a_dead_letter_leaves_a_note(world: World, read: Read) -> None:
    """It must not stand in its key's way for ever."""
    asset = world.upload()
    delivery = replace(world.delivery(asset), value=b"x" * 1_000_000)
    assert world.processor(delivery) == Finished()
    letter = read()
    notes = dict(letter.headers())
    assert (letter.value(), notes["dlq_offset"]) == (None, str(delivery.offset).encode())
    assert b"1000000 bytes" in notes["dlq_left_out"]
    assert "not JSON" in notes["dlq_reason"].decode()


UNREADABLE: dict[str, Any] = {
    "an unknown status": {"status": "MELTED"},
    "a wrong type": {"size": "many"},
    "a date that is none": {"created_at": DatetimeMS(10**17)},
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_an_event_whose_asset_cannot_be_read_becomes_a_dead_letter(world: World, read: Read, kind: str) -> None:
    asset = world.upload()
    whole = world.db.assets.find_one({"_id": asset.id}) or {}
    world.db.assets.update_one({"_id": asset.id}, {"$set": UNREADABLE[kind]})
    delivery = world.delivery(asset)
    assert world.processor(delivery) == Finished()
    letter = read()
    assert (letter.key(), letter.value()) == (delivery.key, delivery.value)
    assert "its document cannot be read" in dict(letter.headers())["dlq_reason"].decode()
    # Once the document is whole again, the dead letter sent once more is an upload like any other.
    world.db.assets.replace_one({"_id": asset.id}, whole)
    again = replace(world.delivery(asset), value=letter.value(), headers=letter.headers())
    assert world.processor(again) == Finished()
    assert world.types(asset) == ["Registered", "Processing", "Ready"]


def test_an_event_whose_failure_cannot_be_recorded_becomes_a_dead_letter(world: World, read: Read) -> None:
    """The stream already holds an event that the asset does not know of, so that no next one can be written."""
    asset = world.upload()
    row = to_row(events.step(asset, events.processing()).event)
    world.db.outbox_events.insert_one(row)
    for attempt in (1, 2):
        delivery = world.delivery(asset)
        assert isinstance(world.processor(delivery), Later)
        assert world.row(delivery)["attempts"] == attempt
        assert "DuplicateKeyError" in world.row(delivery)["last_error"]
        world.run_out()
    assert world.processor(delivery) == Finished()
    letter = read()
    assert (letter.key(), letter.value()) == (delivery.key, delivery.value)
    reason = dict(letter.headers())["dlq_reason"].decode()
    assert "DuplicateKeyError" in reason
    assert "its failure could not be recorded" in reason


def test_a_defect_that_no_attempt_can_count_ends_as_a_dead_letter(world: World, read: Read) -> None:
    """The event's row in the inbox is spoilt, so that it cannot even be claimed."""
    asset = world.upload()
    delivery = world.delivery(asset)
    row = {"consumer": "processor", "event_id": world.event_id(delivery), "state": "PROCESSING", "fence": "one"}
    world.db.consumer_inbox.insert_one(row)
    for defects in (0, 1):
        with pytest.raises(OperationFailure):
            world.processor(replace(delivery, defects=defects))
    assert world.processor(replace(delivery, defects=2)) == Finished()
    letter = read()
    assert (letter.key(), letter.value()) == (delivery.key, delivery.value)
    assert "OperationFailure" in dict(letter.headers())["dlq_reason"].decode()


def test_a_broker_that_does_not_answer_is_an_outage(world: World) -> None:
    producer = Producer(producer_config("127.0.0.1:9", {"log_level": 0}, message_timeout_ms=400))
    cut_off = replace(world.processor, dead_letters=DeadLetters(producer, topic="dlq", seconds=0.3))
    delivery = replace(world.delivery(world.upload()), value=b"no JSON")
    with pytest.raises(Outage) as caught:
        cut_off(delivery)
    assert caught.value.server == "Kafka"
    assert producer.flush(5) == 0
