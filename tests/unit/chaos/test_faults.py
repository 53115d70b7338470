"""The schedule depends on the seed alone."""

from itertools import pairwise

import pytest

from darkroom.chaos.faults import DURATIONS, SERVERS, SERVICES, Fault, plan


def test_a_seed_is_a_schedule() -> None:
    assert plan(7, seconds=300) == plan(7, seconds=300)
    assert plan(7, seconds=300) != plan(8, seconds=300)


@pytest.mark.parametrize("seed", range(20))
def test_five_minutes_see_every_fault(seed: int) -> None:
    assert {one.fault for lane in plan(seed, seconds=300) for one in lane} == set(Fault)


def test_each_fault_is_in_one_lane() -> None:
    assert sorted(SERVERS + SERVICES) == sorted(Fault)
    assert set(DURATIONS) == set(Fault)


@pytest.mark.parametrize("seed", range(20))
def test_faults_of_a_lane_follow_each_other_and_end_in_time(seed: int) -> None:
    for lane in plan(seed, seconds=120):
        for one, following in pairwise(lane):
            assert one.at + one.seconds < following.at
        assert all(one.at + one.seconds <= 120 for one in lane)
        assert all(0 <= one.choice < 1 for one in lane)
        assert all(DURATIONS[one.fault][0] <= one.seconds <= DURATIONS[one.fault][1] for one in lane)


def test_only_those_asked_for() -> None:
    servers, services = plan(1, seconds=60, only=[Fault.RELAY_KILL])
    assert servers == ()
    assert {one.fault for one in services} == {Fault.RELAY_KILL}
