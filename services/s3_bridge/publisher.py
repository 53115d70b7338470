"""Kafka, for a process that may be frozen between two batches: nothing is left in the producer when one ends."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from darkroom.contracts.envelope import Record
from darkroom.runtime.kafka import producer_config

log = logging.getLogger(__name__)

NO_REPORT = "no delivery report in time"
NO_TIME = "no time left to publish"
# Time-outs in the producer come before the batch's own, so that most records get a report that says why they failed.
_OWN_SHARE = 0.8
_LEAST_MS = 1000
_PURGE_SECONDS = 0.5
_FULL_QUEUE_POLL_SECONDS = 0.05


class KafkaPublisher:
    """Publishes to one topic through one idempotent producer, made at the first batch and kept for the next ones.

    The producer is made anew after a fatal error, and after a batch that it did not finish: what was in flight then may
    or may not be written, and a new producer has no sequence numbers to disagree about with the broker.
    """

    def __init__(
        self,
        *,
        bootstrap: str,
        topic: str,
        config: Mapping[str, Any] | None = None,
        connect: Callable[..., Producer] = Producer,
    ) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._config = config
        self._connect = connect
        self._producer: Producer | None = None

    def publish(self, records: Sequence[Record], *, timeout: float) -> list[str | None]:
        """Publish all and wait at most ``timeout`` seconds; see ``bridge.Publisher``.

        Raises:
            KafkaException: the settings are not librdkafka's.

        """
        if not records:
            return []
        if timeout <= 0:
            return [NO_TIME] * len(records)
        deadline = time.monotonic() + timeout
        producer = self._producer or self._make(timeout)
        self._producer = producer
        reports: list[KafkaError | str | None] = [NO_REPORT] * len(records)
        for place, record in enumerate(records):
            error = _produce(producer, self._topic, record, partial(_note, reports, place), deadline=deadline)
            if error is not None:
                reports[place] = error
        unfinished = producer.flush(max(0.0, deadline - time.monotonic()))
        if unfinished:
            # A frozen function would send these when it wakes up, after their messages were given to somebody else.
            producer.purge()
            producer.flush(_PURGE_SECONDS)
        fatal = [report for report in reports if isinstance(report, KafkaError) and report.fatal()]
        if unfinished or fatal:
            log.warning(
                "producer_given_up", extra={"unfinished": unfinished, "fatal": str(fatal[0]) if fatal else None}
            )
            self._producer = None
        return [None if report is None else str(report) for report in reports]

    def _make(self, timeout: float) -> Producer:
        own_ms = max(_LEAST_MS, int(timeout * 1000 * _OWN_SHARE))
        config = producer_config(
            self._bootstrap,
            self._config,
            message_timeout_ms=own_ms,
            # A connection that died while the function was frozen must be found and replaced within the same batch.
            socket_timeout_ms=max(_LEAST_MS, own_ms // 3),
            socket_keepalive_enable=True,
            # librdkafka waits up to 10 s between two attempts, which a function has not.
            reconnect_backoff_max_ms=_LEAST_MS,
        )
        return self._connect(config, logger=log)


def _produce(
    producer: Producer,
    topic: str,
    record: Record,
    on_delivery: Callable[[KafkaError | None, Message], None],
    *,
    deadline: float,
) -> KafkaError | str | None:
    """Hand a record to the producer, waiting for room; gives an error if it was not taken."""
    while True:
        try:
            producer.produce(
                topic, key=record.key, value=record.value, headers=list(record.headers), on_delivery=on_delivery
            )
        except BufferError:
            left = deadline - time.monotonic()
            if left <= 0:
                return "the producer's queue stayed full"
            producer.poll(min(left, _FULL_QUEUE_POLL_SECONDS))
        except KafkaException as error:
            refusal: KafkaError = error.args[0]
            return refusal
        else:
            return None


def _note(reports: list[KafkaError | str | None], place: int, error: KafkaError | None, _message: Message) -> None:
    # The list is this batch's own: a report that came late could not be taken for one of the next batch.
    reports[place] = error
