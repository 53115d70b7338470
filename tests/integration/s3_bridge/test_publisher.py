"""The publisher and brokers that are away, stand still, die and come back."""

import time
from typing import Any

from darkroom.contracts.envelope import Record
from s3_bridge.publisher import KafkaPublisher
from support.queues import read_topic

BATCH = [Record(b"key", f"value-{number}".encode(), []) for number in range(3)]
DEAD = "127.0.0.1:1"


def test_no_broker_fails_every_record_within_the_time_given() -> None:
    began = time.monotonic()
    assert None not in KafkaPublisher(bootstrap=DEAD, topic="t").publish(BATCH, timeout=2.0)
    assert time.monotonic() - began < 3.0


def test_a_full_queue_fails_what_found_no_room_within_the_time_given() -> None:
    publisher = KafkaPublisher(bootstrap=DEAD, topic="t", config={"queue.buffering.max.messages": 1})
    began = time.monotonic()
    errors = publisher.publish(BATCH, timeout=1.5)
    assert None not in errors
    assert "the producer's queue stayed full" in errors
    assert time.monotonic() - began < 2.5


def test_a_broker_that_stands_still_then_goes_on_and_one_that_dies_and_comes_back(mortal: Any) -> None:
    broker = mortal.broker
    topic = mortal.topics.uploaded
    publisher = KafkaPublisher(bootstrap=mortal.bootstrap, topic=topic)
    assert publisher.publish(BATCH, timeout=20) == [None] * 3
    # An own one whose time-outs belong to so short a batch, as in a function with little time.
    hurried = KafkaPublisher(bootstrap=mortal.bootstrap, topic=topic)
    assert hurried.publish(BATCH, timeout=5) == [None] * 3
    broker.pause()
    began = time.monotonic()
    assert None not in hurried.publish(BATCH, timeout=2)
    assert time.monotonic() - began < 3.5
    broker.resume()
    assert hurried.publish(BATCH, timeout=20) == [None] * 3
    broker.kill()
    assert None not in hurried.publish(BATCH, timeout=2)
    broker.start()
    assert hurried.publish(BATCH, timeout=20) == [None] * 3
    # 12 acknowledged; the 6 that failed may be there as well, but were never sent once their batch had ended.
    assert 12 <= len(read_topic(mortal.bootstrap, topic, count=19, deadline=2)) <= 18
