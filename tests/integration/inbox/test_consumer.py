"""The consumer on a real broker: order by key, the committed offset, bounds, rebalances, outages and its end."""

import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from darkroom.inbox.consumer import (
    Bounds,
    Delivery,
    Finished,
    Later,
    OrderedConsumer,
    Verdict,
    consumer_config,
)
from darkroom.inbox.outage import Outage
from darkroom.local.kafka import start_kafka
from darkroom.local.processes import Supervisor
from support.eventually import eventually
from support.raw_records import produce_with_header

Handle = Callable[[Delivery], Verdict]
QUICK = Bounds(commit_every=0.1, drain=3.0, grace=6.0, defect_pause=0.2, outage_pause=0.2)
SESSION_SECONDS = 6.0
IMPATIENT = {"max.poll.interval.ms": 6_000}
"""The group takes a member for dead whose poll thread stands still for so long."""


@dataclass
class Topic:
    """A topic of this test and the group that reads it."""

    bootstrap: str
    name: str
    group: str = field(default_factory=lambda: f"group-{uuid.uuid4().hex[:8]}")

    def create(self, partitions: int) -> "Topic":
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(self.name, num_partitions=partitions)])[self.name].result(timeout=10)
        return self

    def send(self, *records: tuple[str, int], partition: int | None = 0) -> None:
        """Records as (key, number); each key's numbers rise."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, "partitioner": "murmur2_random"})
        for key, number in records:
            producer.produce(
                self.name,
                key=key.encode(),
                value=str(number).encode(),
                partition=-1 if partition is None else partition,
            )
        assert producer.flush(20) == 0

    def committed(self, partition: int = 0) -> int:
        """The group's offset at the broker; -1001 before the first commit."""
        reader = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group})
        try:
            return reader.committed([TopicPartition(self.name, partition)], timeout=10)[0].offset  # type: ignore[no-any-return, unused-ignore]  # untyped in some versions
        finally:
            reader.close()


class Log:
    """What a handler saw, in order of starts; `gate` holds the keys it names back until they are let go."""

    def __init__(self, then: Handle | None = None) -> None:
        self.seen: list[tuple[str, int]] = []
        self.deliveries: list[Delivery] = []
        self.busy: dict[str, int] = defaultdict(int)
        self.most_at_once = 0
        self.overlaps: list[str] = []
        self._then = then
        self._lock = threading.Lock()

    def __call__(self, delivery: Delivery) -> Verdict:
        assert delivery.key is not None
        assert delivery.value is not None
        key, number = delivery.key.decode(), int(delivery.value)
        with self._lock:
            self.seen.append((key, number))
            self.deliveries.append(delivery)
            self.busy[key] += 1
            if self.busy[key] > 1:
                self.overlaps.append(key)
            self.most_at_once = max(self.most_at_once, sum(self.busy.values()))
        try:
            return Finished() if self._then is None else self._then(delivery)
        finally:
            with self._lock:
                self.busy[key] -= 1

    def of(self, key: str) -> list[int]:
        with self._lock:
            return [number for seen, number in self.seen if seen == key]


@dataclass
class Running:
    consumer: OrderedConsumer
    thread: threading.Thread
    told: threading.Event
    errors: list[BaseException]

    def stop(self, *, within: float = 15.0) -> float:
        """Tell it to stop; gives how long that took."""
        begun = time.monotonic()
        self.told.set()
        self.thread.join(within)
        assert not self.thread.is_alive(), f"still running after {within} s"
        assert self.errors == []
        return time.monotonic() - begun


@contextmanager
def consuming(
    topic: Topic,
    handler: Handle,
    *,
    slots: int = 4,
    bounds: Bounds = QUICK,
    protocol: str = "classic",
    extra: Mapping[str, Any] | None = None,
) -> Iterator[Running]:
    consumer = OrderedConsumer(
        config=consumer_config(
            topic.bootstrap, group=topic.group, protocol=protocol, extra=extra, session_seconds=SESSION_SECONDS
        ),
        topics=[topic.name],
        handler=handler,
        slots=slots,
        bounds=bounds,
    )
    told = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            consumer.run(told)
        except BaseException as error:  # noqa: BLE001 -- told to the test by `stop`
            errors.append(error)

    running = Running(consumer, threading.Thread(target=run, daemon=True), told, errors)
    running.thread.start()
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def topic(kafka_bootstrap: str, topic_names: Callable[[str], str]) -> Topic:
    return Topic(kafka_bootstrap, topic_names("uploads")).create(1)


def key_of(delivery: Delivery) -> str:
    assert delivery.key is not None
    return delivery.key.decode()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_keys_of_one_partition_run_in_parallel_and_each_in_order(topic: Topic, protocol: str) -> None:
    together = threading.Barrier(3)

    def wait_for_the_others(delivery: Delivery) -> Verdict:
        # Passes only if three keys of the one partition are worked on at the same time.
        if delivery.value == b"0":
            together.wait(10)
        return Finished()

    log = Log(wait_for_the_others)
    topic.send(*((key, number) for number in range(20) for key in "abc"))
    with consuming(topic, log, protocol=protocol):
        eventually(lambda: len(log.seen) == 60, deadline=20, what="all records")
        eventually(lambda: topic.committed() == 60, what="the commit")
    assert all(log.of(key) == list(range(20)) for key in "abc")
    assert log.overlaps == []


def test_records_without_a_key_do_not_wait_for_each_other(topic: Topic) -> None:
    together = threading.Barrier(2)
    done = []

    def handle(delivery: Delivery) -> Verdict:
        together.wait(10)
        done.append(delivery.offset)
        return Finished()

    producer = Producer({"bootstrap.servers": topic.bootstrap})
    for _ in range(2):
        producer.produce(topic.name, value=b"x", partition=0, headers=[("h", b"1"), ("h", None)])
    assert producer.flush(10) == 0
    with consuming(topic, handle):
        eventually(lambda: sorted(done) == [0, 1], deadline=20, what="both records")


def test_a_waiting_key_delays_no_other_and_its_offset_is_not_passed(topic: Topic) -> None:
    free = threading.Event()
    log = Log(lambda delivery: Later(0.05) if key_of(delivery) == "held" and not free.is_set() else Finished())
    topic.send(("a", 0), ("held", 0), ("a", 1), ("b", 0), ("held", 1), ("b", 1))
    with consuming(topic, log):
        eventually(lambda: log.of("a") == [0, 1] and log.of("b") == [0, 1], deadline=20, what="the other keys")
        eventually(lambda: topic.committed() == 1, what="the commit up to the held record")
        before = len(log.of("held"))
        eventually(lambda: len(log.of("held")) > before + 2, what="three more tries")
        assert topic.committed() == 1
        free.set()
        eventually(lambda: topic.committed() == 6, what="the rest")
    assert log.of("held")[-2:] == [0, 1]
    owners = {delivery.owner for delivery in log.deliveries if key_of(delivery) == "held" and delivery.value == b"0"}
    assert len(owners) == 1, "the owner names one delivery to this process, however often it is handed over"


def test_after_a_restart_what_was_unfinished_comes_again(topic: Topic) -> None:
    topic.send(("a", 0), ("held", 0), ("b", 0))
    first = Log(lambda delivery: Later(60) if key_of(delivery) == "held" else Finished())
    with consuming(topic, first):
        eventually(lambda: len(first.seen) == 3, deadline=20, what="all three")
    assert topic.committed() == 1
    second = Log()
    with consuming(topic, second):
        eventually(lambda: topic.committed() == 3, deadline=20, what="the rest")
    assert second.seen == [("held", 0), ("b", 0)]


def test_a_small_bound_holds_and_no_record_is_skipped_or_repeated(topic: Topic) -> None:
    bounds = Bounds(unfinished=50, span=200, commit_every=0.1, grace=6.0)
    most = 0

    def watch(_: Delivery) -> Verdict:
        nonlocal most
        most = max(most, running.consumer._schedule.unfinished)
        return Finished()

    log = Log(watch)
    topic.send(*((f"k{number % 37}", number) for number in range(5000)))
    with consuming(topic, log, bounds=bounds, slots=4) as running:
        eventually(lambda: len(log.seen) >= 5000, deadline=40, what="all 5,000")
        eventually(lambda: topic.committed() == 5000, what="the commit")
    assert sorted(number for _, number in log.seen) == list(range(5000))
    assert all(log.of(f"k{key}") == list(range(key, 5000, 37)) for key in range(37))
    assert 10 < most <= 50


def test_one_held_record_lets_a_partition_run_only_so_far_ahead(topic: Topic) -> None:
    free = threading.Event()
    log = Log(lambda delivery: Later(0.05) if key_of(delivery) == "held" and not free.is_set() else Finished())
    topic.send(("held", 0), *((f"k{number}", number) for number in range(3000)))
    # The client reads ahead in batches; what it holds back shows only if it asks for little at a time.
    with consuming(topic, log, bounds=Bounds(span=300, commit_every=0.1, grace=6.0)) as running:
        eventually(lambda: running.consumer._paused, deadline=20, what="the pause")
        tries = len(log.of("held"))
        eventually(lambda: len(log.of("held")) > tries + 3, what="three more tries")
        ahead = len(log.seen)
        free.set()
        eventually(lambda: topic.committed() == 3001, deadline=20, what="the rest")
    assert ahead < 3000


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_second_consumer_takes_over_without_loss(
    kafka_bootstrap: str, topic_names: Callable[[str], str], protocol: str
) -> None:
    topic = Topic(kafka_bootstrap, topic_names("uploads")).create(4)
    drained: list[tuple[int, int]] = []

    def slowly(delivery: Delivery) -> Verdict:
        delivery.cancelled.wait(0.01)
        return Finished()

    logs = Log(slowly), Log(slowly)
    records = [(f"k{number % 40}", number) for number in range(1200)]
    topic.send(*records, partition=None)
    with consuming(topic, logs[0], protocol=protocol, bounds=Bounds(unfinished=100, commit_every=0.1, grace=6)) as one:
        eventually(lambda: len(logs[0].seen) > 50, deadline=20, what="a busy first consumer")
        drop = one.consumer._drop

        def noting(partitions: list[tuple[str, int]]) -> None:
            with one.consumer._changed:
                drained.extend((p, len(logs[0].seen)) for _, p in partitions)
            drop(partitions)

        one.consumer._drop = noting  # type: ignore[method-assign, assignment]  # looks on at the moment of the release
        with consuming(topic, logs[1], protocol=protocol) as two:
            eventually(lambda: two.consumer.assigned == 2, deadline=30, what="two partitions for the second")
            eventually(
                lambda: {number for log in logs for _, number in log.seen} == set(range(1200)),
                deadline=40,
                what="every record",
            )
            eventually(lambda: sum(topic.committed(p) for p in range(4)) == 1200, what="all commits")
            revoked = {partition for partition, _ in drained}
            assert len(revoked) == 2
            for partition, at in drained:
                late = [d for d in logs[0].deliveries[at:] if d.partition == partition]
                assert late == [], "the old owner went on after it gave the partition up"
    # With a drain that ends in time nothing is handled twice, also over the change of owners.
    assert sum(len(log.seen) for log in logs) == 1200
    assert all(log.overlaps == [] for log in logs)


def test_an_outage_pauses_all_work_until_the_probe_passes(topic: Topic) -> None:
    down, probes = threading.Event(), []
    down.set()

    def probe() -> None:
        probes.append(1)
        if down.is_set():
            raise ConnectionError("down")

    def handle(delivery: Delivery) -> Verdict:
        if down.is_set():
            raise Outage("the store", probe)
        return Finished()

    log = Log(handle)
    topic.send(*((f"k{number}", number) for number in range(50)))
    with consuming(topic, log, slots=2) as running:
        eventually(lambda: len(probes) > 4, deadline=20, what="five probes")
        assert running.consumer.outage == "the store"
        assert len(log.seen) <= 2, "no more records than workers were tried"
        assert topic.committed() < 1
        down.clear()
        eventually(lambda: topic.committed() == 50, deadline=20, what="all records")
        assert running.consumer.outage is None


def test_an_outage_whose_probe_passes_is_no_spin(topic: Topic) -> None:
    def handle(_: Delivery) -> Verdict:
        raise Outage("the store", lambda: None)

    log = Log(handle)
    topic.send(("a", 0))
    with consuming(topic, log, bounds=Bounds(grace=4.0)):
        eventually(lambda: len(log.seen) >= 3, deadline=20, what="three tries")
        begun, before = time.monotonic(), len(log.seen)
        eventually(lambda: time.monotonic() - begun > 0.5, what="half a second")
        assert len(log.seen) - before < 10


def test_a_stop_during_an_outage_does_not_wait_for_its_end(topic: Topic) -> None:
    def probe() -> None:
        raise ConnectionError

    def handle(_: Delivery) -> Verdict:
        raise Outage("the store", probe)

    log = Log(handle)
    topic.send(("a", 0), ("b", 0))
    with consuming(topic, log, bounds=Bounds(grace=10.0, outage_pause=60.0)) as running:
        eventually(lambda: running.consumer.outage, deadline=20, what="the outage")
        assert running.stop() < 4
    assert len(log.seen) < 10, "work was started again while the process ended"


def test_a_handler_that_raises_gets_the_record_again(topic: Topic) -> None:
    def handle(delivery: Delivery) -> Verdict:
        if len(log.of("a")) < 3 and key_of(delivery) == "a":
            raise ZeroDivisionError("a defect")
        return Finished()

    log = Log(handle)
    topic.send(("a", 0), ("b", 0), ("a", 1))
    with consuming(topic, log):
        eventually(lambda: topic.committed() == 3, deadline=20, what="all records")
    assert log.of("a") == [0, 0, 0, 1]
    assert log.of("b") == [0]


class Panic(BaseException):
    """What a compiled extension raises when it has broken down: no Exception."""


def test_a_handler_that_panics_costs_neither_its_worker_nor_the_record(topic: Topic) -> None:
    def handle(delivery: Delivery) -> Verdict:
        if key_of(delivery) == "a" and delivery.defects < 3:
            raise Panic
        return Finished()

    log = Log(handle)
    topic.send(("a", 0), ("b", 0))
    with consuming(topic, log, slots=1):
        eventually(lambda: topic.committed() == 2, deadline=20, what="all records")
    assert [delivery.defects for delivery in log.deliveries if key_of(delivery) == "a"] == [0, 1, 2, 3]


def test_defects_are_counted_in_a_row(topic: Topic) -> None:
    def handle(delivery: Delivery) -> Verdict:
        turn = len(log.seen)
        if turn in (1, 3):
            raise ZeroDivisionError
        return Later(0.0) if turn == 2 else Finished()

    log = Log(handle)
    topic.send(("a", 0))
    with consuming(topic, log):
        eventually(lambda: topic.committed() == 1, deadline=20, what="the record")
    assert [delivery.defects for delivery in log.deliveries] == [0, 1, 0, 1]


def test_a_wait_beyond_what_a_clock_can_count_harms_nobody(topic: Topic) -> None:
    log = Log(lambda delivery: Later(1e12) if key_of(delivery) == "a" else Finished())
    topic.send(("a", 0))
    with consuming(topic, log, slots=1) as running:
        eventually(lambda: log.of("a"), deadline=20, what="the first record")
        topic.send(("b", 0))
        eventually(lambda: log.of("b"), what="the second record")
        assert running.stop() < 4


def test_a_header_whose_name_is_no_text_harms_nobody(topic: Topic) -> None:
    # Once Python has specialised a call for what it mostly gets, it looks less closely at what comes back.
    topic.send(*(("b", number) for number in range(200)))
    for number in range(3):
        produce_with_header(topic.bootstrap, topic.name, key=b"a", value=b"%d" % number, header=b"\xff\xfe")
    topic.send(("b", 200))
    log = Log()
    with consuming(topic, log):
        eventually(lambda: topic.committed() == 204, deadline=20, what="all records")
    spoilt = next(delivery for delivery in log.deliveries if key_of(delivery) == "a")
    assert log.of("a") == [0, 1, 2]
    assert (spoilt.value, list(spoilt.headers)) == (b"0", [])
    assert "headers" in (spoilt.unreadable or "")


def test_the_same_key_on_two_partitions_is_worked_on_once_at_a_time(
    kafka_bootstrap: str, topic_names: Callable[[str], str]
) -> None:
    """As when the bridge's topic is given more partitions while an event is repeated."""
    topic = Topic(kafka_bootstrap, topic_names("uploads")).create(2)
    waits = {0: 3, 1: 3}

    def handle(delivery: Delivery) -> Verdict:
        delivery.cancelled.wait(0.02)
        waits[delivery.partition] -= 1
        return Later(0.01) if waits[delivery.partition] > 0 else Finished()

    log = Log(handle)
    for partition in (0, 1):
        topic.send(("same", 0), partition=partition)
    with consuming(topic, log):
        eventually(lambda: [topic.committed(p) for p in (0, 1)] == [1, 1], deadline=20, what="both offsets")
    assert log.overlaps == []


def test_compacted_offsets_hold_nothing_up(topic: Topic) -> None:
    """Offsets that no consumer ever sees (compaction, the markers of transactions) lie between the records."""
    producer = Producer({"bootstrap.servers": topic.bootstrap, "transactional.id": topic.name})
    producer.init_transactions(20)
    for number in range(3):
        producer.begin_transaction()
        producer.produce(topic.name, key=b"a", value=str(number).encode(), partition=0)
        producer.commit_transaction(20)
    producer.begin_transaction()
    producer.produce(topic.name, key=b"a", value=b"99", partition=0)
    assert producer.flush(20) == 0
    producer.abort_transaction(20)
    topic.send(("a", 3))
    log = Log()
    with consuming(topic, log):
        eventually(lambda: topic.committed() == 9, deadline=20, what="the last offset")
    assert log.of("a") == [0, 1, 2, 3]


def test_a_member_that_was_taken_for_dead_passes_nothing_and_comes_back(topic: Topic) -> None:
    """Its poll thread stands still for longer than the group allows, so another member takes the partition over.

    Only with the classic protocol: with the other the broker's own session, 45 s, would have to run out.
    """
    stand_still, still, go_on = threading.Event(), threading.Event(), threading.Event()
    held = threading.Event()

    def first(delivery: Delivery) -> Verdict:
        if key_of(delivery) == "held":
            # Only calling it off ends it, so that being lost must do that.
            held.set()
            assert delivery.cancelled.wait(60)
            return Later(0.0)
        return Finished()

    logs = Log(first), Log()
    topic.send(("a", 0), ("held", 0), ("b", 0))
    with ExitStack() as stack:
        one = stack.enter_context(consuming(topic, logs[0], extra=IMPATIENT))
        stack.callback(go_on.set)
        eventually(lambda: topic.committed() == 1, deadline=20, what="the first commit")
        assert held.wait(10)
        balance = one.consumer._balance

        def pause() -> None:
            if stand_still.is_set() and not go_on.is_set():
                still.set()
                go_on.wait(60)
            balance()

        one.consumer._balance = pause  # type: ignore[method-assign]  # stands still where the loop does nothing else
        stand_still.set()
        assert still.wait(10)
        with consuming(topic, logs[1]) as two:
            eventually(lambda: two.consumer.assigned == 1, deadline=40, what="the takeover")
            eventually(lambda: topic.committed() == 3, deadline=20, what="the rest")
            # What it still believes to be its own would be committed now, and must be refused or dropped.
            with one.consumer._changed:
                one.consumer._schedule.uncommitted([(topic.name, 0)])
            one.consumer._committed_at = 0.0
            go_on.set()
            eventually(lambda: one.consumer.assigned == 0 and not logs[0].busy["held"], what="the loss", deadline=20)
            assert topic.committed() == 3
        # The other one has left: whoever was taken for dead is a member again.
        topic.send(("c", 0))
        eventually(lambda: logs[0].of("c") == [0], deadline=40, what="work for the first again")
        eventually(lambda: topic.committed() == 4, what="its commit")
    assert logs[1].seen == [("held", 0), ("b", 0)]
    assert logs[0].of("held") == [0]


def test_a_stop_lets_running_work_end_and_commits_it(topic: Topic) -> None:
    started, may_end = threading.Event(), threading.Event()

    def handle(delivery: Delivery) -> Verdict:
        started.set()
        may_end.wait(10)
        return Finished()

    log = Log(handle)
    topic.send(("a", 0), ("a", 1))
    with consuming(topic, log, bounds=Bounds(commit_every=60, grace=10.0)) as running:
        assert started.wait(20)
        running.told.set()
        eventually(lambda: running.consumer._stopping, what="the wish to stop")
        may_end.set()
        running.stop()
    assert log.seen == [("a", 0)], "nothing is started after the wish to stop"
    assert topic.committed() == 1


def test_work_that_hangs_is_called_off_and_left_within_the_grace_time(topic: Topic) -> None:
    started, for_ever, called_off = threading.Event(), threading.Event(), threading.Event()

    def handle(delivery: Delivery) -> Verdict:
        started.set()
        if delivery.cancelled.wait(30):
            called_off.set()
        for_ever.wait(30)
        return Finished()

    topic.send(("a", 0))
    with consuming(topic, handle, bounds=Bounds(grace=2.0)) as running:
        assert started.wait(20)
        assert running.stop() < 3.0
    assert called_off.is_set()
    for_ever.set()
    assert topic.committed() < 1


def test_work_that_waits_does_not_hold_up_the_stop(topic: Topic) -> None:
    log = Log(lambda _: Later(0.01))
    topic.send(("a", 0), ("b", 0))
    with consuming(topic, log, bounds=Bounds(grace=10.0)) as running:
        eventually(lambda: len(log.seen) > 10, deadline=20, what="some tries")
        assert running.stop() < 4


def test_a_stop_ends_in_time_when_the_broker_hangs(tmp_path: Path) -> None:
    with Supervisor(tmp_path / "logs") as supervisor:
        broker = start_kafka(supervisor, tmp_path / "kafka")
        topics = {protocol: Topic(broker.bootstrap, protocol).create(1) for protocol in ("classic", "consumer")}
        logs = {protocol: Log() for protocol in topics}
        bounds = Bounds(commit_every=60, grace=4.0)
        for topic in topics.values():
            topic.send(("a", 0))
        with (
            consuming(topics["classic"], logs["classic"], bounds=bounds) as classic,
            consuming(topics["consumer"], logs["consumer"], protocol="consumer", bounds=bounds) as newer,
        ):
            eventually(lambda: all(log.seen for log in logs.values()), deadline=20, what="the records")
            for process in supervisor.processes:
                process.pause()
            newer.told.set()
            assert classic.stop() < 5.0
            assert newer.stop() < 1.0
        # The threads that still want to leave the group get their answer now and do not outlive the test.
        for process in supervisor.processes:
            process.resume()
        eventually(lambda: not any(t.name == "consumer-close" for t in threading.enumerate()), deadline=20)
