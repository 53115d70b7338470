"""Jobs that go on: each at its own pace, through outages, until they are told to stop."""

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from darkroom.runtime.periodic import Periodic, PeriodicJobs

SOON, NEVER_AGAIN = 0.001, 3600.0
DEADLINE = 20.0


class ServerAway(Exception):
    """An outage."""


def a_job(run: Callable[[], None], *, name: str = "quick", every: float = SOON, **more: Callable[[], None]) -> Periodic:
    return Periodic(name=name, every=every, run=run, outages=(ServerAway,), **more)


def test_each_job_has_its_own_pace() -> None:
    stop, runs = threading.Event(), Counter[str]()

    def run(name: str) -> None:
        runs[name] += 1
        if runs["quick"] >= 3 and runs["rare"]:
            stop.set()

    jobs = [a_job(partial(run, "quick")), a_job(partial(run, "rare"), name="rare", every=NEVER_AGAIN)]
    PeriodicJobs(jobs, stop=stop).run()
    assert runs["rare"] == 1
    assert runs["quick"] >= 3


def test_a_long_run_keeps_up_no_other_job() -> None:
    stop, quick_was_here = threading.Event(), threading.Event()

    def long() -> None:
        assert quick_was_here.wait(DEADLINE)
        stop.set()

    PeriodicJobs([a_job(long, name="long"), a_job(quick_was_here.set)], stop=stop).run()
    assert stop.is_set()


def test_an_outage_is_told_by_readiness_and_is_over_with_the_next_run() -> None:
    stop, told = threading.Event(), list[str]()

    def run() -> None:
        if not told:
            assert jobs.ready() == {}
            raise ServerAway("no primary")
        with pytest.raises(RuntimeError, match="the last run failed: quick: ServerAway"):
            jobs.ready()
        stop.set()

    jobs = PeriodicJobs([a_job(run, on_outage=lambda: told.append("away"))], stop=stop)
    jobs.run()
    assert told == ["away"]
    assert jobs.ready() == {}


def test_a_defect_ends_all_jobs_and_is_raised() -> None:
    stop = threading.Event()

    def defect() -> None:
        raise AssertionError("a defect")

    waits = a_job(lambda: None, name="waits", every=NEVER_AGAIN)
    with pytest.raises(AssertionError, match="a defect"):
        PeriodicJobs([waits, a_job(defect)], stop=stop).run()
    assert stop.is_set()


def test_told_to_stop_before_the_start_it_runs_nothing() -> None:
    stop = threading.Event()
    stop.set()

    def run() -> None:
        raise AssertionError("it was told to stop")

    PeriodicJobs([a_job(run)], stop=stop).run()
