"""What is in the outbox comes onto the topic, in order, and is marked."""

from datetime import UTC, datetime, timedelta

from darkroom.contracts.envelope import STREAM_SOURCE, to_record
from darkroom.outbox import from_row
from outbox_relay.partitions import partition_of
from outbox_relay.relay import Pace
from support.events import new_id
from support.eventually import eventually
from support.relay_stage import PARTITIONS, Stage, events_of


def test_every_asset_comes_in_order_and_is_marked(stage: Stage) -> None:
    expected = stage.append_assets(40, 7)
    with stage.relay() as relay:
        eventually(lambda: stage.unpublished() == 0)
        eventually(lambda: relay.published == 280)
        assert relay.sweep() == 0
    seen = stage.read_topic()
    assert seen.first_appearances == expected
    assert seen.repeated == 0
    rows = {row["_id"]: row for row in stage.rows.find()}
    for message, event in zip(seen.messages, seen.events, strict=True):
        assert event == from_row(rows[event.id])
        record = to_record(event, source=STREAM_SOURCE)
        assert (message.key(), message.value()) == (record.key, record.value)
        assert sorted(message.headers() or []) == sorted(record.headers)
        assert message.partition() == partition_of(record.key, PARTITIONS)
    now = datetime.now(UTC)
    assert all(
        timedelta(0) <= now - row["published_at"] + timedelta(seconds=1) < timedelta(minutes=1) for row in rows.values()
    )


def test_a_sweep_in_parts_reaches_everything_and_is_not_held_up_by_blocked_assets(stage: Stage) -> None:
    expected = stage.append_assets(30, 4)
    parked = sorted(expected)[::2]
    stage.rows.update_many({"asset_id": {"$in": parked}, "sequence": 1}, {"$set": {"parked_at": datetime.now(UTC)}})
    with stage.relay(pace=Pace(poll=0.2, sweep_limit=6)):
        eventually(lambda: stage.unpublished() == 4 * len(parked))
    seen = stage.read_topic()
    assert seen.first_appearances == {asset: expected[asset] for asset in expected if asset not in parked}
    assert seen.repeated == 0


def test_a_row_that_is_no_event_is_parked_and_stops_only_its_asset(stage: Stage) -> None:
    bad, good = new_id(), new_id()
    stage.append(events_of(bad, 3) + events_of(good, 3))
    stage.rows.update_one({"asset_id": bad, "sequence": 2}, {"$unset": {"data_version": ""}})
    with stage.relay():
        eventually(lambda: stage.rows.count_documents({"parked_at": {"$exists": True}}) == 1)
        eventually(lambda: stage.unpublished() == 2)
    assert stage.read_topic().first_appearances == {bad: [1], good: [1, 2, 3]}
    assert "data_version" in stage.rows.find_one({"asset_id": bad, "sequence": 2})["last_error"]


def test_a_sweep_reads_only_what_is_unpublished(stage: Stage) -> None:
    stage.append_assets(100, 10)
    stage.rows.update_many({}, {"$set": {"published": True}})
    stage.append_assets(5, 4)
    commands: list[dict[str, object]] = []
    stage.db.command("profile", 2)
    with stage.relay() as relay:
        eventually(lambda: relay.published == 20 and stage.unpublished() == 0)
        stage.db.command("profile", 0)
        commands.extend(stage.db["system.profile"].find({"command.find": stage.rows.name}))
    first = next(command for command in commands if command["nreturned"] == 20)
    assert "unpublished" in str(first["command"])
    assert "shard: 1, asset_id: 1, sequence: 1" in str(first["planSummary"])
    # One key more a shard, to skip to the next.
    assert int(str(first["keysExamined"])) <= 20 + 64
    assert first["docsExamined"] == 20
    assert not first.get("hasSortStage")


def test_what_lost_its_mark_is_sent_again_in_order(stage: Stage) -> None:
    """What docs/regions.md does for a new cluster: history comes again, under the same ids."""
    expected = stage.append_assets(10, 5)
    with stage.relay():
        eventually(lambda: stage.unpublished() == 0)
        stage.rows.update_many({"sequence": {"$gte": 2}}, {"$set": {"published": False}})
        eventually(lambda: stage.unpublished() == 0)
    sent: dict[str, list[int | None]] = {asset_id: [] for asset_id in expected}
    for event in stage.read_topic().events:
        sent[event.asset_id].append(event.sequence)
    assert all(sequences == [1, 2, 3, 4, 5, 2, 3, 4, 5] for sequences in sent.values())
