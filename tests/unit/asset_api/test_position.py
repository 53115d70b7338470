"""Positions, and the wire format of Server-Sent Events."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asset_api import sse
from asset_api.listener import Ending, Happened, Listener, Lost
from asset_api.position import Position, Progress, next_after, token_time

TIMES = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))


@given(st.builds(Position, TIMES, st.integers(0, 999_999)))
def test_a_position_reads_back_as_it_was_written(position: Position) -> None:
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize("text", ["", "1.2", "1.2.3.4", "1.2.-3", " 1.2.3", "1.2.3\n", "4294967296.1.1", "1.2.٣"])
def test_what_is_no_position_is_none(text: str) -> None:
    assert Position.parse(text) is None


def test_progress_counts_each_owners_events_of_one_time() -> None:
    progress = Progress((10, 1))
    assert progress.event((10, 2), "a") == Position((10, 2), 1)
    assert progress.event((10, 2), "b") == Position((10, 2), 1)
    assert progress.event((10, 2), "a") == Position((10, 2), 2)
    progress.reached((10, 1))  # a batch without news tells a time that was reached long ago
    assert progress.of("a") == Position((10, 2), 2)
    progress.reached((10, 3))
    assert progress.of("a") == progress.of("c") == Position((10, 3), 0)


@given(TIMES)
def test_the_next_time_is_later_and_none_is_between(time: tuple[int, int]) -> None:
    assert next_after(time) > time
    assert next_after((1, 2**32 - 1)) == (2, 0)


def test_a_token_tells_its_time_or_is_refused() -> None:
    assert token_time({"_data": "826565AB0100000007" + "2B022C0100296E04"}) == (0x6565AB01, 7)
    for unknown in ("", "82", "836565AB0100000007"):
        with pytest.raises(ValueError, match="token"):
            token_time({"_data": unknown})


def test_messages_are_what_the_standard_says() -> None:
    assert sse.message({"a": 1}, event_id="7") == b'id: 7\ndata: {"a":1}\n\n'
    assert sse.message(b"{}", event="reset", event_id="7") == b"id: 7\nevent: reset\ndata: {}\n\n"
    assert sse.mark("7") == b"id: 7\n\n"
    assert sse.retry(1000) == b"retry: 1000\n\n"


def happened(seconds: int, *, owner_id: str = "a", asset_id: str = "x", sequence: int = 1) -> Happened:
    return Happened(Position((seconds, 1), 1), owner_id, asset_id, sequence, b"{}")


def test_a_listener_takes_what_is_its_own_and_new() -> None:
    listener = Listener("a", limit=10, asset_id="x", after=Position((5, 1), 1))
    for one in (
        happened(5),
        happened(6, owner_id="b"),
        happened(7, asset_id="y"),
        happened(8),
    ):
        listener.hear(one)
    assert asyncio.run(listener.heard(seconds=0)) == [happened(8)]


def test_a_listener_that_is_slow_ends_with_what_it_has() -> None:
    listener = Listener("a", limit=2)
    listener.catch_up([happened(1), happened(2), happened(3)])  # in memory anyway: no reason to end it
    for seconds in range(4, 9):
        listener.hear(happened(seconds))
    listener.end(Ending.SHUTDOWN)
    assert listener.ending is Ending.SLOW
    assert [one.position.time[0] for one in asyncio.run(listener.heard(seconds=0))] == [1, 2, 3, 4, 5]


def test_what_was_lost_is_told_in_its_place() -> None:
    listener = Listener("a", limit=10)
    listener.hear(happened(1))
    listener.lose(Position((9, 1), 0))
    listener.hear(happened(3))
    listener.hear(happened(10))
    assert asyncio.run(listener.heard(seconds=0)) == [happened(1), Lost(Position((9, 1), 0)), happened(10)]
