"""One who listens: a bounded queue between the one change stream and one connection."""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import structlog

from asset_api.event_view import event_json
from asset_api.position import Position

log = structlog.get_logger()


class Ending(StrEnum):
    """Why a stream ends. The client connects again, with its Last-Event-ID, and misses nothing."""

    SLOW = "slow"
    SHUTDOWN = "shutdown"
    UNAVAILABLE = "unavailable"
    TOKEN_EXPIRED = "token_expired"  # noqa: S105 -- a reason, no secret


@dataclass(frozen=True, slots=True)
class Happened:
    """One committed event, shared by all who hear it. Thousands are remembered, so of the row nothing else is kept."""

    position: Position
    owner_id: str
    asset_id: str
    sequence: int
    json: bytes
    """What clients get."""

    @classmethod
    def of(cls, row: Mapping[str, Any], position: Position) -> Self:
        """The event that this row of the event store tells of."""
        return cls(position, row["owner_id"], row["asset_id"], row["sequence"], event_json(row))


@dataclass(frozen=True)
class Lost:
    """Some events between the listener's position and this one cannot be given any more."""

    position: Position


Heard = Happened | Lost


class Listener:
    """Events of one owner, or of one asset of the owner, in commit order; none twice.

    At most ``limit`` events wait for the connection: a slower one is ended instead of being waited for.
    """

    def __init__(
        self, owner_id: str, *, asset_id: str | None = None, after: Position | None = None, limit: int
    ) -> None:
        self.owner_id = owner_id
        self.asset_id = asset_id
        self.after = after
        self.live = False
        self.ending: Ending | None = None
        self._limit = limit
        self._waiting: deque[Heard] = deque()
        self._news = asyncio.Event()

    @property
    def waits(self) -> bool:
        """Whether something is still to be sent."""
        return bool(self._waiting)

    def hear(self, happened: Happened) -> None:
        """Queue an event, unless it is not meant for this listener or known already."""
        if self.ending is not None or not self._wants(happened):
            return
        if len(self._waiting) >= self._limit:
            log.info("listener_too_slow", asset_id=self.asset_id, waiting=len(self._waiting))
            self.end(Ending.SLOW)
            return
        self._queue(happened)

    def catch_up(self, remembered: Iterable[Happened]) -> None:
        """Queue what the process still has in memory anyway, and so costs no more of it."""
        found = [happened for happened in remembered if self._wants(happened)]
        self._limit += len(found)
        for happened in found:
            self._queue(happened)

    def lose(self, position: Position) -> None:
        """Say that something is lost, and go on from ``position``."""
        self.after = position
        self._waiting.append(Lost(position))
        self._news.set()

    def end(self, ending: Ending) -> None:
        """End it once what waits is sent; the first reason counts."""
        self.ending = self.ending or ending
        self._news.set()

    async def heard(self, *, seconds: float) -> list[Heard]:
        """What waits; nothing after ``seconds``, or when it has ended and all is sent."""
        if not self._waiting and self.ending is None:
            self._news.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            except TimeoutError:
                return []
        heard = list(self._waiting)
        self._waiting.clear()
        return heard

    def _wants(self, happened: Happened) -> bool:
        if happened.owner_id != self.owner_id:
            return False
        if self.asset_id is not None and happened.asset_id != self.asset_id:
            return False
        return self.after is None or happened.position > self.after

    def _queue(self, happened: Happened) -> None:
        self._waiting.append(happened)
        self._news.set()
