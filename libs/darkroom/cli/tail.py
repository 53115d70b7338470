"""Reads the topics while assets are on their way, as any subscriber would."""

import threading
import time
from collections import defaultdict
from dataclasses import dataclass

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from darkroom.contracts.envelope import Event, MalformedEvent, from_record
from darkroom.contracts.events import EventType
from darkroom.contracts.topics import Topics
from darkroom.inbox.consumer import headers_of


@dataclass(frozen=True)
class Seen:
    """One event on its topic. Wall-clock seconds: when its producer sent it, and when it was read here."""

    event: Event
    sent: float
    read: float


class Tail:
    """Everything published from now on, by asset. Use as a context manager."""

    def __init__(self, bootstrap: str, topics: Topics) -> None:
        self._consumer = Consumer(
            # Reads without a group: it commits nothing and takes no partition from anybody.
            {"bootstrap.servers": bootstrap, "group.id": "darkroom.tail", "enable.auto.commit": False}
        )
        self._topics = topics
        self._seen: dict[str, list[Seen]] = defaultdict(list)
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="tail", daemon=True)

    def __enter__(self) -> "Tail":
        places = []
        for topic in (self._topics.uploaded, self._topics.events):
            metadata = self._consumer.list_topics(topic, timeout=10).topics[topic]
            for partition in metadata.partitions:
                # The offset now, and not "the end" whenever the first fetch happens to be.
                _, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
                places.append(TopicPartition(topic, partition, high if high >= 0 else OFFSET_END))
        self._consumer.assign(places)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def wait_for_end(self, asset_id: str, *, deadline: float) -> list[Seen]:
        """Wait for AssetReady or AssetFailed, ``deadline`` seconds at most, and give the story so far."""
        with self._changed:
            self._changed.wait_for(lambda: _ended(self._seen[asset_id]), deadline)
            return _in_order(self._seen[asset_id])

    def _read(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            try:
                event = from_record(
                    key=_raw(message.key()), value=_raw(message.value()), record_headers=headers_of(message)[0]
                )
            except MalformedEvent:
                continue  # somebody else's record on a shared topic
            with self._changed:
                self._seen[event.asset_id].append(Seen(event, message.timestamp()[1] / 1000, time.time()))
                self._changed.notify_all()


def _ended(seen: list[Seen]) -> bool:
    return any(one.event.type in (EventType.ASSET_READY, EventType.ASSET_FAILED) for one in seen)


def _in_order(seen: list[Seen]) -> list[Seen]:
    """The stream by its sequence, and the upload behind the registration: two topics are read in no common order."""
    stream = {one.event.sequence: one for one in reversed(seen) if one.event.sequence is not None}
    uploads = [one for one in seen if one.event.sequence is None]
    ordered = [stream[sequence] for sequence in sorted(stream)]
    return [*ordered[:1], *uploads[:1], *ordered[1:]]


def _raw(value: object) -> bytes | None:
    return value if isinstance(value, bytes) else None
