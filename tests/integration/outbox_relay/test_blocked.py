"""However many rows wait behind an event that cannot be sent, the others hardly notice."""

from datetime import UTC, datetime

from darkroom.outbox import shard_of
from outbox_relay.relay import PASSED, Pace
from support.events import new_id
from support.eventually import eventually
from support.relay_stage import Stage, events_of

WAITING = 3 * PASSED


def _park(stage: Stage, asset_id: str) -> None:
    stage.rows.update_one({"asset_id": asset_id, "sequence": 1}, {"$set": {"parked_at": datetime.now(UTC)}})


def _same_shard_behind(asset_id: str) -> str:
    return next(made for made in iter(new_id, "") if shard_of(made) == shard_of(asset_id) and made > asset_id)


def test_more_rows_than_a_sweep_takes_hold_up_nobody(stage: Stage) -> None:
    blocked = f"0{new_id()[1:]}"
    behind, elsewhere = _same_shard_behind(blocked), new_id()
    stage.append(events_of(blocked, WAITING) + events_of(behind, 3) + events_of(elsewhere, 3))
    _park(stage, blocked)
    with stage.relay(pace=Pace(poll=0.1, sweep_limit=PASSED // 2)):
        eventually(lambda: stage.unpublished() == WAITING)
        # Let go, it comes out in order.
        stage.rows.update_many({"asset_id": blocked}, {"$unset": {"parked_at": ""}})
        eventually(lambda: stage.unpublished() == 0)
    expected = {blocked: list(range(1, WAITING + 1)), behind: [1, 2, 3], elsewhere: [1, 2, 3]}
    assert stage.read_topic().first_appearances == expected


def test_rows_that_wait_are_neither_read_nor_sent_when_others_are_appended(stage: Stage) -> None:
    blocked = new_id()
    stage.append(events_of(blocked, 5_000))
    _park(stage, blocked)
    with stage.relay(pace=Pace(poll=600.0)) as relay:
        eventually(lambda: blocked in relay._parked, deadline=30)
        stage.append(events_of(new_id(), 1))
        eventually(lambda: relay.published == 1, deadline=30)
        stage.db.command("profile", 2)
        stage.append(events_of(new_id(), 3))
        eventually(lambda: relay.published == 4 and stage.unpublished() == 5_000, deadline=30)
        stage.db.command("profile", 0)
    read = [
        entry["docsExamined"]
        for entry in stage.db["system.profile"].find({"command.find": stage.rows.name, "docsExamined": {"$gt": 0}})
    ]
    # A sweep may read a row again that is sent and not yet marked; those that wait are thousands.
    assert 3 <= sum(read) <= 100


def test_a_blocked_asset_that_is_met_anew_is_read_in_part(stage: Stage) -> None:
    blocked = f"0{new_id()[1:]}"
    behind = _same_shard_behind(blocked)
    stage.append(events_of(blocked, 10_000) + events_of(behind, 1))
    _park(stage, blocked)
    stage.db.command("profile", 2)
    with stage.relay(pace=Pace(poll=600.0)):
        eventually(lambda: stage.unpublished() == 10_000)
        stage.db.command("profile", 0)
    first = stage.db["system.profile"].find_one({"command.find": stage.rows.name, "docsExamined": {"$gt": 0}})
    assert first is not None
    assert first["docsExamined"] <= 2_000
