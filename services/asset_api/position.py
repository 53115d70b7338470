"""Where a listener is in an owner's events: MongoDB's commit order, since ids and clocks of hosts order nothing."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

Time = tuple[int, int]
"""A cluster time of MongoDB: seconds since 1970, and a counter within the second."""

_FORM = re.compile(r"(\d{1,10})\.(\d{1,10})\.(\d{1,6})", re.ASCII)
_MOST = 2**32 - 1
_TOKEN_OF_A_TIME = 0x82  # the type byte with which every resume token begins: a timestamp comes first
_TIME_HEX = 18


@dataclass(frozen=True, order=True)
class Position:
    """Everything of one owner before ``time`` is known, and the first ``seen`` events of exactly that time.

    A transaction has one time for all that it wrote; within it the server's order never changes, so counting is enough.
    """

    time: Time
    seen: int

    def __str__(self) -> str:
        """As an event id: it tells nothing of anybody."""
        return f"{self.time[0]}.{self.time[1]}.{self.seen}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read an event id; None when it is not one of ours."""
        found = _FORM.fullmatch(text)
        if found is None:
            return None
        seconds, increment, seen = (int(part) for part in found.groups())
        return cls((seconds, increment), seen) if seconds <= _MOST and increment <= _MOST else None


@dataclass
class Progress:
    """How far a change stream has been read, for each owner."""

    time: Time
    _seen: Counter[str] = field(default_factory=Counter)

    def of(self, owner_id: str) -> Position:
        """Where a listener of this owner is that has got all that was read."""
        return Position(self.time, self._seen.get(owner_id, 0))

    def event(self, time: Time, owner_id: str) -> Position:
        """Count the stream's next event and give its position."""
        self.reached(time)
        self._seen[owner_id] += 1
        return self.of(owner_id)

    def reached(self, time: Time) -> None:
        """Everything before ``time`` has been read."""
        if time > self.time:
            self.time = time
            self._seen.clear()


def next_after(time: Time) -> Time:
    """The smallest time after this one."""
    return (time[0], time[1] + 1) if time[1] < _MOST else (time[0] + 1, 0)


def token_time(token: Any) -> Time:
    """The cluster time that a resume token begins with: everything before it has been delivered.

    Raises:
        ValueError: the token is of a form that no MongoDB of today makes.

    """
    head = bytes.fromhex(str(token["_data"])[:_TIME_HEX])
    if len(head) != _TIME_HEX // 2 or head[0] != _TOKEN_OF_A_TIME:
        raise ValueError("a resume token of an unknown form: it does not begin with a timestamp")
    return int.from_bytes(head[1:5], "big"), int.from_bytes(head[5:9], "big")
