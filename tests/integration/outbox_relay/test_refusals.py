"""An event that cannot be sent stops its own asset, and nothing else."""

from darkroom.contracts.envelope import Record
from outbox_relay.publisher import ProducerFailed
from outbox_relay.relay import Pace
from support.events import new_id
from support.eventually import eventually
from support.relay_stage import Stage, big_events, events_of

LIMIT = 5_000


def _set_limit(stage: Stage, prefix: str) -> None:
    stage.prefix = f"{stage.prefix}{prefix}."
    stage.set_up(**{"max.message.bytes": str(LIMIT)})


def test_a_too_large_event_is_parked_before_it_is_sent(stage: Stage) -> None:
    _set_limit(stage, "small")
    big, good = new_id(), new_id()
    stage.append(big_events(big, 6_000) + events_of(good, 3))
    with stage.relay():
        eventually(lambda: stage.unpublished() == 3 and stage.rows.count_documents({"parked_at": {"$exists": True}}))
        # What comes later waits as well, and the others go on.
        stage.append(events_of(other := new_id(), 2))
        eventually(lambda: stage.unpublished() == 3)
    assert stage.read_topic().first_appearances == {good: [1, 2, 3], other: [1, 2]}
    row = stage.rows.find_one({"asset_id": big, "sequence": 1})
    assert row["published"] is False
    assert row["attempts"] == 0
    assert "max.message.bytes" in row["last_error"]


def test_a_large_event_that_fits_is_sent_and_one_whose_headers_are_too_much_is_not(stage: Stage) -> None:
    _set_limit(stage, "edge")
    fits, exceeds = new_id(), new_id()
    # Value and key alone would fit: the client would send it, and the broker refuse.
    stage.append(big_events(fits, LIMIT - 1_000) + big_events(exceeds, LIMIT - 500))
    with stage.relay():
        eventually(lambda: stage.unpublished() == 3 and stage.rows.count_documents({"parked_at": {"$exists": True}}))
    assert stage.read_topic().first_appearances == {fits: [1, 2, 3]}
    assert stage.rows.find_one({"asset_id": exceeds, "sequence": 1})["attempts"] == 0


def test_what_the_broker_refuses_is_parked_after_some_attempts_and_its_neighbours_are_not_blamed(stage: Stage) -> None:
    _set_limit(stage, "refusing")
    stage.max_message_bytes = 1_000_000
    big = [new_id(), new_id()]
    neighbours = [new_id() for _ in range(60)]
    events = [event for asset_id in big for event in big_events(asset_id, 6_000)]
    stage.append(events + [event for asset_id in neighbours for event in events_of(asset_id, 3)])
    with stage.relay(pace=Pace(poll=0.1, longest_pause=0.1, max_attempts=3)):
        eventually(lambda: stage.unpublished() == 6, deadline=30, what="the neighbours")
        eventually(lambda: stage.rows.count_documents({"parked_at": {"$exists": True}}) == 2, deadline=30)
        # Afterwards it sends in batches again.
        later = stage.append_assets(20, 3)
        eventually(lambda: stage.unpublished() == 6)
    assert stage.read_topic().first_appearances == {asset_id: [1, 2, 3] for asset_id in [*neighbours, *later]}
    for row in stage.rows.find({"asset_id": {"$in": big}}):
        assert row["published"] is False
        assert row["attempts"] == (3 if row["sequence"] == 1 else 0)
        assert ("parked_at" in row) == ("last_error" in row) == (row["sequence"] == 1)
    assert stage.rows.count_documents({"asset_id": {"$in": neighbours}, "attempts": {"$gt": 0}}) == 0


def test_nothing_follows_the_first_record_of_a_partition_before_it_is_acknowledged(stage: Stage) -> None:
    """A broker takes any sequence number from a producer it does not know: behind a refused batch, the next."""
    _set_limit(stage, "fresh")
    stage.max_message_bytes = 1_000_000
    publisher = stage.publisher(one_by_one=True)
    asset_id = new_id()
    refused = False
    publisher.send("first", Record(asset_id.encode(), b"x" * 6_000, []))
    for later in range(20):
        try:
            publisher.send(f"later-{later}", Record(asset_id.encode(), b"x", []))
        except BufferError:
            try:
                publisher.poll(0.2)
            except ProducerFailed:
                refused = True
                break
    assert refused
    publisher.abandon()
    assert [refusal.row_id for refusal in publisher.take_refusals()] == ["first"]
    assert publisher.take_acked() == []
    assert publisher.in_flight == 0
    assert stage.read_topic().messages == []
