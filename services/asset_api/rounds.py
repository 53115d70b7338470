"""Many that ask at once are asked for together: whoever comes while enough rounds run is in the next one.

A lone call begins its round at once and waits for nobody. Under load MongoDB is asked once for many instead of once for
each, and that is most of what a request costs. Whoever was served together comes back one after the other: so that the
first of them does not go alone, a round waits a moment for as many as the last one of its group had.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

GroupT = TypeVar("GroupT", bound=Hashable)
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

LARGEST = 64
"""How many are in a round at most: what one call to MongoDB carries is bounded."""
GATHERING_SECONDS = 0.002
"""The longest that a round waits for as many as the last one had."""
LATELY_SECONDS = 0.1
"""For so long after a round of many its group is expected to come together again."""
REMEMBERED = 1000
"""Groups of which it is known how many came together."""


class RoundBrokenOff(Exception):
    """The round that was to serve a call ended before it had done so."""


class Rounds(Generic[GroupT, ItemT, ResultT]):
    """Rounds of each group, ``at_once`` of them at a time; groups do not wait for each other.

    ``serve`` gets a group and the items of one round in the order in which they came, and gives for each its result, or
    the exception that is raised to the one who asked. What it raises itself is raised to all of the round, and if it
    ``is_outage`` to all who wait behind it: they would wait as long for the same. Whoever goes away takes nobody's
    result along.
    """

    def __init__(
        self,
        serve: Callable[[GroupT, Sequence[ItemT]], Awaitable[Sequence[ResultT | BaseException]]],
        *,
        largest: int = LARGEST,
        at_once: int = 1,
        is_outage: Callable[[Exception], bool] = lambda _: False,
    ) -> None:
        self._serve = serve
        self._is_outage = is_outage
        self._largest = largest
        self._at_once = at_once
        self._groups: dict[GroupT, _Group[ItemT, ResultT]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lately: dict[GroupT, tuple[int, float]] = {}

    async def ask(self, group: GroupT, item: ItemT, *, seconds: float | None = None) -> ResultT:
        """The result of this item, from the next round of its group. TimeoutError: there is none after ``seconds``."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[ResultT] = loop.create_future()
        if (its := self._groups.get(group)) is None:
            its = self._groups[group] = _Group()
        its.waiting.append((item, result))
        if its.gathering is not None:
            its.gathering.come(len(its.waiting))
        elif its.running < self._at_once:
            its.running += 1
            # In a context of its own: a round is of many, and what is logged or traced there is not its first caller's.
            task = asyncio.create_task(self._run(group, its), context=contextvars.Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if seconds is None:
            return await result
        # A timer, since asyncio.timeout costs more than all else of this.
        late = loop.call_later(seconds, _give_up, result)
        try:
            return await result
        finally:
            late.cancel()

    async def _run(self, group: GroupT, its: "_Group[ItemT, ResultT]") -> None:
        try:
            while its.waiting and its.gathering is None:
                await its.gather(self._expected(group))
                if batch := its.next(self._largest):
                    await self._round(group, its, batch)
                    self._remember(group, len(batch))
        finally:
            # From here to the end nothing else runs, so whoever comes next begins anew and waits for no round that is
            # over.
            its.running -= 1
            if not its.running:
                del self._groups[group]
                _tell_all(its.waiting, RoundBrokenOff("the rounds ended"))  # there are some only after a break

    def _expected(self, group: GroupT) -> int:
        many, until = self._lately.get(group, (1, 0.0))
        return many if asyncio.get_running_loop().time() < until else 1

    def _remember(self, group: GroupT, many: int) -> None:
        self._lately.pop(group, None)
        if many > 1:
            self._lately[group] = many, asyncio.get_running_loop().time() + LATELY_SECONDS
            if len(self._lately) > REMEMBERED:
                del self._lately[next(iter(self._lately))]

    async def _round(
        self,
        group: GroupT,
        its: "_Group[ItemT, ResultT]",
        batch: Sequence[tuple[ItemT, asyncio.Future[ResultT]]],
    ) -> None:
        results: Sequence[ResultT | BaseException]
        try:
            results = await self._serve(group, [item for item, _ in batch])
            if len(results) != len(batch):
                raise ValueError(f"{len(results)} results for {len(batch)} items")  # noqa: TRY301 -- for all of them
        except Exception as error:  # noqa: BLE001 -- it is raised to everybody who waits, and none is left waiting
            _tell_all(batch, error)
            if self._is_outage(error):
                _tell_all(its.waiting, error)
            return
        except BaseException:
            # Not passed on as it is: a cancellation would look like one of each caller.
            _tell_all(batch, RoundBrokenOff("the round was broken off"))
            raise
        for (_, waiter), result in zip(batch, results, strict=True):
            if waiter.done():
                continue
            if isinstance(result, BaseException):
                waiter.set_exception(result)
            else:
                waiter.set_result(result)


def _give_up(waiter: asyncio.Future[ResultT]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())


def _tell_all(batch: Sequence[tuple[ItemT, asyncio.Future[ResultT]]], error: Exception) -> None:
    for _, waiter in batch:
        if not waiter.done():
            waiter.set_exception(error)


class _Gathering:
    """The wait for so many."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._all = asyncio.Event()

    def come(self, waiting: int) -> None:
        if waiting >= self._wanted:
            self._all.set()

    async def wait(self) -> None:
        # A timer here too, see ``ask``.
        late = asyncio.get_running_loop().call_later(GATHERING_SECONDS, self._all.set)
        try:
            await self._all.wait()
        finally:
            late.cancel()


@dataclass
class _Group(Generic[ItemT, ResultT]):
    waiting: list[tuple[ItemT, asyncio.Future[ResultT]]] = field(default_factory=list)
    running: int = 0
    gathering: _Gathering | None = None
    """Whoever gathers takes all that wait, so meanwhile nobody else begins a round."""

    async def gather(self, wanted: int) -> None:
        """Wait until so many do, but only for a moment."""
        if len(self.waiting) < wanted:
            self.gathering = _Gathering(wanted)
            try:
                await self.gathering.wait()
            finally:
                self.gathering = None

    def next(self, largest: int) -> list[tuple[ItemT, asyncio.Future[ResultT]]]:
        """Take the next round out of those that wait. Whoever has gone away, or waited for too long, is in none: after
        an outage they are most, and those who still wait are behind them."""
        batch: list[tuple[ItemT, asyncio.Future[ResultT]]] = []
        passed = 0
        while passed < len(self.waiting) and len(batch) < largest:
            one = self.waiting[passed]
            passed += 1
            if not one[1].done():
                batch.append(one)
        del self.waiting[:passed]
        return batch
