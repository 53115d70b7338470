"""Wait for a condition instead of for a time."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

_POLL_SECONDS = 0.02


def eventually(predicate: Callable[[], Value], *, deadline: float = 10.0, what: str = "the condition") -> Value:
    """Call `predicate` until it returns something truthy, and return that.

    An exception counts as "not yet". After `deadline` seconds: AssertionError with `what` and the last value or
    exception.
    """
    ends = time.monotonic() + deadline
    while True:
        failure: Exception | None = None
        try:
            value = predicate()
        except Exception as error:  # noqa: BLE001 - any error means "not yet"; the last one is told below
            failure, last = error, repr(error)
        else:
            if value:
                return value
            last = repr(value)
        if time.monotonic() > ends:
            raise AssertionError(f"{what}: not within {deadline:g} s; last seen: {last}") from failure
        time.sleep(_POLL_SECONDS)
