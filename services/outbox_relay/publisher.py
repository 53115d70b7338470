"""One producer's life: sends rows, and knows which of them the broker has acknowledged.

The producer is idempotent and never gives a message up by itself: a message that timed out while its successor went
through would be a gap in an asset's order. If anything fails all the same, the whole producer has failed, and the relay
begins anew at the first row that is not marked.

A broker that holds nothing yet of a producer in a partition takes any sequence number from it. So were the first batch
refused, the batches in flight behind it would be written, and overtake. Therefore the first record of each partition
goes alone, and nothing follows it there before it is acknowledged.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]  # not in its __all__

from darkroom.contracts.envelope import Record
from darkroom.runtime.kafka import producer_config
from outbox_relay.partitions import partition_of

log = structlog.get_logger()

# The record itself was refused, wherever it would be sent.
REFUSALS = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD, KafkaError._BAD_MSG}  # noqa: SLF001 -- the client's own name
)
BATCH_BYTES = 1_000_000
RECORD_OVERHEAD = 128
"""More bytes than a batch of one record adds to its key, value and headers."""
HEADER_OVERHEAD = 10
"""More bytes than the lengths of one header's name and value take."""
OPEN_SECONDS = 3600.0
"""How long a broker surely remembers a producer in a partition (Kafka's own default is a day)."""
BROKER_DEFAULT_BYTES = 1_048_588


class Refused(Exception):
    """This record can never be sent as it is; the message says why."""


class ProducerFailed(Exception):
    """The producer is of no more use; what it had not acknowledged must be sent by a new one."""


@dataclass(frozen=True)
class Refusal:
    """The broker refused a row's record."""

    row_id: str
    reason: str


@dataclass(frozen=True)
class TopicFacts:
    """What a publisher must know of its topic."""

    partitions: int
    max_message_bytes: int


def describe_topic(bootstrap: str, topic: str, extra: Mapping[str, Any], *, seconds: float = 3.0) -> TopicFacts:
    """Ask the brokers about the topic.

    Raises:
        ProducerFailed: there is no such topic, or nobody answered in time; the message says which.

    """
    admin = AdminClient({**extra, "bootstrap.servers": bootstrap})
    try:
        metadata = admin.list_topics(topic, timeout=seconds).topics[topic]
    except KafkaException as error:
        raise ProducerFailed(f"no Kafka answered at {bootstrap}: {error.args[0]}") from error
    if metadata.error is not None or not metadata.partitions:
        raise ProducerFailed(f"topic {topic}: {metadata.error}; topics are made by `darkroom setup`")
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        config = admin.describe_configs([asked], request_timeout=seconds)[asked].result(timeout=seconds + 1)
    except KafkaException as error:
        if error.args[0].code() not in {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}:
            raise ProducerFailed(f"topic {topic} could not be described: {error.args[0]}") from error
        log.warning("topic_not_described", topic=topic, reason=str(error.args[0]), assumed_bytes=BROKER_DEFAULT_BYTES)
        return TopicFacts(len(metadata.partitions), BROKER_DEFAULT_BYTES)
    except TimeoutError as error:
        raise ProducerFailed(f"topic {topic} could not be described in {seconds:g} s") from error
    return TopicFacts(len(metadata.partitions), int(config["max.message.bytes"].value))


class Publisher:
    """Sends rows to one topic. Used by one thread. Raises KafkaException when ``extra`` is no setting of librdkafka."""

    def __init__(
        self,
        *,
        bootstrap: str,
        topic: str,
        facts: TopicFacts,
        extra: Mapping[str, Any] | None = None,
        one_by_one: bool = False,
    ) -> None:
        own: dict[str, Any] = {
            "linger_ms": 0,
            "message_timeout_ms": 0,
            "enable_gapless_guarantee": True,
            "message_max_bytes": max(facts.max_message_bytes, 1000),
            "batch_size": min(facts.max_message_bytes, BATCH_BYTES),
            # The client's own 10 s would keep events back long after a broker is there again.
            "reconnect_backoff_max_ms": 1000,
            "queue_buffering_max_messages": 100_000,
            "queue_buffering_max_kbytes": 131_072,
        }
        if one_by_one:
            # A batch is refused as a whole; alone, each record answers for itself.
            own["batch_num_messages"] = 1
        self._topic = topic
        self._facts = facts
        # The client's own warnings are no JSON; what matters comes as an exception.
        self._producer = Producer(producer_config(bootstrap, {"log_level": 3, **(extra or {})}, **own))
        self._acked: list[str] = []
        self._refusals: list[Refusal] = []
        self._failure: KafkaError | None = None
        self._closed = set(range(facts.partitions))
        self._opening: dict[str, int] = {}
        self._open_until = time.monotonic() + OPEN_SECONDS
        self.sent = 0
        self.settled = 0

    @property
    def in_flight(self) -> int:
        """Rows sent and neither acknowledged nor failed."""
        return self.sent - self.settled

    def send(self, row_id: str, record: Record) -> None:
        """Queue one row.

        Raises:
            Refused: the record is too large or cannot be one.
            ProducerFailed: nothing more goes through this producer.
            BufferError: not now, since the queue is full or the partition not open yet; ``poll`` and try again.

        """
        if self._failure is not None:
            raise ProducerFailed(str(self._failure))
        # Most records are far from the limit, and counting costs.
        if len(record.value) * 2 > self._facts.max_message_bytes:
            self._check_size(record)
        first_in = self._first_in(record.key) if self._closed or self._opening else None
        try:
            self._producer.produce(
                self._topic,
                key=record.key,
                value=record.value,
                headers=record.headers,
                on_delivery=partial(self._delivered, row_id),
            )
        except KafkaException as error:
            kafka_error = error.args[0]
            if kafka_error.code() in REFUSALS:
                raise Refused(str(kafka_error)) from error
            raise ProducerFailed(str(kafka_error)) from error
        self.sent += 1
        if first_in is not None:
            self._closed.discard(first_in)
            self._opening[row_id] = first_in

    def poll(self, seconds: float) -> None:
        """Let acknowledgements come in for up to ``seconds``.

        Raises:
            ProducerFailed: a row failed; see ``take_refusals`` for rows that are themselves to blame.

        """
        try:
            self._producer.poll(seconds)
        except (KafkaException, SystemError) as error:
            # The client raises its fatal errors here; a callback that runs in their wake becomes a SystemError.
            raise ProducerFailed(str(error)) from error
        if self._failure is not None:
            raise ProducerFailed(str(self._failure))

    def take_acked(self) -> list[str]:
        """The rows acknowledged since the last call, each once."""
        acked, self._acked = self._acked, []
        return acked

    def take_refusals(self) -> list[Refusal]:
        """The rows whose records the broker refused since the last call."""
        refusals, self._refusals = self._refusals, []
        return refusals

    def refresh(self) -> None:
        """Open every partition anew if the broker may have forgotten us. Only while nothing is in flight."""
        if time.monotonic() > self._open_until:
            self._closed = set(range(self._facts.partitions))
            self._open_until = time.monotonic() + OPEN_SECONDS

    def abandon(self, seconds: float = 2.0) -> None:
        """Give up what is not acknowledged. What is on the wire may still be written: that repeats, it never skips."""
        self._failure = self._failure or KafkaError(KafkaError._PURGE_QUEUE, "given up")  # noqa: SLF001 -- the client's own name
        self._producer.purge()
        ends = time.monotonic() + seconds
        # Not flush(): it goes on calling back after an exception, as often as there are messages.
        while self.in_flight and time.monotonic() < ends:
            try:
                self._producer.poll(0.05)
            except (KafkaException, SystemError) as error:
                log.debug("producer_failed_again", error=str(error))

    def _first_in(self, key: bytes) -> int | None:
        """The partition that this record opens, None if it is open."""
        partition = partition_of(key, self._facts.partitions)
        if partition in self._opening.values():
            raise BufferError(f"partition {partition} of {self._topic} is not open yet")
        return partition if partition in self._closed else None

    def _check_size(self, record: Record) -> None:
        # The client counts key and value only; the broker counts all of it, and refuses a whole batch.
        size = RECORD_OVERHEAD + len(record.key) + len(record.value)
        size += sum(HEADER_OVERHEAD + len(name) + len(value or b"") for name, value in record.headers)
        if size > self._facts.max_message_bytes:
            raise Refused(f"{size} bytes; {self._topic} takes {self._facts.max_message_bytes} (max.message.bytes)")

    def _delivered(self, row_id: str, error: KafkaError | None, _message: object) -> None:
        # Only records: calling the client from its own callback is not allowed.
        self.settled += 1
        if error is None:
            self._acked.append(row_id)
            if self._opening:
                self._opening.pop(row_id, None)
            return
        self._failure = self._failure or error
        if error.code() in REFUSALS:
            self._refusals.append(Refusal(row_id, str(error)))
