"""Several relays at once, some killed, some standing still past their lease: order and completeness hold."""

import signal
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from outbox_relay.relay import Pace, Relay
from outbox_relay.shards import Owned, ShardLeases
from support.eventually import eventually
from support.relay_stage import Stage


@pytest.mark.parametrize(("assets", "events_each"), [(200, 20)])
def test_kills_and_stalls_cost_repeats_only(stage: Stage, tmp_path: Path, assets: int, events_each: int) -> None:
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
        # Few in flight, so that kills and stalls hit relays in the midst of work.
        log = tmp_path / f"relay-{len(processes)}.log"
        processes.append(stage.process(log, DARKROOM_RELAY_IN_FLIGHT="20"))
        return processes[-1]

    def published(at_least: float) -> None:
        wanted = at_least * assets * events_each
        eventually(lambda: assets * events_each - stage.unpublished() >= wanted, deadline=30, what=f"{at_least:.0%}")

    try:
        victim, sleeper = start(), start()
        start()
        expected = stage.append_assets(assets, events_each)
        published(0.1)
        victim.send_signal(signal.SIGKILL)
        sleeper.send_signal(signal.SIGSTOP)
        published(0.3)
        # Its shards belong to others by now; it wakes up in the midst of a sweep.
        eventually(lambda: stage.db.relay_members.count_documents({"$expr": {"$gt": ["$alive_until", "$$NOW"]}}) <= 1)
        sleeper.send_signal(signal.SIGCONT)
        start()
        published(1.0)
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        codes = [process.wait(20) for process in processes]
    assert codes[:3] == [-signal.SIGKILL, 0, 0]
    # The last may be told to end before it has got as far as to listen.
    assert codes[3] in {0, -signal.SIGTERM}
    seen = stage.read_topic()
    assert seen.first_appearances == expected
    print(f"{len(seen.events)} records, {seen.repeated} repeats")  # noqa: T201 -- told by pytest -rP


def test_order_holds_for_what_is_appended_while_a_relay_runs(stage: Stage) -> None:
    with stage.relay(pace=Pace(poll=0.02)):
        expected = stage.append_assets(200, 20)
        eventually(lambda: stage.unpublished() == 0, deadline=30)
    assert stage.read_topic().first_appearances == expected


class Everything(ShardLeases):
    """Leases gone wrong: this relay believes that it owns every shard, as others do too."""

    def refresh(self) -> Owned:
        self.owned = Owned(frozenset(range(64)), float("inf"))
        return self.owned


def test_order_does_not_rest_on_leases(stage: Stage) -> None:
    expected = stage.append_assets(60, 10)
    with ExitStack() as stack:
        for number in range(3):
            leases = Everything(stage.db, instance=str(number), lease_seconds=5.0)
            leases.refresh()
            stack.enter_context(stage.relay(leases=leases, pace=Pace(poll=0.1, in_flight=7)))
        eventually(lambda: stage.unpublished() == 0, deadline=30)
        expected |= stage.append_assets(60, 10)
        eventually(lambda: stage.unpublished() == 0, deadline=30)
    assert stage.read_topic().first_appearances == expected


class Flickering(ShardLeases):
    """Every shard is ours, is lost, and is ours again, from one look to the next."""

    looks = 0

    @property
    def owned(self) -> Owned:
        self.looks += 1
        shards = frozenset(range(64)) if self.looks % 5 else frozenset[int]()
        return Owned(shards, float("inf"))

    @owned.setter
    def owned(self, owned: Owned) -> None:
        """Set by the base class, and of no meaning here."""


def test_a_shard_that_is_lost_stays_out_for_the_sweep(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox_relay.relay.CHECK_EVERY", 3)
    expected = stage.append_assets(1, 60)
    leases = Flickering(stage.db, instance="flickering", lease_seconds=5.0)
    with stage.relay(leases=leases, pace=Pace(poll=0.02)):
        eventually(lambda: stage.unpublished() == 0, deadline=30)
    assert stage.read_topic().first_appearances == expected


def test_relays_that_come_and_go_share_the_work(stage: Stage) -> None:
    one, two = stage.leases("one"), stage.leases("two")
    for leases in (one, two, one, two):
        leases.refresh()
    wake = threading.Event()
    relays: list[Relay] = []
    with stage.relay(leases=one, wake=wake) as first, stage.relay(leases=two) as second:
        relays += [first, second]
        stage.append_assets(200, 2)
        eventually(lambda: stage.unpublished() == 0)
        eventually(lambda: first.published + second.published == 400)
    assert min(relay.published for relay in relays) > 100
    assert stage.read_topic().repeated == 0
