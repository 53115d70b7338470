"""Consume topics in order by key and in parallel, committing nothing that is not finished.

One thread polls and does nothing else with records than hand them to the schedule, so ``max.poll.interval.ms`` is never
at risk however long a record's work takes; worker threads take records as their keys become free.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import Any, Protocol

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from darkroom.inbox.observer import Observer, Outcome
from darkroom.inbox.outage import Breaker, Outage, full_jitter
from darkroom.inbox.record_ids import ids_of
from darkroom.inbox.schedule import Item, Partition, Schedule

log = structlog.get_logger()

LONGEST_WAIT = 3600.0
"""Seconds after which a record is handed over again, whatever it asked for."""
CALLED_OFF = 2.0
"""Seconds for work to notice that it was called off, when a partition is taken away."""

# Not message.headers(): on a name that is no UTF-8 the client gives a broken list and an error both, which only calls
# made from C look for. An interpreter that has specialised the call takes the list, and ends with a segmentation fault.
_READ_HEADERS = methodcaller("headers")


@dataclass(frozen=True)
class Finished:
    """The record needs nothing more: its offset may be committed."""


@dataclass(frozen=True)
class Later:
    """Hand the record over again in ``seconds``; its key waits, all other keys go on."""

    seconds: float


Verdict = Finished | Later


@dataclass(frozen=True)
class Delivery:
    """One record, as often as it is handed over to this process. ``owner`` names it in leases.

    ``unreadable`` says what of the record could not be read, if anything; then ``headers`` is empty.
    ``defects`` counts how often the handler has raised over it in a row. ``cancelled`` is set when the work is to be
    called off: the partition is gone, or the process ends.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | str | None]]
    owner: str
    unreadable: str | None = None
    defects: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event, compare=False)


class Handler(Protocol):
    """Works on one record. Called from several threads, never twice at once for one key.

    Its guarantee: when it answers Finished, the record's effect is durable. Whatever it raises but Outage counts as a
    defect of the handler: the record is handed over again, after a growing pause. So is a record that met an Outage.
    """

    def __call__(self, delivery: Delivery, /) -> Verdict: ...


@dataclass(frozen=True)
class Bounds:
    """How much is held at once. Times in seconds.

    ``unfinished`` records in memory; ``span`` offsets between a partition's oldest unfinished record and its newest;
    ``drain`` for work to end when a partition is taken away; ``grace`` from the wish to stop until ``run`` returns, of
    which work has the first six tenths to end by itself.
    """

    unfinished: int = 1000
    span: int = 10_000
    drain: float = 5.0
    grace: float = 20.0
    commit_every: float = 1.0
    defect_pause: float = 30.0
    outage_pause: float = 10.0


@dataclass(frozen=True)
class State:
    """One look at a consumer. Times in seconds.

    ``oldest`` is how long the oldest unfinished record has been in hand; ``stalled`` how long none has moved (no
    handler has answered, none was asked anew) although there are some to work on, 0 while all is well. ``lag`` counts
    the records behind the lowest unfinished offset of each partition from which a record has come, by what the last
    fetch told: a paused partition fetches nothing. ``progress_at`` is the time (Unix) of a handler's last answer.
    """

    assigned: int
    paused: int
    unfinished: int
    running: int
    oldest: float
    stalled: float
    progress_at: float
    lag: Mapping[Partition, int]


def consumer_config(
    bootstrap: str,
    *,
    group: str,
    extra: Mapping[str, Any] | None = None,
    protocol: str = "classic",
    session_seconds: float = 15.0,
) -> dict[str, Any]:
    """Settings of a consumer in ``group``. ``protocol`` "consumer" (KIP-848) leaves assignment to the broker.

    ``session_seconds`` is how long a member that died keeps its partitions; with "consumer" the broker decides that.
    """
    by_protocol: dict[str, dict[str, Any]] = {
        "classic": {
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": round(session_seconds * 1000),
            "heartbeat.interval.ms": round(session_seconds * 200),
        },
        "consumer": {"group.protocol": "consumer"},
    }
    return {
        "auto.offset.reset": "earliest",
        "socket.timeout.ms": 10_000,
        "queued.max.messages.kbytes": 16_384,
        **(extra or {}),
        **by_protocol[protocol],
        "bootstrap.servers": bootstrap,
        "group.id": group,
        # Offsets are committed here and nowhere else, and only behind finished records.
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
    }


class OrderedConsumer:
    """Consumes until it is told to stop. One instance a process and group."""

    def __init__(
        self,
        *,
        config: Mapping[str, Any],
        topics: Sequence[str],
        handler: Handler,
        slots: int,
        bounds: Bounds | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._topics = list(topics)
        self._observer = observer or Observer()
        self._handler = handler
        self._bounds = bounds or Bounds()
        self._schedule: Schedule[Delivery] = Schedule()
        self._changed = threading.Condition()
        self._stopping = False
        self._closing = False
        self._breaker = Breaker(self._changed, longest_pause=self._bounds.outage_pause)
        self._paused: set[Partition] = set()
        self._balanced_at = 0.0
        self._committed_at = 0.0
        self._commits_pending = 0
        self._ends: dict[Partition, int] = {}
        self.last_poll = self._last_progress = time.monotonic()
        self._progress_at = time.time()
        self._workers = [
            threading.Thread(target=self._work, name=f"worker-{number}", daemon=True) for number in range(slots)
        ]
        self._consumer = Consumer({**config, "on_commit": self._on_commit, "error_cb": self._on_error})

    @property
    def assigned(self) -> int:
        """How many partitions are assigned now."""
        with self._changed:
            return len(self._schedule.partitions)

    @property
    def outage(self) -> str | None:
        """The server for which all work waits, if any."""
        return self._breaker.server

    def state(self) -> State:
        """How things are now. Asks no server; may be called from any thread."""
        now = time.monotonic()
        with self._changed:
            oldest, reached = self._schedule.oldest(), self._schedule.watermarks()
            return State(
                assigned=len(self._schedule.partitions),
                paused=len(self._paused),
                unfinished=self._schedule.unfinished,
                running=self._schedule.running,
                oldest=0.0 if oldest is None else now - oldest,
                stalled=now - self._last_progress if self._schedule.should_move() else 0.0,
                progress_at=self._progress_at,
                lag={p: max(0, self._ends[p] - offset) for p, offset in reached.items() if p in self._ends},
            )

    def run(self, stop: threading.Event) -> None:
        """Consume until ``stop`` is set, then let running work end within the grace time, commit and leave the group.

        Raises:
            KafkaException: a fatal error of the client; the process must be started anew.

        """
        for worker in self._workers:
            worker.start()
        self._consumer.subscribe(
            self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        try:
            while not stop.is_set():
                self._poll(0.1)
                self._balance()
                self._commit()
        finally:
            self._shut_down()

    # --- the poll thread: everything that touches the Kafka client runs here ---

    def _poll(self, timeout: float) -> None:
        message = self._consumer.poll(timeout)
        self.last_poll = time.monotonic()
        if message is None:
            return
        error = message.error()
        if error is None:
            self._take_in(message)
        elif error.fatal():
            raise KafkaException(error)
        elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 -- the client's own name for it
            log.warning("consume_error", error=str(error))

    def _take_in(self, message: Message) -> None:
        if self._stopping:
            return
        topic, partition, offset, key = message.topic(), message.partition(), message.offset(), message.key()
        if topic is None or partition is None or offset is None:
            raise AssertionError("a record without an error has a place")
        headers, unreadable = headers_of(message)
        delivery = Delivery(
            topic=topic,
            partition=partition,
            offset=offset,
            key=_bytes(key),
            value=_bytes(message.value()),
            headers=headers,
            owner=str(uuid.uuid4()),
            unreadable=unreadable,
        )
        # A record without a key has no order to keep; it must not wait for others without a key either.
        lane = key if key is not None else (topic, partition, offset)
        with self._changed:
            if not self._schedule.unfinished:
                # Until now there was nothing to do.
                self._last_progress = self.last_poll
            if self._schedule.add(Item((topic, partition), offset, lane, delivery, since=self.last_poll)):
                self._changed.notify()

    def _balance(self) -> None:
        """Pause what has run too far ahead, resume what has not."""
        now = time.monotonic()
        with self._changed:
            full = self._schedule.unfinished >= self._bounds.unfinished
            if not full and now - self._balanced_at < 0.02:
                return
            self._balanced_at = now
            partitions = self._schedule.partitions
            roomy = self._schedule.unfinished <= self._bounds.unfinished // 2
            ahead = {p for p in partitions if self._schedule.span(p) >= self._bounds.span}
        self._paused &= partitions
        wanted = partitions if full else ahead if roomy else ahead | self._paused
        if more := wanted - self._paused:
            self._consumer.pause(_places(more))
        if less := self._paused - wanted:
            self._consumer.resume(_places(less))
        self._paused = set(wanted)

    def _commit(self) -> None:
        now = time.monotonic()
        if now - self._committed_at < self._bounds.commit_every:
            return
        self._committed_at = now
        with self._changed:
            offsets = self._schedule.commits()
            self._schedule.committed(offsets)
            assigned = self._schedule.partitions
        self._send_commit(offsets)
        self._ends = self._known_ends(assigned)

    def _known_ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset behind each partition's last record, as the last fetch told it: no broker is asked."""
        known = {}
        for topic, partition in partitions:
            _, end = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), cached=True)
            if end >= 0:
                known[(topic, partition)] = end
        return known

    def _send_commit(self, offsets: Mapping[Partition, int]) -> None:
        if not offsets:
            return
        try:
            self._consumer.commit(offsets=_offsets(offsets), asynchronous=True)
            self._commits_pending += 1
        except KafkaException as error:
            self._commit_failed(error.args[0], offsets)

    def _on_commit(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        self._commits_pending = max(0, self._commits_pending - 1)
        failed = [(p.topic, p.partition) for p in places if error is not None or p.error is not None]
        if failed:
            self._commit_failed(error or next(p.error for p in places if p.error is not None), failed)

    def _commit_failed(self, error: object, partitions: Iterable[Partition]) -> None:
        # After a rebalance this is expected: the new owner reads the records again and finds them done in the inbox.
        log.info("commit_refused", error=str(error))
        with self._changed:
            self._schedule.uncommitted(partitions)

    def _on_error(self, error: KafkaError) -> None:
        log.warning("kafka_error", error=str(error), fatal=error.fatal())

    def _on_assign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        partitions = [(p.topic, p.partition) for p in places]
        log.info("partitions_assigned", partitions=[p for _, p in partitions])
        with self._changed:
            self._schedule.assign(partitions)
        # What was paused in an earlier life of this assignment must not stay so.
        self._paused.difference_update(partitions)
        consumer.incremental_assign(places)
        consumer.resume(places)

    def _on_revoke(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        partitions = [(p.topic, p.partition) for p in places]
        log.info("partitions_revoked", partitions=[p for _, p in partitions])
        deadline = time.monotonic() + self._bounds.drain
        self._drain(partitions, deadline, deadline + CALLED_OFF, wait=self._await)
        with self._changed:
            offsets = {p: o for p, o in self._schedule.commits().items() if p in set(partitions)}
        if offsets:
            try:
                consumer.commit(offsets=_offsets(offsets), asynchronous=False)
            except KafkaException as error:
                self._commit_failed(error.args[0], partitions)
        self._drop(partitions)
        consumer.incremental_unassign(places)

    def _on_lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        partitions = [(p.topic, p.partition) for p in places]
        log.warning("partitions_lost", partitions=[p for _, p in partitions])
        self._drop(partitions)
        consumer.incremental_unassign(places)

    def _drain(
        self, partitions: Iterable[Partition], deadline: float, end: float, *, wait: Callable[[float], None]
    ) -> None:
        """Start nothing more of these partitions and let what runs end: called off at ``deadline``, left at ``end``."""
        with self._changed:
            running = self._schedule.retire(partitions)
        while unfinished := [item for item in running if not self._ended(item)]:
            now = time.monotonic()
            # While a server is out of reach nothing comes to an end by waiting.
            if now >= deadline or self._breaker.server is not None:
                for item in unfinished:
                    item.record.cancelled.set()
            if now >= end:
                log.warning("work_left_running", count=len(unfinished))
                return
            wait(0.05)

    def _ended(self, item: Item[Delivery]) -> bool:
        with self._changed:
            return not self._schedule.is_running(item)

    def _await(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait(seconds)

    def _drop(self, partitions: Iterable[Partition]) -> None:
        partitions = list(partitions)
        with self._changed:
            for item in self._schedule.drop(partitions):
                item.record.cancelled.set()
        self._paused.difference_update(partitions)

    def _shut_down(self) -> None:
        begun, grace = time.monotonic(), self._bounds.grace
        with self._changed:
            # Both at once: whoever ends now begins nothing more.
            self._stopping = True
            partitions = self._schedule.partitions
            self._schedule.retire(partitions)
        if partitions:
            self._consumer.pause(_places(partitions))
        # Polling goes on while work drains, so that the group does not think this member dead.
        self._drain(partitions, begun + 0.6 * grace, begun + 0.75 * grace, wait=self._poll_on)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            offsets = self._schedule.commits()
        self._send_commit(offsets)
        while self._commits_pending and time.monotonic() < begun + 0.9 * grace:
            self._poll_on(0.05)
        self._drop(self._assignment() | partitions)
        for worker in self._workers:
            worker.join(max(0.0, begun + 0.9 * grace - time.monotonic()))
        # Leaving the group needs the broker; without it the session simply runs out there.
        closer = threading.Thread(target=self._consumer.close, name="consumer-close", daemon=True)
        closer.start()
        closer.join(max(0.5, begun + grace - time.monotonic()))
        if closer.is_alive():
            log.warning("group_not_left")

    def _poll_on(self, seconds: float) -> None:
        """Poll for the group's and the commits' sake; a client that is past help must not stop the orderly end."""
        try:
            self._poll(seconds)
        except KafkaException as error:
            log.warning("kafka_error", error=str(error.args[0]), fatal=True)
            self._await(seconds)

    def _assignment(self) -> set[Partition]:
        with self._changed:
            return self._schedule.partitions

    # --- the workers ---

    def _work(self) -> None:
        while (item := self._next()) is not None:
            # Whatever is logged of this hand-over says whose it is, also of a handler that failed.
            with structlog.contextvars.bound_contextvars(**ids_of(item.record.headers)):
                verdict = self._handle(item)
            with self._changed:
                if isinstance(verdict, Finished):
                    self._schedule.finish(item)
                else:
                    self._schedule.defer(item, time.monotonic() + min(verdict.seconds, LONGEST_WAIT))
                self._changed.notify_all()

    def _next(self) -> Item[Delivery] | None:
        with self._changed:
            while not self._closing:
                now = time.monotonic()
                if self._breaker.server is None:
                    if (item := self._schedule.take(now)) is not None:
                        if not item.troubles:
                            self._last_progress = now
                        # Calling off one hand-over must not reach into the next.
                        item.record = replace(item.record, cancelled=threading.Event(), defects=item.defects)
                        return item
                    due = self._schedule.due()
                    self._changed.wait(None if due is None else max(0.0, due - now))
                else:
                    self._changed.wait()
        return None

    def _handle(self, item: Item[Delivery]) -> Verdict:
        delivery, begun = item.record, time.perf_counter()
        try:
            verdict = self._handler(delivery)
        except Outage as outage:
            item.troubles += 1
            self._observer.handled(Outcome.OUTAGE, time.perf_counter() - begun)
            self._observer.outage(outage.server)
            log.warning("outage", server=outage.server, cause=str(outage.__cause__))
            self._breaker.sit_out(outage, delivery.cancelled, stopping=lambda: self._stopping)
            # Not at once: the probe may pass while what the handler asked for still fails.
            return Later(full_jitter(item.troubles, cap=self._bounds.outage_pause))
        except BaseException:
            # Whatever a handler forgot must neither end the worker nor lose the record. A panic of a compiled extension
            # is no Exception.
            item.troubles += 1
            item.defects += 1
            self._observer.handled(Outcome.DEFECT, time.perf_counter() - begun)
            log.exception("handler_defect", topic=delivery.topic, partition=delivery.partition, offset=delivery.offset)
            return Later(full_jitter(item.troubles, cap=self._bounds.defect_pause))
        item.troubles = item.defects = 0
        self._last_progress, self._progress_at = time.monotonic(), time.time()
        outcome = Outcome.FINISHED if isinstance(verdict, Finished) else Outcome.LATER
        self._observer.handled(outcome, time.perf_counter() - begun)
        return verdict


def _places(partitions: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for topic, partition in partitions]


def _offsets(offsets: Mapping[Partition, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]


def headers_of(message: Message) -> tuple[list[tuple[str, bytes | str | None]], str | None]:
    """The headers, or else why they cannot be read: the client fails on a name that is no UTF-8."""
    try:
        found = _READ_HEADERS(message) or []
    except Exception as error:  # noqa: BLE001 -- a SystemError, and one record must not end the poll thread
        return [], f"the record's headers cannot be read: {error.__cause__ or error}"
    return (list(found.items()) if isinstance(found, dict) else [(name, value) for name, value in found]), None


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
