"""Order, fairness, the watermark and the counters of the schedule, by example and against a plain model."""

from collections.abc import Hashable

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from darkroom.inbox.schedule import Item, Partition, Schedule

P0, P1 = ("uploads", 0), ("uploads", 1)


def item(offset: int, key: Hashable, partition: Partition = P0) -> Item[str]:
    return Item(partition, offset, key, f"{partition}/{offset}")


def filled(*keys: str) -> tuple[Schedule[str], list[Item[str]]]:
    """Partition 0 with one record a key, from offset 0 on."""
    schedule: Schedule[str] = Schedule()
    schedule.assign([P0, P1])
    items = [item(offset, key) for offset, key in enumerate(keys)]
    for one in items:
        assert schedule.add(one)
    return schedule, items


def take(schedule: Schedule[str], now: float = 0.0) -> Item[str]:
    taken = schedule.take(now)
    assert taken is not None
    return taken


def test_one_key_runs_one_at_a_time_and_in_order() -> None:
    schedule, (first, second) = filled("a", "a")
    assert take(schedule) is first
    assert schedule.take(0.0) is None
    schedule.finish(first)
    assert take(schedule) is second


def test_other_keys_of_the_partition_run_meanwhile() -> None:
    schedule, (first, _, third) = filled("a", "a", "b")
    assert [take(schedule), take(schedule)] == [first, third]
    assert schedule.running == 2


def test_a_waiting_key_delays_no_other_and_holds_the_watermark() -> None:
    schedule, (first, second, third) = filled("a", "b", "a")
    schedule.defer(take(schedule), until=10.0)
    assert take(schedule) is second
    schedule.finish(second)
    assert schedule.take(9.9) is None
    assert schedule.due() == 10.0
    assert schedule.commits() == {}
    assert take(schedule, 10.0) is first
    schedule.finish(first)
    assert schedule.commits() == {P0: 2}
    schedule.finish(take(schedule, 10.0))
    assert schedule.commits() == {P0: 3}
    assert third.finished


def test_an_offset_is_offered_until_it_is_committed_and_again_if_that_failed() -> None:
    schedule, _ = filled("a")
    schedule.finish(take(schedule))
    assert schedule.commits() == {P0: 1}
    schedule.committed({P0: 1})
    assert schedule.commits() == {}
    schedule.uncommitted([P0])
    assert schedule.commits() == {P0: 1}


def test_nothing_is_offered_before_the_first_record() -> None:
    schedule, _ = filled()
    assert schedule.commits() == {}
    schedule.uncommitted([P0, P1])
    assert schedule.commits() == {}


def test_an_offset_that_came_before_is_refused() -> None:
    schedule, _ = filled("a", "b")
    assert not schedule.add(item(1, "b"))
    assert not schedule.add(item(0, "a"))
    assert schedule.add(item(5, "c"))
    assert schedule.unfinished == 3


def test_a_record_of_an_unassigned_partition_is_refused() -> None:
    schedule, _ = filled()
    assert not schedule.add(item(0, "a", ("uploads", 9)))
    assert schedule.unfinished == 0


def test_span_is_what_lies_between_the_watermark_and_the_newest_record() -> None:
    schedule, items = filled("a", "b", "c")
    assert schedule.span(P0) == 3
    assert schedule.span(P1) == 0
    assert schedule.span(("uploads", 9)) == 0
    running = [take(schedule) for _ in items]
    schedule.finish(running[1])
    assert schedule.span(P0) == 3
    schedule.finish(running[0])
    assert schedule.span(P0) == 1


def test_retired_records_are_not_started_again_and_not_committed_past() -> None:
    schedule, (first, _second) = filled("a", "b")
    assert take(schedule) is first
    assert schedule.retire([P0]) == [first]
    assert schedule.take(0.0) is None
    assert not schedule.add(item(2, "c"))
    # What has to wait is over for this process: after its partition was retired nothing is handed over again.
    schedule.defer(first, until=0.0)
    assert not schedule.is_running(first)
    assert schedule.take(1e9) is None
    assert schedule.commits() == {}
    assert schedule.running == 0


def test_what_ends_while_retired_still_moves_the_watermark() -> None:
    schedule, (first, _second) = filled("a", "b")
    take(schedule)
    schedule.retire([P0])
    schedule.finish(first)
    assert schedule.commits() == {P0: 1}


def test_the_same_record_assigned_anew_waits_for_its_earlier_run() -> None:
    schedule, (first,) = filled("a")
    take(schedule)
    assert schedule.drop([P0]) == [first]
    schedule.assign([P0])
    again = item(0, "a")
    assert schedule.add(again)
    assert schedule.take(0.0) is None
    schedule.finish(first)
    assert schedule.commits() == {}
    assert take(schedule) is again
    assert (schedule.unfinished, schedule.running) == (1, 1)


def test_dropping_a_partition_leaves_the_same_key_of_another_alone() -> None:
    schedule, _ = filled("a")
    other = item(7, "a", P1)
    assert schedule.add(other)
    schedule.drop([P0])
    assert take(schedule) is other
    schedule.finish(other)
    assert schedule.commits() == {P1: 8}
    assert schedule.unfinished == 0


def test_what_waited_behind_a_dropped_record_does_not_wait_for_its_sake() -> None:
    schedule, (first,) = filled("a")
    schedule.defer(take(schedule), 60.0)
    behind = item(7, "a", P1)
    assert schedule.add(behind)
    assert schedule.take(1.0) is None
    schedule.drop([P0])
    assert take(schedule, 1.0) is behind
    schedule.finish(behind)
    assert schedule.take(60.0) is None
    assert first.dropped


def test_assigning_what_is_assigned_forgets_its_records() -> None:
    schedule, (first,) = filled("a")
    take(schedule)
    schedule.assign([P0])
    assert first.dropped
    schedule.finish(first)
    assert (schedule.unfinished, schedule.running) == (0, 0)


class Model(RuleBasedStateMachine):
    """The schedule beside lists and sets that say the same without any cleverness."""

    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.schedule: Schedule[str] = Schedule()
        self.now = 0.0
        self.next_offset = {P0: 0, P1: 0}
        self.held: dict[Partition, list[Item[str]]] = {}
        self.retired: set[Partition] = set()
        self.taken: list[Item[str]] = []
        self.waits: dict[Item[str], float] = {}

    def alive(self, one: Item[str]) -> bool:
        return any(one is other for other in self.held.get(one.partition, []))

    def unfinished(self) -> list[Item[str]]:
        return [one for items in self.held.values() for one in items if not one.finished]

    @rule(partition=st.sampled_from([P0, P1]))
    def assign(self, partition: Partition) -> None:
        self.schedule.assign([partition])
        self.held[partition] = []
        self.retired.discard(partition)
        # A new owner reads from the committed offset: some records come again.
        self.next_offset[partition] = max(0, self.next_offset[partition] - 2)

    @rule(partition=st.sampled_from([P0, P1]), key=st.sampled_from("abc"), gap=st.sampled_from([0, 0, 0, 3]))
    def add(self, partition: Partition, key: str, gap: int) -> None:
        one = item(self.next_offset[partition] + gap, key, partition)
        added = self.schedule.add(one)
        assert added == (partition in self.held and partition not in self.retired)
        if added:
            assert not self.schedule.add(item(one.offset, key, partition))
            self.held[partition].append(one)
            self.next_offset[partition] = one.offset + 1

    @rule(target=running)
    def take(self) -> object:
        one = self.schedule.take(self.now)
        could = [
            other
            for other in self.unfinished()
            if other.partition not in self.retired
            and not any(other.key == busy.key for busy in self.taken)
            and not any(
                earlier.partition == other.partition and earlier.key == other.key and earlier.offset < other.offset
                for earlier in self.unfinished()
                if earlier.partition not in self.retired
            )
            # A key may be in both partitions: a wait of one then holds up the other.
            and not any(
                waiting.key == other.key and self.waits.get(waiting, 0.0) > self.now for waiting in self.unfinished()
            )
        ]
        if one is None:
            assert not could
            return multiple()
        assert self.alive(one)
        assert self.waits.get(one, 0.0) <= self.now
        assert not any(one.key == busy.key for busy in self.taken)
        assert not any(
            earlier.key == one.key and earlier.offset < one.offset and not earlier.finished
            for earlier in self.held[one.partition]
        )
        self.taken.append(one)
        return one

    @rule(one=consumes(running))
    def finish(self, one: Item[str]) -> None:
        self.taken.remove(one)
        self.schedule.finish(one)
        assert one.finished == self.alive(one)

    @rule(one=consumes(running), seconds=st.sampled_from([0.0, 1.0, 5.0]))
    def defer(self, one: Item[str], seconds: float) -> None:
        self.taken.remove(one)
        self.schedule.defer(one, self.now + seconds)
        if self.alive(one) and one.partition not in self.retired:
            self.waits[one] = self.now + seconds

    @rule(seconds=st.sampled_from([0.5, 1.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(partition=st.sampled_from([P0, P1]))
    def retire(self, partition: Partition) -> None:
        gone = self.schedule.retire([partition])
        assert {id(one) for one in gone} == {id(one) for one in self.taken if one.partition == partition}
        if partition in self.held:
            self.retired.add(partition)

    @rule(partition=st.sampled_from([P0, P1]))
    def drop(self, partition: Partition) -> None:
        gone = self.schedule.drop([partition])
        assert {id(one) for one in gone} == {id(one) for one in self.taken if one.partition == partition}
        self.held.pop(partition, None)
        self.retired.discard(partition)

    @rule()
    def commit(self) -> None:
        self.schedule.committed(self.schedule.commits())
        assert self.schedule.commits() == {}

    @invariant()
    def counters_are_right(self) -> None:
        assert self.schedule.unfinished == len(self.unfinished())
        assert self.schedule.running == len(self.taken)
        assert self.schedule.partitions == set(self.held)
        assert all(self.schedule.is_running(one) for one in self.taken)

    @invariant()
    def the_watermark_is_the_lowest_unfinished_offset(self) -> None:
        for partition, offset in self.schedule.commits().items():
            items = self.held[partition]
            open_offsets = [one.offset for one in items if not one.finished]
            assert offset == (min(open_offsets) if open_offsets else items[-1].offset + 1)

    @invariant()
    def spans_are_right(self) -> None:
        for partition, items in self.held.items():
            open_offsets = [one.offset for one in items if not one.finished]
            expected = items[-1].offset + 1 - min(open_offsets) if open_offsets else 0
            assert self.schedule.span(partition) == expected


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
