"""The helper that tests wait with."""

import pytest

from support.eventually import eventually


def test_it_returns_the_first_truthy_value() -> None:
    values = iter([None, 0, "there"])
    assert eventually(lambda: next(values)) == "there"


def test_it_waits_through_exceptions() -> None:
    values = iter([0, 0, 4])
    assert eventually(lambda: 8 // next(values)) == 2


def test_it_fails_with_what_was_awaited_and_last_seen() -> None:
    with pytest.raises(AssertionError, match=r"the row: not within 0 s; last seen: \[\]"):
        eventually(list, deadline=0, what="the row")
    with pytest.raises(AssertionError, match=r"the sum: .*ZeroDivisionError"):
        eventually(lambda: 1 // 0, deadline=0, what="the sum")
