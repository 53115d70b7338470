"""Which record is worked on next, and which offset may be committed. Pure: time and records are handed in.

One record at a time per key, many keys at once, also within one partition. A key that waits (a foreign lease, a
back-off) delays nobody else. The offset to commit is the lowest one not finished, so a crash repeats and never skips.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

RecordT = TypeVar("RecordT")
Partition = tuple[str, int]


@dataclass(eq=False)
class Item(Generic[RecordT]):
    """One record on its way.

    ``retired``: it may end what it does but is not started again. ``dropped``: its partition was taken away; what
    becomes of it no longer counts here. ``troubles`` counts its hand-overs in a row that came to nothing, ``defects``
    those among them over which its handler raised what it should not. ``since`` is when it was taken in.
    """

    partition: Partition
    offset: int
    key: Hashable
    record: RecordT
    finished: bool = False
    retired: bool = False
    dropped: bool = False
    troubles: int = 0
    defects: int = 0
    since: float = 0.0


@dataclass(eq=False)
class _Lane(Generic[RecordT]):
    """One key's records in order; only the first may be worked on. ``ticket`` is its valid place among the waiting."""

    items: deque[Item[RecordT]] = field(default_factory=deque)
    running: bool = False
    ticket: int | None = None


@dataclass(eq=False)
class _Window(Generic[RecordT]):
    """One partition's records in offset order, from the lowest unfinished one on."""

    items: deque[Item[RecordT]] = field(default_factory=deque)
    end: int = -1
    committed: int = -1
    retired: bool = False

    def watermark(self) -> int:
        """Every offset below it is finished; -1 before the first record."""
        while self.items and self.items[0].finished:
            self.items.popleft()
        return self.items[0].offset if self.items else self.end


class Schedule(Generic[RecordT]):
    """The records of all assigned partitions. Not thread-safe: its user holds a lock."""

    def __init__(self) -> None:
        self._windows: dict[Partition, _Window[RecordT]] = {}
        self._lanes: dict[Hashable, _Lane[RecordT]] = {}
        self._ready: deque[_Lane[RecordT]] = deque()
        self._waiting: list[tuple[float, int, _Lane[RecordT]]] = []
        self._tickets = itertools.count()
        self.unfinished = 0
        """Records taken in and neither finished nor dropped: what the bound on memory is about."""
        self.running = 0
        """Records being worked on, dropped ones included."""

    @property
    def partitions(self) -> set[Partition]:
        """What is assigned."""
        return set(self._windows)

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Begin with ``partitions``, without any record yet; what was known of them is forgotten."""
        self.drop(partitions := list(partitions))
        for partition in partitions:
            self._windows[partition] = _Window()

    def add(self, item: Item[RecordT]) -> bool:
        """Take a record in; false if it is unwanted: its partition is not assigned or retired, or its offset old."""
        window = self._windows.get(item.partition)
        if window is None or window.retired or item.offset < window.end:
            return False
        if window.end < 0:
            window.committed = item.offset
        window.items.append(item)
        window.end = item.offset + 1
        self.unfinished += 1
        lane = self._lanes.setdefault(item.key, _Lane())
        lane.items.append(item)
        if len(lane.items) == 1:
            self._ready.append(lane)
        return True

    def take(self, now: float) -> Item[RecordT] | None:
        """The next record to work on, or None if none is ready at ``now``."""
        while self._waiting and self._waiting[0][0] <= now:
            _, ticket, lane = heapq.heappop(self._waiting)
            if lane.ticket == ticket:
                lane.ticket = None
                self._ready.append(lane)
        while self._ready:
            lane = self._ready.popleft()
            if lane.items:  # else its partition was taken away while it stood here
                lane.running = True
                self.running += 1
                return lane.items[0]
        return None

    def due(self) -> float | None:
        """When a waiting key is ready again at the earliest; None if none waits."""
        return self._waiting[0][0] if self._waiting else None

    def finish(self, item: Item[RecordT]) -> None:
        """The record is done: the next one of its key may run."""
        if not item.dropped:
            item.finished = True
            self.unfinished -= 1
        self._leave(item)

    def defer(self, item: Item[RecordT], until: float) -> None:
        """The record has to wait; records of its key wait with it, all others go on."""
        if item.retired:
            self._leave(item)
            return
        lane = self._lanes[item.key]
        lane.running = False
        self.running -= 1
        lane.ticket = next(self._tickets)
        heapq.heappush(self._waiting, (until, lane.ticket, lane))

    def retire(self, partitions: Iterable[Partition]) -> list[Item[RecordT]]:
        """Start nothing more of these partitions; gives what is being worked on and may still move their watermark."""
        gone = set(partitions)
        running = []
        for partition in gone & self._windows.keys():
            self._windows[partition].retired = True
        for key, lane in list(self._lanes.items()):
            # What runs keeps its place, so that the same record, assigned to us anew, waits until it has ended.
            kept = deque(
                item
                for place, item in enumerate(lane.items)
                if item.partition not in gone or (lane.running and place == 0)
            )
            if lane.running and lane.items[0].partition in gone:
                lane.items[0].retired = True
                running.append(lane.items[0])
            # It was the first record that waited: whoever stood behind it is not to wait for its sake.
            woken = lane.ticket is not None and bool(kept) and kept[0] is not lane.items[0]
            lane.items = kept
            if not kept:
                lane.ticket = None
                del self._lanes[key]
            elif woken:
                lane.ticket = None
                self._ready.append(lane)
        return running

    def drop(self, partitions: Iterable[Partition]) -> list[Item[RecordT]]:
        """Forget the partitions and their records; gives those being worked on, whose work may still be called off."""
        gone = set(partitions)
        running = self.retire(gone)
        for partition in gone:
            for item in self._windows.pop(partition, _Window()).items:
                item.dropped = True
                self.unfinished -= not item.finished
        return running

    def is_running(self, item: Item[RecordT]) -> bool:
        """Whether the record is being worked on."""
        lane = self._lanes.get(item.key)
        return lane is not None and lane.running and lane.items[0] is item

    def commits(self) -> dict[Partition, int]:
        """For each partition the offset to commit, where it moved since the last ``committed``."""
        return {
            partition: offset
            for partition, window in self._windows.items()
            if (offset := window.watermark()) > window.committed
        }

    def committed(self, offsets: dict[Partition, int]) -> None:
        """These offsets are on their way to the broker."""
        for partition, offset in offsets.items():
            if partition in self._windows:
                self._windows[partition].committed = offset

    def uncommitted(self, partitions: Iterable[Partition]) -> None:
        """A commit did not reach the broker: offer these partitions' offsets again."""
        for partition in partitions:
            if partition in self._windows:
                self._windows[partition].committed = -1

    def oldest(self) -> float | None:
        """When the unfinished record that was taken in first was taken in; None if there is none."""
        firsts = (window.items[0].since for window in self._windows.values() if window.watermark() < window.end)
        return min(firsts, default=None)

    def should_move(self) -> bool:
        """Whether any key is being worked on, is free to be, or waits because its last hand-over came to nothing.

        A key that waits because its handler asked for that is as it should be.
        """
        return any(lane.ticket is None or lane.items[0].troubles for lane in self._lanes.values())

    def watermarks(self) -> dict[Partition, int]:
        """The lowest unfinished offset of each partition of which a record has come."""
        return {partition: window.watermark() for partition, window in self._windows.items() if window.end >= 0}

    def span(self, partition: Partition) -> int:
        """How many offsets lie between the partition's watermark and its newest record."""
        window = self._windows.get(partition)
        return 0 if window is None else window.end - window.watermark()

    def _leave(self, item: Item[RecordT]) -> None:
        lane = self._lanes[item.key]
        lane.running = False
        self.running -= 1
        lane.items.popleft()
        if lane.items:
            self._ready.append(lane)
        else:
            del self._lanes[item.key]
