"""Records that are no AssetUploaded of ours go to a topic of their own, as they came and with the reason."""

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException, Producer

from darkroom.inbox.consumer import Delivery, Outage


class DeadLetters:
    """Writes dead letters. Thread-safe."""

    def __init__(self, producer: Producer, *, topic: str, seconds: float = 10.0) -> None:
        self._producer = producer
        self._topic = topic
        self._seconds = seconds

    def put(self, delivery: Delivery, reason: str) -> None:
        """Write the record's own bytes and headers, and where it came from and why; returns when the broker has it.

        Raises:
            Outage: the broker did not confirm it in time.

        """
        failures: list[object] = []
        confirmed: list[object] = []

        def report(error: object, message: object) -> None:
            (failures if error is not None else confirmed).append(error if error is not None else message)

        headers: list[tuple[str, Any]] = [
            *delivery.headers,
            ("dlq_reason", reason.encode()),
            ("dlq_topic", delivery.topic.encode()),
            ("dlq_partition", str(delivery.partition).encode()),
            ("dlq_offset", str(delivery.offset).encode()),
        ]
        try:
            self._producer.produce(
                self._topic, key=delivery.key, value=delivery.value, headers=headers, on_delivery=report
            )
            self._producer.flush(self._seconds)
        except (BufferError, KafkaException) as error:
            raise Outage("Kafka", self._probe()) from error
        if not confirmed:
            cause = RuntimeError(str(failures[0]) if failures else f"not confirmed in {self._seconds:g} s")
            raise Outage("Kafka", self._probe()) from cause

    def _probe(self) -> Callable[[], object]:
        return lambda: self._producer.list_topics(self._topic, timeout=5)
