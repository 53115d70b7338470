"""Dead letters of all four kinds are listed with their reasons and put back where they came from."""

from datetime import datetime
from typing import Any

import pytest
from confluent_kafka import Producer
from pymongo.errors import PyMongoError

from darkroom.contracts.envelope import from_record
from darkroom.contracts.events import AssetTrashed
from darkroom.inbox import Claimed, Lease, LeaseLost
from darkroom.ops.announcing import Announcer
from darkroom.ops.letters import Filter, Letter, Redriven, Source, SqsBox, find, redrive_all
from darkroom.ops.redriving import NotRedrivable, redrive
from darkroom.ops.verify import verify
from darkroom.runtime.kafka import producer_config
from integration.ops.conftest import Place
from support import events, s3_messages
from support.queues import messages_in, read_topic


def listed(place: Place, source: Source, **wanted: Any) -> list[Letter]:
    return find(place.installation, Filter(sources=(source,), **wanted))


def put_back(
    place: Place, source: Source, *, dry_run: bool = False, again: bool = False, **wanted: Any
) -> list[Redriven]:
    return list(
        redrive_all(
            place.installation, Filter(sources=(source,), **wanted), reason="mended", dry_run=dry_run, again=again
        )
    )


def operations(place: Place) -> list[dict[str, Any]]:
    return list(place.db.operations.find({}, {"_id": 0, "begun_at": 0}).sort("begun_at"))


def announcements(place: Place, count: int) -> list[Any]:
    """The first ``count`` events on assets.uploaded."""
    records = read_topic(place.installation.bootstrap, place.installation.topics.uploaded, count=count)
    return [from_record(key=r.key(), value=r.value(), record_headers=r.headers()) for r in records]  # type: ignore[arg-type]


def dead_letter(place: Place, *, key: bytes | None, value: bytes | None, **notes: str) -> None:
    producer = Producer(producer_config(place.installation.bootstrap))
    headers: list[Any] = [("ce_id", b"1"), *((name, text.encode()) for name, text in notes.items())]
    producer.produce(place.installation.topics.uploaded_dlq, key=key, value=value, headers=headers)
    assert producer.flush(10) == 0


def test_a_dead_event_is_redriven_with_its_asset(whole: Place) -> None:
    asset = whole.dead()
    assert asset.upload is not None
    (letter,) = listed(whole, Source.INBOX)
    assert (letter.id, letter.asset_id) == (asset.upload.event_id, asset.id)
    assert "S3 said 500" in letter.reason
    assert [one.problem for one in put_back(whole, Source.INBOX)] == [None]
    stored = whole.stored(asset)
    assert (stored["status"], stored["version"], "failure" in stored) == ("PROCESSING", 4, False)
    row = whole.row(asset)
    assert (row["state"], row["attempts"], row["fence"], row["redrives"]) == ("PROCESSING", 0, 2, 1)
    assert "outcome" not in row
    event = whole.db.outbox_events.find_one({"asset_id": asset.id, "sequence": 4})
    assert (event["type"], event["causation_id"], event["published"]) == ("AssetRedriven", letter.id, False)
    assert event["data"] == {"upload_event_id": letter.id, "by": "operator", "reason": "mended"}
    (again,) = announcements(whole, 1)
    assert (again.id, again.asset_id, again.data.size) == (letter.id, asset.id, asset.size)
    assert verify(whole.installation).clean
    assert listed(whole, Source.INBOX) == []
    (operation,) = operations(whole)
    assert isinstance(operation.pop("done_at"), datetime)
    assert operation == {
        "action": "redrive",
        "by": "operator",
        "reason": "mended",
        "asset_id": asset.id,
        "event_id": letter.id,
        "source": "inbox",
        "letter": letter.id,
    }


def test_whoever_held_the_event_before_cannot_write_after_its_redrive(whole: Place) -> None:
    asset = whole.dead()
    assert asset.upload is not None
    old = Lease(whole.installation.group, asset.upload.event_id, "old", fence=1, attempts=5)
    put_back(whole, Source.INBOX)
    claim = whole.installation.inbox.claim(asset.upload.event_id, owner="new")
    assert isinstance(claim, Claimed)
    assert (claim.lease.fence, claim.lease.attempts) == (3, 1)
    with pytest.raises(LeaseLost):
        whole.installation.inbox.complete(old, outcome="ready")


def test_a_dry_run_changes_nothing(whole: Place) -> None:
    asset = whole.dead()
    before = whole.stored(asset), whole.row(asset)
    assert [one.letter.asset_id for one in put_back(whole, Source.INBOX, dry_run=True)] == [asset.id]
    assert (whole.stored(asset), whole.row(asset)) == before
    assert operations(whole) == []


def test_an_asset_in_the_trash_is_not_redriven(whole: Place) -> None:
    asset = whole.step(whole.dead(), AssetTrashed())
    (result,) = put_back(whole, Source.INBOX)
    assert "not FAILED any more" in str(result.problem)
    assert "done_at" not in operations(whole)[0]
    with Announcer(whole.installation) as announcer, pytest.raises(NotRedrivable, match="TRASHED"):
        redrive(whole.installation, asset.id, reason="mended", announcer=announcer)


def test_all_of_a_redrive_is_written_or_nothing(whole: Place) -> None:
    asset = whole.dead()
    # The place of its next event is taken.
    whole.db.outbox_events.insert_one({"_id": "squatter", "asset_id": asset.id, "sequence": 4, "published": True})
    before = whole.stored(asset), whole.row(asset)
    with pytest.raises(PyMongoError):
        put_back(whole, Source.INBOX)
    assert (whole.stored(asset), whole.row(asset)) == before


def test_filters_choose_letters(whole: Place) -> None:
    first, second = whole.dead(), whole.dead()
    assert second.upload is not None
    whole.db.consumer_inbox.update_one({"event_id": second.upload.event_id}, {"$set": {"last_error": "out of memory"}})
    whole.db.consumer_inbox.update_many({}, [{"$set": {"finished_at": "$$NOW"}}])
    assert {one.asset_id for one in listed(whole, Source.INBOX)} == {first.id, second.id}
    assert [one.asset_id for one in listed(whole, Source.INBOX, asset_ids=(first.id,))] == [first.id]
    assert [one.asset_id for one in listed(whole, Source.INBOX, ids=(second.upload.event_id,))] == [second.id]
    assert [one.asset_id for one in listed(whole, Source.INBOX, reason="Out Of")] == [second.id]
    assert listed(whole, Source.INBOX, older_than=3600) == []
    assert listed(whole, Source.OUTBOX) == []
    assert len(find(whole.installation, Filter(), limit=1)) == 1


def test_a_parked_row_is_given_to_the_relay_again(whole: Place) -> None:
    asset = whole.ready()
    row = whole.db.outbox_events.find_one({"asset_id": asset.id, "sequence": 2})
    parked = {"published": False, "attempts": 5, "last_error": "too large", "parked_at": events.NOW}
    whole.db.outbox_events.update_one({"_id": row["_id"]}, {"$set": parked})
    (letter,) = listed(whole, Source.OUTBOX)
    assert (letter.id, letter.asset_id, letter.reason) == (row["_id"], asset.id, "too large")
    assert [one.problem for one in put_back(whole, Source.OUTBOX)] == [None]
    after = whole.db.outbox_events.find_one({"_id": row["_id"]})
    assert ("parked_at" in after, after["attempts"], after["published"]) == (False, 0, False)
    assert put_back(whole, Source.OUTBOX) == []


def test_messages_go_from_the_dead_letter_queue_to_the_queue(whole: Place) -> None:
    queue = whole.installation.queue
    assert queue is not None
    asset = events.registered().after
    bodies = [s3_messages.body(s3_messages.s3_record(asset.object_key)), *(f"no JSON {n}" for n in range(12))]
    for body in bodies:
        queue.client.send_message(QueueUrl=queue.dlq_url, MessageBody=body)
    letters = listed(whole, Source.SQS)
    assert len(letters) == 13
    assert [one.asset_id for one in letters if one.asset_id] == [asset.id]
    # Looking takes nothing away and hides nothing.
    assert len(listed(whole, Source.SQS)) == 13
    (one,) = put_back(whole, Source.SQS, asset_ids=(asset.id,))
    assert one.problem is None
    assert (messages_in(queue.client, queue.url), messages_in(queue.client, queue.dlq_url)) == (1, 12)
    (message,) = queue.client.receive_message(QueueUrl=queue.url)["Messages"]
    assert message["Body"] == bodies[0]
    assert len(put_back(whole, Source.SQS)) == 12
    assert messages_in(queue.client, queue.dlq_url) == 0
    assert len(operations(whole)) == 13


def test_messages_that_others_have_seen_or_taken_meanwhile_do_not_fail_who_listed_them(whole: Place) -> None:
    queue = whole.installation.queue
    assert queue is not None
    for n in range(3):
        queue.client.send_message(QueueUrl=queue.dlq_url, MessageBody=f"no JSON {n}")
    with SqsBox(queue) as box:
        assert len(list(box.letters())) == 3
        taken, seen, _ = [message["ReceiptHandle"] for message in box._held.values()]
        queue.client.delete_message(QueueUrl=queue.dlq_url, ReceiptHandle=taken)
        # As after a minute: it is hidden no longer, and whoever has the receipt has nothing.
        queue.client.change_message_visibility(QueueUrl=queue.dlq_url, ReceiptHandle=seen, VisibilityTimeout=0)
    assert len(listed(whole, Source.SQS)) == 2


def test_kafkas_letters_are_put_back_once(whole: Place) -> None:
    asset = whole.upload()
    key, value, headers = events.uploaded_record(asset, bucket=whole.installation.bucket)
    names = {name: raw.decode() for name, raw in headers if isinstance(raw, bytes)}
    place = {"dlq_topic": whole.installation.topics.uploaded, "dlq_partition": "0", "dlq_offset": "7"}
    producer = Producer(producer_config(whole.installation.bootstrap))
    notes: list[Any] = [*headers, *((n, v.encode()) for n, v in place.items()), ("dlq_reason", b"never registered")]
    producer.produce(whole.installation.topics.uploaded_dlq, key=key, value=value, headers=notes)
    assert producer.flush(10) == 0
    (letter,) = listed(whole, Source.KAFKA)
    assert (letter.asset_id, letter.event_id, letter.reason) == (asset.id, names["ce_id"], "never registered")
    assert letter.told["headers"] == names | place | {"dlq_reason": "never registered"}
    assert [one.problem for one in put_back(whole, Source.KAFKA)] == [None]
    (record,) = read_topic(whole.installation.bootstrap, whole.installation.topics.uploaded, count=1)
    assert (record.key(), record.value(), record.headers()) == (key, value, headers)
    assert [one.redriven for one in listed(whole, Source.KAFKA)] == [True]
    assert put_back(whole, Source.KAFKA) == []
    assert len(put_back(whole, Source.KAFKA, again=True)) == 1


def test_a_letter_that_left_its_bytes_out_is_read_where_it_came_from(whole: Place) -> None:
    topics = whole.installation.topics
    producer = Producer(producer_config(whole.installation.bootstrap))
    producer.produce(topics.uploaded, partition=1, key=b"k", value=b"large", headers=[("h", b"1")])
    assert producer.flush(10) == 0
    place = {"dlq_topic": topics.uploaded, "dlq_partition": "1", "dlq_reason": "too large", "dlq_left_out": "all"}
    dead_letter(whole, key=None, value=None, **place, dlq_offset="0")
    assert [one.problem for one in put_back(whole, Source.KAFKA)] == [None]
    records = read_topic(whole.installation.bootstrap, topics.uploaded, count=2)
    assert [(one.key(), one.value(), one.headers()) for one in records] == [(b"k", b"large", [("h", b"1")])] * 2


def test_an_installation_without_a_known_queue_has_the_other_letters(place: Place) -> None:
    place.dead()
    assert len(find(place.installation, Filter(sources=(Source.SQS, Source.INBOX)))) == 1
