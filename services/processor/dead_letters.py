"""Records that are no AssetUploaded of ours go to a topic of their own, as they came and with the reason."""

from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from darkroom.inbox.consumer import Delivery
from darkroom.inbox.outage import Outage

LONGEST_REASON = 1_000
"""Characters."""


class _TooLarge(Exception):
    """The broker takes no record of this size, however often it is asked."""


class DeadLetters:
    """Writes dead letters. Thread-safe."""

    def __init__(self, producer: Producer, *, topic: str, seconds: float = 10.0) -> None:
        self._producer = producer
        self._topic = topic
        self._seconds = seconds

    def put(self, delivery: Delivery, reason: str) -> None:
        """Write the record's own bytes and headers, and where it came from and why; returns when the broker has it.

        A record that with these notes is larger than the topic takes is written without its value and headers, and
        ``dlq_left_out`` says so; ``dlq_topic``, ``dlq_partition`` and ``dlq_offset`` still lead to the original.

        Raises:
            Outage: the broker did not confirm it in time.

        """
        notes = [
            # A reason may quote the record, and a lone surrogate from its JSON is no UTF-8.
            ("dlq_reason", reason[:LONGEST_REASON].encode(errors="backslashreplace")),
            ("dlq_topic", delivery.topic.encode()),
            ("dlq_partition", str(delivery.partition).encode()),
            ("dlq_offset", str(delivery.offset).encode()),
        ]
        try:
            self._write(delivery.key, delivery.value, [*delivery.headers, *notes])
        except _TooLarge:
            size = len(delivery.value or b"")
            self._write(None, None, [*notes, ("dlq_left_out", f"key, headers and {size} bytes of value".encode())])

    def _write(self, key: bytes | None, value: bytes | None, headers: list[tuple[str, Any]]) -> None:
        reports: list[object] = []
        try:
            self._producer.produce(
                self._topic, key=key, value=value, headers=headers, on_delivery=lambda error, _: reports.append(error)
            )
            self._producer.flush(self._seconds)
        except (BufferError, KafkaException) as error:
            cause = error.args[0] if isinstance(error, KafkaException) else None
            if isinstance(cause, KafkaError) and cause.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                raise _TooLarge from error
            raise Outage("Kafka", self._probe) from error
        answer = reports[0] if reports else f"not confirmed in {self._seconds:g} s"
        if isinstance(answer, KafkaError) and answer.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            raise _TooLarge
        if answer is not None:
            raise Outage("Kafka", self._probe) from RuntimeError(str(answer))

    def _probe(self) -> None:
        """Ask for the topic.

        Raises:
            KafkaException: the broker does not answer, or has no such topic.

        """
        found = self._producer.list_topics(self._topic, timeout=5).topics[self._topic]
        if found.error is not None:
            raise KafkaException(found.error)
