"""What lies on a topic and in a queue."""

import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition


def read_topic(bootstrap: str, topic: str, *, count: int, deadline: float = 20.0) -> list[Message]:
    """The first ``count`` records of a topic; fewer, if no more came within ``deadline`` seconds."""
    ends = time.monotonic() + deadline
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reads-all", "enable.auto.commit": False})
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        records: list[Message] = []
        while len(records) < count and time.monotonic() < ends:
            record = consumer.poll(0.1)
            if record is not None and record.error() is None:
                records.append(record)
        return records
    finally:
        consumer.close()


def headers_of(record: Message) -> dict[str, str]:
    """A record's headers as text."""
    headers: Any = record.headers()
    return {name: value.decode() for name, value in headers or []}


def messages_in(sqs: Any, queue_url: str) -> int:
    """How many messages a queue holds, those being worked on among them."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    attributes = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=names)["Attributes"]
    return sum(int(attributes[name]) for name in names)


def move_messages(sqs: Any, *, source: str, target: str) -> int:
    """Put a queue's messages into another, as a redrive does (the local endpoint has no StartMessageMoveTask)."""
    moved = 0
    while messages := sqs.receive_message(QueueUrl=source, MaxNumberOfMessages=10, WaitTimeSeconds=0).get("Messages"):
        for message in messages:
            sqs.send_message(QueueUrl=target, MessageBody=message["Body"])
            sqs.delete_message(QueueUrl=source, ReceiptHandle=message["ReceiptHandle"])
            moved += 1
    return moved
