"""What lies on the topics, read without a group; and where a group stands."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from darkroom.contracts.envelope import Event, MalformedEvent, from_record
from darkroom.contracts.events import EventType
from darkroom.inbox.consumer import headers_of

TERMINAL = (EventType.ASSET_READY, EventType.ASSET_FAILED)
CALL_SECONDS = 10.0
COORDINATOR_PAUSE = 0.2
MOVING = frozenset(
    {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
)
"""A group's coordinator says so while its topic is made or moves; a moment later somebody is."""
NO_GROUP = "darkroom.ops"
Value = TypeVar("Value")
Place = tuple[str, int]
"""A topic and a partition."""


@dataclass(frozen=True)
class TopicRecord:
    """One record. ``event`` is None if it is none of ours; ``read_at`` in monotonic seconds."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | str | None], ...]
    event: Event | None
    read_at: float
    sent_at: float = 0.0
    """When its producer sent it, in seconds since the epoch."""

    @property
    def notes(self) -> dict[str, str]:
        """The headers as text, as people read them."""
        return {name: _text(value) for name, value in self.headers if value is not None}


def of_coordinator(ask: Callable[[], Value]) -> Value:
    """What a group's coordinator answers; asked again for a while when it is about to be somebody else.

    Raises:
        KafkaException: no broker answers, or none is the coordinator for long.

    """
    deadline = time.monotonic() + CALL_SECONDS
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in MOVING or time.monotonic() > deadline:
                raise
        time.sleep(COORDINATOR_PAUSE)


class Offsets:
    """Asks brokers for offsets. Thread-safe; ``close`` it, or use it as a context manager.

    Not by the consumer that reads: there each question would wait behind a fetch that waits for records. Nor by an
    AdminClient: its ListOffsets fails an assertion of librdkafka, which ends the process, when a broker goes away.
    """

    def __init__(self, bootstrap: str, *, group: str = NO_GROUP, extra: Mapping[str, Any] | None = None) -> None:
        self._consumer = _consumer(bootstrap, group=group, extra=extra)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def ends(self, topics: Iterable[str]) -> dict[Place, int]:
        """The offset behind the last record of each partition.

        Raises:
            KafkaException: no broker answers.

        """
        return {place: end for place, (_, end) in self.bounds(topics).items()}

    def bounds(self, topics: Iterable[str]) -> dict[Place, tuple[int, int]]:
        """The first offset that is still there and the one behind the last, of each partition.

        Raises:
            KafkaException: no broker answers.

        """
        return {
            place: self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=CALL_SECONDS)
            for topic in topics
            for place in self._places(topic)
        }

    def since(self, topic: str, moment: float) -> dict[Place, int]:
        """The first offset sent at ``moment`` (seconds since the epoch) or later, where there is one.

        Raises:
            KafkaException: no broker answers.

        """
        asked = [TopicPartition(*place, round(moment * 1000)) for place in self._places(topic)]
        found = self._consumer.offsets_for_times(asked, timeout=CALL_SECONDS)
        return {(place.topic, place.partition): place.offset for place in found if place.offset >= 0}

    def committed(self, topic: str) -> dict[Place, int]:
        """The offsets that the group has committed, where it has.

        Raises:
            KafkaException: no broker answers.

        """
        places = [TopicPartition(*place) for place in self._places(topic)]
        found = of_coordinator(lambda: self._consumer.committed(places, timeout=CALL_SECONDS))
        return {(place.topic, place.partition): place.offset for place in found if place.offset >= 0}

    def _places(self, topic: str) -> list[Place]:
        partitions = self._consumer.list_topics(topic, timeout=CALL_SECONDS).topics[topic].partitions
        return [(topic, partition) for partition in partitions]


def read_all(
    bootstrap: str, topics: Iterable[str], *, seconds: float = 60.0, extra: Mapping[str, Any] | None = None
) -> list[TopicRecord]:
    """Every record that is there now, in each partition's order.

    Raises:
        TimeoutError: not everything could be read in time.
        KafkaException: no broker answers.

    """
    with Offsets(bootstrap, extra=extra) as offsets:
        wanted = {place: bounds for place, bounds in offsets.bounds(topics).items() if bounds[1] > bounds[0]}
    return list(read(bootstrap, wanted, seconds=seconds, extra=extra))


def read(
    bootstrap: str, wanted: Mapping[Place, tuple[int, int]], *, seconds: float, extra: Mapping[str, Any] | None = None
) -> Iterator[TopicRecord]:
    """The records of each place from one offset up to, and without, another.

    Raises:
        TimeoutError: not everything could be read in time.
        KafkaException: no broker answers.

    """
    deadline = time.monotonic() + seconds
    left = {place: end for place, (_, end) in wanted.items()}
    consumer = _consumer(bootstrap, extra=extra)
    try:
        consumer.assign([TopicPartition(*place, start) for place, (start, _) in wanted.items()])
        while left:
            if time.monotonic() > deadline:
                raise TimeoutError(f"topics not read to the end in {seconds:g} s; left: {left}")
            for message in consumer.consume(500, timeout=0.5):
                if message.error() is not None:
                    continue
                record = _record(message)
                place = record.topic, record.partition
                if record.offset < left.get(place, 0):
                    yield record
                if record.offset + 1 >= left.get(place, 0):
                    left.pop(place, None)
    finally:
        consumer.close()


class Reader:
    """Reads along with a run, from the beginning. Use as a context manager; ``on_record`` is called by its thread."""

    def __init__(self, bootstrap: str, topics: Iterable[str], *, on_record: Callable[[TopicRecord], None]) -> None:
        self._topics = tuple(topics)
        self._consumer = _consumer(bootstrap)
        self._bootstrap = bootstrap
        self._on_record = on_record
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="reader", daemon=True)
        self.positions: dict[Place, int] = defaultdict(int)

    def __enter__(self) -> Self:
        with Offsets(self._bootstrap) as offsets:
            self._consumer.assign([TopicPartition(*place, 0) for place in offsets.ends(self._topics)])
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue  # a broker that is down is what this run is about; reading goes on when it is back
            record = _record(message)
            self._on_record(record)
            self.positions[record.topic, record.partition] = record.offset + 1


def _consumer(bootstrap: str, *, group: str = NO_GROUP, extra: Mapping[str, Any] | None = None) -> Consumer:
    settings = {
        "log_level": 0,
        **(extra or {}),
        "bootstrap.servers": bootstrap,
        # It subscribes to nothing and commits nothing, so it takes no partition from anybody in the group.
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",  # a topic that lost its records must not be read on in silence
        "reconnect.backoff.max.ms": 500,
    }
    return Consumer(settings)


def _record(message: Message) -> TopicRecord:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        raise KafkaException("a record without an error has a place")
    key, value, headers = _raw(message.key()), _raw(message.value()), tuple(headers_of(message)[0])
    try:
        event: Event | None = from_record(key=key, value=value, record_headers=headers)
    except MalformedEvent:
        event = None
    sent_at = message.timestamp()[1] / 1000
    return TopicRecord(topic, partition, offset, key, value, headers, event, time.monotonic(), sent_at)


def _raw(value: object) -> bytes | None:
    return value if isinstance(value, bytes) else None


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")
