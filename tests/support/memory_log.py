"""A topic in memory and a publisher to it that can fail, crash or be late at any named point.

It keeps the real publisher's promises: records are written in the order in which they were sent, and after a failure
nothing more is. The relay that uses it is the real one.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from darkroom.contracts.envelope import Record
from outbox_relay.publisher import ProducerFailed, Publisher, Refusal
from support.invariants import Appearance


class Crash(BaseException):
    """The relay's process is gone: nothing after this line runs, as after SIGKILL."""


@dataclass
class MemoryLog:
    """What the broker holds. ``refused`` rows are never taken; ``on_the_wire`` may still arrive from dead relays."""

    records: list[Appearance] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    on_the_wire: list[list[Appearance]] = field(default_factory=list)


class MemoryPublisher(Publisher):
    """Writes to a ``MemoryLog``. ``visit(point)`` is called at "send", "write", "ack" and "take", and may raise."""

    def __init__(self, log: MemoryLog, *, visit: Callable[[str], None]) -> None:
        # Nothing of the real one but its way to count: that one would connect.
        self._log = log
        self._visit = visit
        self._queue: deque[Appearance] = deque()
        self._written: deque[Appearance] = deque()
        self._acked_rows: list[str] = []
        self._refused_rows: list[Refusal] = []
        self._failed = False
        self.sent = 0
        self.settled = 0

    def send(self, row_id: str, record: Record) -> None:
        """Queue one row; see ``Publisher``."""
        self._visit("send")
        self._check()
        sequence = dict(record.headers)["ce_sequence"]
        self._queue.append(Appearance(row_id, record.key.decode(), int(sequence or 0)))
        self.sent += 1

    def poll(self, seconds: float) -> None:  # noqa: ARG002 -- the real one's, which waits
        """Acknowledge what was written at the last call, then write what is queued."""
        self._check()
        if self._written:
            self._visit("ack")
        while self._written:
            row_id = self._written.popleft().event_id
            self._log.acknowledged.add(row_id)
            self._acked_rows.append(row_id)
            self.settled += 1
        if self._queue:
            self._visit("write")
        while self._queue:
            if self._queue[0].event_id in self._log.refused:
                self._refused_rows.append(Refusal(self._queue[0].event_id, "refused by the test"))
                self._failed = True
                break
            self._log.records.append(self._queue[0])
            self._written.append(self._queue.popleft())
        self._check()

    def take_acked(self) -> list[str]:
        """The rows acknowledged since the last call."""
        if self._acked_rows:
            self._visit("take")
        acked, self._acked_rows = self._acked_rows, []
        return acked

    def take_refusals(self) -> list[Refusal]:
        """The rows refused since the last call."""
        refusals, self._refused_rows = self._refused_rows, []
        return refusals

    def refresh(self) -> None:
        """There is nothing that a broker could have forgotten."""

    def abandon(self, seconds: float = 2.0) -> None:  # noqa: ARG002 -- the real one's, which waits
        """What was written may be acknowledged or not; here it is not. What is queued may still arrive."""
        self._failed = True
        self.settled += len(self._queue) + len(self._written)
        self._written.clear()
        self.lose_connection()

    def lose_connection(self) -> None:
        """The process is gone, and what it had under way may still arrive, up to the first row that is refused."""
        under_way = []
        for queued in self._queue:
            if queued.event_id in self._log.refused:
                break
            under_way.append(queued)
        self._log.on_the_wire.append(under_way)
        self._queue.clear()

    def fail(self) -> None:
        """From now on nothing goes through."""
        self._failed = True

    def _check(self) -> None:
        if self._failed:
            raise ProducerFailed("failed by the test")
