"""Looks while a run lasts, since at its end everything that was early has long become true."""

import threading
import time
from collections.abc import Collection, Container, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Self

from confluent_kafka import KafkaException
from pymongo.errors import PyMongoError

from darkroom.chaos.arena import GROUP, Arena
from darkroom.chaos.checks import ENDED
from darkroom.ops.topics import TERMINAL, Offsets, Place, Reader, TopicRecord

LOOK_SECONDS = 1.0
READ_SECONDS = 5.0
"""How long the reader may take to get to where the offsets are committed; then this look is given up."""
OVERLAP = timedelta(seconds=10)


class Watch:
    """Reads both topics along and compares them with the database. Use as a context manager."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._topics = arena.stack.topics
        self._both = (self._topics.uploaded, self._topics.events)
        self._offsets = Offsets(arena.servers.kafka_bootstrap, group=GROUP)
        self._reader = Reader(arena.servers.kafka_bootstrap, self._both, on_record=self._on_record)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._published: set[str] = set()
        self._marked: set[str] = set()
        self._marked_until: datetime | None = None
        self._marks: list[tuple[set[str], dict[Place, int]]] = []
        self._verified: dict[Place, int] = {}
        self._suspects: dict[tuple[int, int], str] = {}
        self.uploaded: list[TopicRecord] = []
        """The records of ``assets.uploaded`` that are events."""
        self.ended: dict[str, float] = {}
        """When an asset's terminal event was first read, in monotonic seconds."""
        self.early_marks: list[str] = []
        self.commits_watched = 0
        self.marks_watched = 0

    def __enter__(self) -> Self:
        self._reader.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._reader.__exit__(*error)
        self._offsets.close()

    def early_commits(self, *, garbage: Collection[tuple[int, int]]) -> list[str]:
        """Offsets that were committed past events not in their end; ``garbage`` never gets into the inbox."""
        return [text for place, text in self._suspects.items() if place not in garbage]

    def _on_record(self, record: TopicRecord) -> None:
        if record.event is None:
            return
        if record.topic == self._topics.uploaded:
            self.uploaded.append(record)
        elif record.event.type in TERMINAL:
            self.ended.setdefault(record.event.asset_id, record.read_at)
        self._published.add(record.event.id)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            for look in (self._look_at_commits, self._look_at_marks):
                try:
                    look()
                except (KafkaException, PyMongoError):
                    continue  # what is down now is looked at when it is back

    def _look_at_commits(self) -> None:
        """The offsets first, then the inbox: what is committed now must have ended before."""
        offsets = self._offsets.committed(self._topics.uploaded)
        inbox = self._arena.db.consumer_inbox
        ended = {row["event_id"] for row in inbox.find({"state": {"$in": ENDED}}, {"_id": 0, "event_id": 1})}
        deadline = time.monotonic() + READ_SECONDS
        while any(self._reader.positions[place] < offset for place, offset in offsets.items()):
            if time.monotonic() > deadline or self._stop.wait(0.05):
                return
        count, suspects = judge_commits(list(self.uploaded), offsets, ended, since=self._verified)
        self.commits_watched += count
        self._suspects |= suspects
        self._verified |= offsets

    def _look_at_marks(self) -> None:
        """The marks first, then the ends of the topic: what is marked now must be before them."""
        since = {} if self._marked_until is None else {"published_at": {"$gte": self._marked_until - OVERLAP}}
        rows = list(self._arena.db.outbox_events.find({"published": True, **since}, {"published_at": 1}))
        new = {row["_id"] for row in rows} - self._marked
        if new:
            self._marks.append((new, self._offsets.ends(self._both)))
            self._marked |= new
            self._marked_until = max(row["published_at"] for row in rows)
        waiting = []
        for ids, ends in self._marks:
            if any(self._reader.positions[place] < end for place, end in ends.items()):
                waiting.append((ids, ends))
                continue
            self.marks_watched += len(ids)
            self.early_marks += judge_marks(ids, self._published)
        self._marks = waiting


def judge_commits(
    uploaded: Sequence[TopicRecord], offsets: Mapping[Place, int], ended: Container[str], *, since: Mapping[Place, int]
) -> tuple[int, dict[tuple[int, int], str]]:
    """How many records were committed from ``since`` to ``offsets``, and those of them that are not ``ended``.

    The latter by partition and offset.
    """
    count, suspects = 0, {}
    for record in uploaded:
        place = (record.topic, record.partition)
        if record.event is None or not since.get(place, 0) <= record.offset < offsets.get(place, 0):
            continue
        count += 1
        if record.event.id not in ended:
            suspects[record.partition, record.offset] = (
                f"partition {record.partition}: {offsets[place]} was committed while event {record.event.id} at "
                f"{record.offset} had not ended"
            )
    return count, suspects


def judge_marks(marked: Collection[str], published: Container[str]) -> list[str]:
    """Events that were marked and that Kafka did not have up to the ends of its topic at that time."""
    return [f"event {name} was marked while Kafka did not have it" for name in marked if name not in published]


def longest_stall(opened: Sequence[float], ended: Sequence[float]) -> float:
    """The longest time in which something was open and nothing ended.

    ``opened`` and ``ended`` are the moments at which one more thing was open or had ended, in seconds, in any order.
    """
    moments = sorted([(at, 1) for at in opened] + [(at, -1) for at in ended])
    longest, count, since = 0.0, 0, 0.0
    for at, step in moments:
        if count > 0 and step < 0:
            longest = max(longest, at - since)
        if step < 0 or count <= 0:
            since = at
        count += step
    return longest
