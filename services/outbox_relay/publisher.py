"""One producer's life: sends rows, and knows which of them the broker has acknowledged.

The producer is idempotent and never gives a message up by itself: a message that timed out while its successor went
through would be a gap in an asset's order. If anything fails all the same, the whole producer has failed, and the relay
begins anew at the first row that is not marked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from darkroom.contracts.envelope import Record
from darkroom.runtime.kafka import producer_config

# The record itself was refused, wherever it would be sent.
REFUSALS = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD, KafkaError._BAD_MSG}  # noqa: SLF001 -- the client's own name
)


class Refused(Exception):
    """This record can never be sent as it is; the message says why."""


class ProducerFailed(Exception):
    """The producer is of no more use; what it had not acknowledged must be sent by a new one."""


@dataclass(frozen=True)
class Refusal:
    """The broker refused a row's record."""

    row_id: str
    reason: str


class Publisher:
    """Sends rows to one topic. Used by one thread."""

    def __init__(
        self, *, bootstrap: str, topic: str, extra: Mapping[str, Any], max_message_bytes: int, one_by_one: bool = False
    ) -> None:
        own: dict[str, Any] = {
            "linger_ms": 1,
            "message_timeout_ms": 0,
            "enable_gapless_guarantee": True,
            "message_max_bytes": max_message_bytes,
            "batch_size": min(max_message_bytes, 1_000_000),
            "queue_buffering_max_messages": 100_000,
            "queue_buffering_max_kbytes": 131_072,
        }
        if one_by_one:
            # A batch is refused as a whole; alone, each record answers for itself.
            own["batch_num_messages"] = 1
        self._topic = topic
        self._producer = Producer(producer_config(bootstrap, extra, **own))
        self._acked: list[str] = []
        self._refusals: list[Refusal] = []
        self._failure: KafkaError | None = None
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
            BufferError: the queue is full; ``poll`` and try again.

        """
        self._check()
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

    def poll(self, seconds: float) -> None:
        """Let acknowledgements come in for up to ``seconds``.

        Raises:
            ProducerFailed: a row failed; see ``take_refusals`` for rows that are themselves to blame.

        """
        self._producer.poll(seconds)
        self._check()

    def take_acked(self) -> list[str]:
        """The rows acknowledged since the last call, each once."""
        acked, self._acked = self._acked, []
        return acked

    def take_refusals(self) -> list[Refusal]:
        """The rows whose records the broker refused since the last call."""
        refusals, self._refusals = self._refusals, []
        return refusals

    def abandon(self, seconds: float = 2.0) -> None:
        """Give up what is not acknowledged. What is on the wire may still be written: that repeats, it never skips."""
        self._producer.purge()
        self._producer.flush(seconds)

    def _delivered(self, row_id: str, error: KafkaError | None, _message: object) -> None:
        # Only records: calling the client from its own callback is not allowed.
        self.settled += 1
        if error is None:
            self._acked.append(row_id)
            return
        if error.code() in REFUSALS:
            self._refusals.append(Refusal(row_id, str(error)))
        self._failure = self._failure or error

    def _check(self) -> None:
        if self._failure is not None:
            raise ProducerFailed(str(self._failure))
