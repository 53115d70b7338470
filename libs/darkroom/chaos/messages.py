"""Messages that come twice, late, or that nobody should ever have sent."""

import json
import threading
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka import KafkaError, Message, Producer

from darkroom.contracts.envelope import BRIDGE_SOURCE, Headers, headers, timestamp
from darkroom.contracts.events import AssetUploaded
from darkroom.contracts.topics import Topics
from darkroom.local.stack import Stack
from darkroom.ops.topics import TopicRecord
from darkroom.runtime.kafka import producer_config

FLUSH_SECONDS = 60.0
BATCH = 10


class Messages:
    """Sends what a fault asks for, and remembers where its garbage went. Thread-safe."""

    def __init__(self, stack: Stack, sqs: Any) -> None:
        self._stack = stack
        self._sqs = sqs
        self._topics: Topics = stack.topics
        self._producer = Producer(producer_config(stack.servers.kafka_bootstrap, {"log_level": 0}))
        self._lock = threading.Lock()
        self._garbage: set[tuple[int, int]] = set()
        self.redriven = 0

    @property
    def garbage(self) -> frozenset[tuple[int, int]]:
        """Partition and offset of every piece of garbage that a broker has."""
        with self._lock:
            return frozenset(self._garbage)

    def close(self) -> None:
        """Wait until the brokers have everything.

        Raises:
            TimeoutError: they did not take it, so what is garbage on the topic is not known.

        """
        if left := self._producer.flush(FLUSH_SECONDS):
            raise TimeoutError(f"{left} records of the run's own were not acknowledged in {FLUSH_SECONDS:g} s")

    def notify(self, bucket: str, uploaded: AssetUploaded, *, times: int = 1, delay: int = 0) -> str:
        """Send S3's notification of an object again, ``delay`` seconds late; gives what happened."""
        body = notification(bucket, uploaded)
        try:
            for _ in range(times):
                self._sqs.send_message(QueueUrl=self._stack.outputs.queue_url, MessageBody=body, DelaySeconds=delay)
        except (BotoCoreError, ClientError) as error:
            return f"not sent: {type(error).__name__}"
        return f"{times} x {uploaded.object_key}" + (f" in {delay} s" if delay else "")

    def repeat(self, record: TopicRecord, *, times: int) -> None:
        """Put a record of ``assets.uploaded`` there again, as it is."""
        for _ in range(times):
            self._producer.produce(
                self._topics.uploaded, key=record.key, value=record.value, headers=list(record.headers)
            )
        self._producer.poll(0)

    def spoil(self, kind: int, *, like: TopicRecord | None) -> str:
        """Put garbage on ``assets.uploaded``, of the kind with that number; gives its name."""
        pieces = garbage(like)
        name, key, value, record_headers = pieces[kind % len(pieces)]
        self._producer.produce(
            self._topics.uploaded, key=key, value=value, headers=record_headers, on_delivery=self._on_garbage
        )
        self._producer.poll(0)
        return name

    def depth(self) -> tuple[int, int]:
        """How many messages the queue and its dead-letter queue hold, those in flight included."""
        return self._depth(self._stack.outputs.queue_url), self._depth(self._stack.outputs.dlq_url)

    def redrive(self) -> int:
        """Put what is in the dead-letter queue back into the queue; gives how many messages."""
        moved = 0
        outputs = self._stack.outputs
        while True:
            answer = self._sqs.receive_message(QueueUrl=outputs.dlq_url, MaxNumberOfMessages=BATCH)
            found = answer.get("Messages", [])
            for message in found:
                self._sqs.send_message(QueueUrl=outputs.queue_url, MessageBody=message["Body"])
                # Deleted only now: stopped in between, the message is there twice and not never.
                self._sqs.delete_message(QueueUrl=outputs.dlq_url, ReceiptHandle=message["ReceiptHandle"])
            moved += len(found)
            if not found:
                self.redriven += moved
                return moved

    def _depth(self, queue_url: str) -> int:
        names = [f"ApproximateNumberOfMessages{suffix}" for suffix in ("", "NotVisible", "Delayed")]
        found = self._sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=names)["Attributes"]
        return sum(int(found.get(name, 0)) for name in names)

    def _on_garbage(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            with self._lock:
                self._garbage.add((partition, offset))


def notification(bucket: str, uploaded: AssetUploaded) -> str:
    """The body of an SQS message as S3 writes it for this object."""
    thing = {"key": uploaded.object_key, "size": uploaded.size, "eTag": uploaded.etag}
    thing |= {"versionId": uploaded.version_id, "sequencer": uploaded.sequencer or "00"}
    record = {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventTime": None if uploaded.uploaded_at is None else timestamp(uploaded.uploaded_at),
        "eventName": "ObjectCreated:Put",
        "s3": {
            "bucket": {"name": bucket},
            "object": {name: value for name, value in thing.items() if value is not None},
        },
    }
    return json.dumps({"Records": [{name: value for name, value in record.items() if value is not None}]})


def garbage(like: TopicRecord | None) -> Sequence[tuple[str, bytes | None, bytes | None, Headers]]:
    """Records that are no events of ours: name, key, value and headers. ``like`` is a good one to disfigure."""
    stranger = str(uuid.uuid4())
    pieces: list[tuple[str, bytes | None, bytes | None, Headers]] = [
        ("no headers", stranger.encode(), b"{}", []),
        ("not JSON", stranger.encode(), b"\xff\xfe{", _uploaded_headers(stranger)),
        ("nothing", None, None, []),
    ]
    if like is not None and like.event is not None and like.value is not None:
        wrong_type: Headers = [(name, b"AssetExploded" if name == "ce_type" else value) for name, value in like.headers]
        pieces.append(("unknown type", like.key, like.value, wrong_type))
        pieces.append(("unknown asset", stranger.encode(), like.value, _uploaded_headers(stranger)))
    return pieces


def _uploaded_headers(asset_id: str) -> Headers:
    return headers(
        event_id=str(uuid.uuid4()),
        event_type=AssetUploaded.event_type,
        data_version=AssetUploaded.data_version,
        source=BRIDGE_SOURCE,
        asset_id=asset_id,
        occurred_at=datetime.now(UTC),
    )


def pick(records: Sequence[TopicRecord], choice: float) -> TopicRecord | None:
    """One of the records, by a number in [0, 1); None if there are none."""
    return records[int(choice * len(records))] if records else None
