"""Shares of the shards: fair, given back, taken over, and all on the server's clock."""

import threading
import time
from datetime import timedelta

import pytest

from outbox_relay.shards import ShardKeeper, ShardLeases
from support.eventually import eventually
from support.relay_stage import Stage


def _owners(stage: Stage) -> dict[str | None, int]:
    counts: dict[str | None, int] = {}
    for row in stage.db.relay_shards.find():
        counts[row.get("owner")] = counts.get(row.get("owner"), 0) + 1
    return counts


def test_shares_are_fair_and_given_back(stage: Stage) -> None:
    one, two = stage.leases("one"), ShardLeases(stage.db, instance="two", lease_seconds=5.0)
    assert len(one.owned.shards) == 64
    two.refresh()
    assert not two.owned.shards
    # First it stops working on the surplus, only then does it let go.
    one.refresh()
    assert len(one.owned.shards) == 32
    assert _owners(stage) == {"one": 64}
    one.refresh()
    two.refresh()
    assert _owners(stage) == {"one": 32, "two": 32}
    assert one.owned.shards | two.owned.shards == set(range(64))
    three = ShardLeases(stage.db, instance="three", lease_seconds=5.0)
    for _ in range(3):
        for leases in (three, one, two):
            leases.refresh()
    assert sorted(_owners(stage).values()) == [20, 22, 22]
    two.leave()
    three.leave()
    one.refresh()
    assert len(one.owned.shards) == 64
    one.leave()
    assert _owners(stage) == {None: 64}


def test_the_dead_are_replaced_after_their_lease_and_epochs_rise(stage: Stage) -> None:
    dead = stage.leases("dead", lease_seconds=0.6)
    epochs = {row["_id"]: row["epoch"] for row in stage.db.relay_shards.find()}
    heir = stage.leases("heir")
    assert not heir.owned.shards
    eventually(lambda: len(heir.refresh().shards) == 64)
    assert {row["_id"]: row["epoch"] for row in stage.db.relay_shards.find()} == {
        shard: epoch + 1 for shard, epoch in epochs.items()
    }
    assert time.monotonic() > dead.owned.valid_until
    # Back from the dead, it has nothing to renew, and its fair share comes as to any other.
    assert not dead.refresh().shards
    assert _owners(stage) == {"heir": 64}


def test_the_servers_clock_decides(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.leases("one")
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 86_400)
    two = stage.leases("two")
    monkeypatch.undo()
    assert not two.owned.shards
    members = {row["_id"]: row["alive_until"] for row in stage.db.relay_members.find()}
    assert abs(members["two"] - members["one"]) < timedelta(seconds=60)


def test_the_keeper_renews_and_tells_of_new_shards(stage: Stage) -> None:
    leases = stage.leases("kept", lease_seconds=0.6)
    other = stage.leases("other", lease_seconds=0.6)
    leases.refresh()
    leases.refresh()
    other.refresh()
    changed = threading.Event()
    keeper = ShardKeeper(leases, on_change=changed)
    keeper.start()
    try:
        # The other is never refreshed again: its shards come to us.
        assert changed.wait(5)
        eventually(lambda: len(leases.owned.shards) == 64)
        first = leases.owned.valid_until
        eventually(lambda: time.monotonic() > first)
        assert leases.owned.valid_until > time.monotonic()
        assert _owners(stage) == {"kept": 64}
    finally:
        keeper.stop()
