"""Kafka or MongoDB fails, and nothing is lost, marked too early or out of order."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from darkroom.contracts.envelope import Record
from darkroom.contracts.topics import TopicSpec
from darkroom.local.kafka import start_kafka
from darkroom.local.processes import Supervisor
from darkroom.runtime.kafka import ensure_topics
from outbox_relay.hints import Hints
from outbox_relay.publisher import ProducerFailed, Publisher, TopicFacts
from outbox_relay.relay import Pace
from support.eventually import eventually
from support.relay_stage import PARTITIONS, Stage

NOT_WRITABLE = 10107  # NotWritablePrimary, as in a failover


@contextmanager
def failing(stage: Stage, *commands: str, times: int | None = None, code: int = NOT_WRITABLE) -> Iterator[None]:
    """MongoDB refuses the commands on the outbox, for so many times or while the block runs."""
    data: dict[str, Any] = {
        "failCommands": list(commands),
        "errorCode": code,
        "namespace": f"{stage.db.name}.{stage.rows.name}",
    }
    mode: Any = "alwaysOn" if times is None else {"times": times}
    stage.client.admin.command("configureFailPoint", "failCommand", mode=mode, data=data)
    try:
        yield
    finally:
        stage.client.admin.command("configureFailPoint", "failCommand", mode="off")


def test_nothing_is_marked_while_no_broker_answers_and_a_new_producer_goes_on(stage: Stage) -> None:
    expected = stage.append_assets(10, 3)
    asked = threading.Event()

    def deaf_then_real(one_by_one: bool) -> Publisher:
        if asked.is_set():
            return stage.publisher(one_by_one)
        asked.set()
        return Publisher(bootstrap="127.0.0.1:1", topic=stage.topic, facts=TopicFacts(PARTITIONS, 1_000_000))

    with stage.relay(new_publisher=deaf_then_real, pace=Pace(poll=0.2, stall=1.0, longest_pause=0.2)) as relay:
        eventually(asked.is_set)
        assert stage.unpublished() == 30
        assert relay.published == 0
        eventually(lambda: stage.unpublished() == 0)
    assert stage.read_topic().first_appearances == expected


def test_no_broker_to_make_a_producer_for_is_waited_for(stage: Stage) -> None:
    expected = stage.append_assets(5, 2)
    refused = threading.Event()

    def no_broker_then_real(one_by_one: bool) -> Publisher:
        if refused.is_set():
            return stage.publisher(one_by_one)
        refused.set()
        raise ProducerFailed("no Kafka answered")

    with stage.relay(new_publisher=no_broker_then_real):
        eventually(lambda: stage.unpublished() == 0)
    assert stage.read_topic().first_appearances == expected


def test_a_killed_broker_holds_up_and_loses_nothing(stage: Stage, tmp_path: Path) -> None:
    with Supervisor(tmp_path / "logs") as supervisor:
        kafka = start_kafka(supervisor, tmp_path)
        stage.bootstrap = kafka.bootstrap
        ensure_topics(kafka.bootstrap, [TopicSpec(stage.topic, PARTITIONS)])
        expected = stage.append_assets(100, 5)
        with stage.relay(pace=Pace(poll=0.2, in_flight=50, stall=60)) as relay:
            eventually(lambda: relay.published > 100, deadline=20)
            kafka.brokers[0].kill()
            more = stage.append_assets(100, 5)
            at_kill = stage.rows.count_documents({"published": True})
            acknowledged = relay.published
            assert at_kill <= acknowledged
            kafka.brokers[0].start()
            eventually(lambda: stage.unpublished() == 0, deadline=40)
        seen = stage.read_topic()
    assert seen.first_appearances == expected | more


class Breaking(Publisher):
    """The real one, whose client reports a failure after so many sends."""

    sends_left = 37

    def send(self, row_id: str, record: Record) -> None:
        if self.sends_left == 0:
            raise ProducerFailed("a fatal error of the client")
        super().send(row_id, record)
        self.sends_left -= 1


def test_a_failed_producer_is_replaced_and_order_holds(stage: Stage) -> None:
    expected = stage.append_assets(30, 10)
    made = []

    def breaking(one_by_one: bool) -> Publisher:
        made.append(Breaking(bootstrap=stage.bootstrap, topic=stage.topic, facts=TopicFacts(PARTITIONS, 1_000_000)))
        return made[-1]

    with stage.relay(new_publisher=breaking, pace=Pace(poll=0.1, longest_pause=0.05)):
        eventually(lambda: stage.unpublished() == 0, deadline=30)
    assert len(made) > 2
    assert stage.read_topic().first_appearances == expected


def test_failing_reads_lose_nothing(stage: Stage) -> None:
    expected = stage.append_assets(20, 5)
    with failing(stage, "find", "getMore", times=5), stage.relay():
        eventually(lambda: stage.unpublished() == 0, deadline=20)
    assert stage.read_topic().first_appearances == expected


def test_failing_marks_are_made_up_for_and_nothing_is_sent_twice(stage: Stage) -> None:
    expected = stage.append_assets(20, 5)
    with stage.relay() as relay:
        with failing(stage, "update"):
            eventually(lambda: relay.published == 100)
            assert stage.unpublished() == 100
        eventually(lambda: stage.unpublished() == 0, deadline=20)
    seen = stage.read_topic()
    assert seen.first_appearances == expected
    assert seen.repeated == 0


def test_a_read_that_breaks_off_midway_repeats_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox_relay.relay.BATCH", 50)
    expected = stage.append_assets(60, 5)
    with failing(stage, "getMore", times=2, code=1), stage.relay():
        eventually(lambda: stage.unpublished() == 0, deadline=20)
    seen = stage.read_topic()
    assert seen.first_appearances == expected
    assert seen.repeated == 0


def test_without_hints_polling_finds_everything(stage: Stage) -> None:
    with failing(stage, "aggregate", code=286), stage.relay():  # ChangeStreamHistoryLost
        for _ in range(3):
            stage.append_assets(2, 2)
            eventually(lambda: stage.unpublished() == 0)
    assert len(stage.read_topic().events) == 12


def test_hints_wake_long_before_a_poll_would(stage: Stage) -> None:
    with stage.relay(pace=Pace(poll=600.0)):
        for _ in range(3):
            stage.append_assets(2, 2)
            eventually(lambda: stage.unpublished() == 0)


@pytest.mark.parametrize("command", ["getMore", "aggregate"])
def test_lost_hints_come_back(stage: Stage, command: str) -> None:
    wake = threading.Event()
    hints = Hints(stage.rows, wake=wake, pause=0.05)
    with failing(stage, command, times=3, code=286):
        hints.want(True)
        hints.start()
        for _ in range(4):
            # Opened (again): something may have been missed.
            assert wake.wait(10)
            wake.clear()
            stage.append_assets(1, 1)
    eventually(lambda: stage.append_assets(1, 1) and wake.is_set())
    hints.stop()
    assert not hints.is_alive()
