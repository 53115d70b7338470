"""Whoever comes while a round runs is in the next one of its group."""

import asyncio
import contextvars
from collections.abc import Sequence

import pytest

from asset_api.rounds import RoundBrokenOff, Rounds


class Served:
    """Doubles what it is asked for, when it may; remembers the rounds."""

    def __init__(self) -> None:
        self.rounds: list[tuple[str, list[int]]] = []
        self.go_on = asyncio.Event()

    async def __call__(self, group: str, items: Sequence[int]) -> list[int | BaseException]:
        self.rounds.append((group, list(items)))
        await self.go_on.wait()
        return [ValueError(f"{item} is odd") if item % 2 else 2 * item for item in items]


async def begun(*asked: asyncio.Task[int]) -> None:
    """Every task has run until it waits, and so has the round that it began."""
    for _ in range(2 + len(asked)):
        await asyncio.sleep(0)


def test_the_first_goes_at_once_and_the_next_together_in_the_order_they_came() -> None:
    async def play() -> None:
        served = Served()
        rounds = Rounds(served)
        tasks = [asyncio.create_task(rounds.ask("a", 0))]
        await begun(*tasks)
        tasks += [asyncio.create_task(rounds.ask("a", item)) for item in (2, 4, 6)]
        await begun(*tasks)
        assert served.rounds == [("a", [0])]
        served.go_on.set()
        assert await asyncio.gather(*tasks) == [0, 4, 8, 12]
        assert served.rounds == [("a", [0]), ("a", [2, 4, 6])]
        assert await rounds.ask("a", 8) == 16
        assert not rounds._groups

    asyncio.run(play())


@pytest.mark.parametrize("outage", [True, False])
def test_whoever_waits_behind_an_outage_is_told_of_it_and_behind_another_failure_is_served(outage: bool) -> None:
    async def play() -> None:
        failed = asyncio.Event()
        served: list[int] = []

        async def serve(_: str, items: Sequence[int]) -> list[int | BaseException]:
            if not failed.is_set():
                await failed.wait()
                raise TimeoutError("no answer")
            served.extend(items)
            return list(items)

        rounds: Rounds[str, int, int] = Rounds(serve, is_outage=lambda _: outage)
        tasks = [asyncio.create_task(rounds.ask("a", 0))]
        await begun(*tasks)
        tasks += [asyncio.create_task(rounds.ask("a", item)) for item in (1, 2)]
        await begun(*tasks)
        failed.set()
        first, *others = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(first, TimeoutError)
        assert [type(one) for one in others] == ([TimeoutError] * 2 if outage else [int] * 2)
        # It is over when somebody asks again.
        assert await rounds.ask("a", 9) == 9
        assert served == ([9] if outage else [1, 2, 9])

    asyncio.run(play())


def test_as_many_rounds_run_at_once_as_may_and_none_is_forgotten_behind_them() -> None:
    async def play() -> None:
        served = Served()
        rounds = Rounds(served, at_once=2)
        tasks: list[asyncio.Task[int]] = []
        for item in (0, 2, 4, 6):
            tasks.append(asyncio.create_task(rounds.ask("a", item)))
            await begun(*tasks)
        assert served.rounds == [("a", [0]), ("a", [2])]
        served.go_on.set()
        # Asked in the very step in which the others end.
        assert await asyncio.gather(*tasks, rounds.ask("a", 8)) == [0, 4, 8, 12, 16]
        assert sorted(item for _, items in served.rounds for item in items) == [0, 2, 4, 6, 8]
        assert not rounds._groups

    asyncio.run(play())


def test_a_round_is_in_no_callers_context() -> None:
    caller = contextvars.ContextVar("caller", default="nobody")

    async def serve(_group: str, items: Sequence[int]) -> list[str]:
        return [caller.get()] * len(items)

    async def play() -> None:
        caller.set("the first")
        assert await Rounds(serve).ask("a", 0) == "nobody"

    asyncio.run(play())


def test_groups_do_not_wait_for_each_other() -> None:
    async def play() -> None:
        served = Served()
        rounds = Rounds(served)
        tasks = [asyncio.create_task(rounds.ask(group, 2)) for group in ("a", "b")]
        await begun(*tasks)
        assert served.rounds == [("a", [2]), ("b", [2])]
        served.go_on.set()
        assert await asyncio.gather(*tasks) == [4, 4]

    asyncio.run(play())


def test_a_round_is_not_larger_than_it_may_be() -> None:
    async def play() -> None:
        served = Served()
        served.go_on.set()
        rounds = Rounds(served, largest=2)
        assert await asyncio.gather(*(rounds.ask("a", item) for item in (0, 2, 4, 6, 8))) == [0, 4, 8, 12, 16]
        assert [items for _, items in served.rounds] == [[0, 2], [4, 6], [8]]

    asyncio.run(play())


def test_an_item_s_own_failure_is_its_own() -> None:
    async def play() -> None:
        served = Served()
        served.go_on.set()
        rounds = Rounds(served)
        results = await asyncio.gather(*(rounds.ask("a", item) for item in (2, 3, 4)), return_exceptions=True)
        assert results[::2] == [4, 8]
        assert str(results[1]) == "3 is odd"

    asyncio.run(play())


@pytest.mark.parametrize("results", [OSError("no server"), []])
def test_a_round_that_fails_fails_for_all_of_it_and_the_next_goes_on(results: list[int] | OSError) -> None:
    async def serve(_group: str, items: Sequence[int]) -> list[int]:
        if 0 not in items:
            return list(items)
        if isinstance(results, OSError):
            raise results
        return results

    async def play() -> None:
        rounds = Rounds(serve)
        failed = await asyncio.gather(rounds.ask("a", 0), rounds.ask("a", 1), return_exceptions=True)
        assert all(isinstance(one, OSError if isinstance(results, OSError) else ValueError) for one in failed)
        assert await rounds.ask("a", 2) == 2

    asyncio.run(play())


def test_who_goes_away_takes_nobodys_result_along() -> None:
    async def play() -> None:
        served = Served()
        rounds = Rounds(served)
        first, second = (asyncio.create_task(rounds.ask("a", item)) for item in (2, 4))
        await begun(first, second)
        first.cancel()
        served.go_on.set()
        assert await second == 8
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(play())


def test_nobody_waits_behind_those_who_have_gone_away() -> None:
    async def play() -> None:
        served = Served()
        rounds = Rounds(served, largest=2)
        first = asyncio.create_task(rounds.ask("a", 0))
        await begun(first)
        gone = [asyncio.create_task(rounds.ask("a", item)) for item in range(10, 20)]
        others = [asyncio.create_task(rounds.ask("a", item)) for item in (2, 4, 6)]
        await begun(*gone, *others)
        for one in gone:
            one.cancel()
        await begun(*gone)
        served.go_on.set()
        assert await asyncio.gather(first, *others) == [0, 4, 8, 12]
        assert [items for _, items in served.rounds] == [[0], [2, 4], [6]]
        assert not rounds._groups

    asyncio.run(play())


def test_after_a_round_that_was_broken_off_nobody_is_left_waiting_and_the_next_goes_on() -> None:
    async def serve(_group: str, items: Sequence[int]) -> list[int]:
        await asyncio.sleep(0)
        if 0 in items:
            raise asyncio.CancelledError
        return list(items)

    async def play() -> None:
        rounds = Rounds(serve, largest=1)
        asked = (asyncio.wait_for(rounds.ask("a", item), timeout=10) for item in (0, 1))
        assert all(isinstance(one, RoundBrokenOff) for one in await asyncio.gather(*asked, return_exceptions=True))
        assert not rounds._groups
        assert await asyncio.wait_for(rounds.ask("a", 2), timeout=10) == 2

    asyncio.run(play())


async def after_a_round_of_three(rounds: Rounds[str, int, int], served: Served, group: str = "a") -> None:
    """Three come while one is served, and are the next round; then it is over."""
    served.go_on.clear()
    tasks = [asyncio.create_task(rounds.ask(group, 0))]
    await begun(*tasks)
    tasks += [asyncio.create_task(rounds.ask(group, item)) for item in (2, 4, 6)]
    await begun(*tasks)
    served.go_on.set()
    await asyncio.gather(*tasks)
    served.rounds.clear()


def test_after_a_round_of_many_the_first_waits_for_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asset_api.rounds.GATHERING_SECONDS", 60)
    monkeypatch.setattr("asset_api.rounds.LATELY_SECONDS", 60)

    async def play() -> None:
        served = Served()
        rounds = Rounds(served, at_once=2)
        await after_a_round_of_three(rounds, served)
        tasks = [asyncio.create_task(rounds.ask("a", item)) for item in (2, 4)]
        await begun(*tasks)
        assert served.rounds == []
        others = asyncio.create_task(rounds.ask("b", 8))
        assert await others == 16, "who is of another group waits for nobody"
        tasks.append(asyncio.create_task(rounds.ask("a", 6)))
        assert await asyncio.gather(*tasks) == [4, 8, 12]
        assert served.rounds == [("b", [8]), ("a", [2, 4, 6])]
        assert not rounds._groups

    asyncio.run(play())


def test_after_a_moment_it_goes_alone_and_the_next_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asset_api.rounds.LATELY_SECONDS", 60)

    async def play() -> None:
        served = Served()
        rounds = Rounds(served)
        await after_a_round_of_three(rounds, served)
        async with asyncio.timeout(10):
            assert await rounds.ask("a", 8) == 16
        monkeypatch.setattr("asset_api.rounds.GATHERING_SECONDS", 60)
        async with asyncio.timeout(10):
            assert await rounds.ask("a", 2) == 4
        assert served.rounds == [("a", [8]), ("a", [2])]

    asyncio.run(play())


def test_a_round_of_many_is_forgotten_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asset_api.rounds.GATHERING_SECONDS", 60)
    monkeypatch.setattr("asset_api.rounds.LATELY_SECONDS", 0)

    async def play() -> None:
        served = Served()
        rounds = Rounds(served)
        await after_a_round_of_three(rounds, served)
        async with asyncio.timeout(10):
            assert await rounds.ask("a", 8) == 16

    asyncio.run(play())


def test_what_is_remembered_of_groups_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asset_api.rounds.REMEMBERED", 2)

    async def play() -> None:
        served = Served()
        rounds = Rounds(served)
        for group in ("a", "b", "c"):
            await after_a_round_of_three(rounds, served, group)
        assert set(rounds._lately) == {"b", "c"}

    asyncio.run(play())


def test_who_goes_away_while_others_are_waited_for_leaves_a_group_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asset_api.rounds.LATELY_SECONDS", 60)

    async def play() -> None:
        served = Served()
        rounds = Rounds(served)
        await after_a_round_of_three(rounds, served)
        gone = asyncio.create_task(rounds.ask("a", 2))
        await begun(gone)
        gone.cancel()
        async with asyncio.timeout(10):
            assert await rounds.ask("a", 8) == 16
        assert served.rounds == [("a", [8])]
        assert not rounds._groups

    asyncio.run(play())


def test_who_has_no_answer_in_time_is_told_so_and_is_in_no_round() -> None:
    async def play() -> None:
        served = Served()
        rounds = Rounds(served)
        first = asyncio.create_task(rounds.ask("a", 0, seconds=60))
        await begun(first)
        with pytest.raises(TimeoutError):
            await rounds.ask("a", 2, seconds=0.001)
        served.go_on.set()
        assert (await first, await rounds.ask("a", 4, seconds=60)) == (0, 8)
        assert served.rounds == [("a", [0]), ("a", [4])]

    asyncio.run(play())
