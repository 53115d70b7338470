"""A reconciler that goes on: each pass at its own pace, through outages, until it is told to stop."""

import threading
from collections import Counter

import pytest
from prometheus_client import generate_latest
from pymongo.errors import AutoReconnect

from darkroom.cli.rounds import Rounds
from darkroom.ops.reconcile import Pass, Report

SOON, NEVER_AGAIN = 0.001, 3600.0
DEADLINE = 20.0


def test_each_pass_has_its_own_pace() -> None:
    stop, runs = threading.Event(), Counter[Pass]()

    def run(name: Pass) -> Report:
        runs[name] += 1
        if runs[Pass.UNFINISHED] == 3 and runs[Pass.OBJECTS]:
            stop.set()
        return Report(name, finished=True)

    Rounds({Pass.UNFINISHED: SOON, Pass.OBJECTS: NEVER_AGAIN}, run=run, stop=stop).run()
    assert runs[Pass.OBJECTS] == 1
    assert runs[Pass.UNFINISHED] >= 3


def test_a_long_pass_keeps_up_no_other() -> None:
    stop, quick_was_here = threading.Event(), threading.Event()

    def run(name: Pass) -> None:
        if name is Pass.UNFINISHED:
            quick_was_here.set()
            return
        assert quick_was_here.wait(DEADLINE)
        stop.set()

    Rounds({Pass.OBJECTS: SOON, Pass.UNFINISHED: SOON}, run=run, stop=stop).run()
    assert stop.is_set()


def test_an_outage_is_told_by_readiness_and_over_with_the_next_pass() -> None:
    stop, told = threading.Event(), list[str]()

    def run(name: Pass) -> Report:
        if not told:
            told.append("away")
            raise AutoReconnect("no primary")
        with pytest.raises(RuntimeError, match="unfinished: AutoReconnect"):
            rounds.ready()
        stop.set()
        return Report(name, finished=True)

    rounds = Rounds({Pass.UNFINISHED: SOON}, run=run, stop=stop)
    assert rounds.ready() == {}
    rounds.run()
    assert rounds.ready() == {}
    shown = generate_latest(rounds.registry).decode()
    assert 'darkroom_reconciler_last_pass_timestamp_seconds{pass="unfinished"} 1.' in shown


def test_a_defect_ends_all_passes() -> None:
    stop = threading.Event()

    def run(name: Pass) -> None:
        if name is Pass.OBJECTS:
            raise AssertionError("a defect")

    with pytest.raises(AssertionError, match="a defect"):
        Rounds({Pass.UNFINISHED: NEVER_AGAIN, Pass.OBJECTS: SOON}, run=run, stop=stop).run()
    assert stop.is_set()
