"""An installation is looked at as it is, also when a part of it does not answer."""

from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Producer

from darkroom.ops.diagnosis import diagnose
from darkroom.ops.status import Waiting, _service, look, problems
from darkroom.ops.story import gather, story
from darkroom.runtime.kafka import producer_config
from integration.ops.conftest import Place
from support import events
from support.sockets import talker


def test_everything_that_waits_is_counted_with_its_age(whole: Place) -> None:
    now = whole.installation.now()
    queue = whole.installation.queue
    assert queue is not None
    queue.client.send_message(QueueUrl=queue.url, MessageBody="waiting")
    queue.client.send_message(QueueUrl=queue.dlq_url, MessageBody="dead")
    whole.upload()
    held, gone, resting = (whole.begin(whole.upload()) for _ in range(3))
    whole.inbox(held, state="PROCESSING", lease_owner="a", lease_until=now + timedelta(minutes=9), claimed_at=now)
    whole.inbox(gone, state="PROCESSING", lease_owner="b", lease_until=now - timedelta(seconds=50))
    whole.inbox(resting, state="PROCESSING", not_before=now + timedelta(minutes=9))
    whole.dead()
    ready = whole.ready()
    first, last = whole.db.outbox_events.find({"asset_id": ready.id}).sort("sequence").limit(2)
    whole.db.outbox_events.update_one({"_id": first["_id"]}, {"$set": {"published": False}})
    whole.db.outbox_events.update_one({"_id": last["_id"]}, {"$set": {"published": False, "parked_at": now}})
    until = now + timedelta(minutes=9)
    whole.db.relay_members.insert_many([{"_id": "r1", "alive_until": until}, {"_id": "r2", "alive_until": until}])
    owned = [{"_id": n, "owner": "r1", "lease_until": until} for n in range(60)]
    whole.db.relay_shards.insert_many([*owned, {"_id": 60, "owner": "r0", "lease_until": now}])
    producer = Producer(producer_config(whole.installation.bootstrap))
    for topic in (whole.installation.topics.uploaded, whole.installation.topics.uploaded_dlq):
        producer.produce(topic, partition=1, key=b"k", value=b"v")
    assert producer.flush(10) == 0

    seen = look(whole.installation, late=0)
    assert seen.unknown == {}
    assert (seen.processors, [(one.number, one.lag) for one in seen.partitions]) == (0, [(0, 0), (1, 1)])
    assert (seen.relays, seen.shards_without_relay) == ({"r1": 60, "r2": 0}, 4)
    assert {name: waiting.count for name, waiting in seen.under_way.items()} == {"UPLOADING": 1, "PROCESSING": 3}
    assert (seen.leases_held.count, seen.leases_run_out.count, seen.backing_off) == (1, 1, 1)
    assert 50 <= (seen.leases_run_out.oldest or 0) < 600
    assert seen.unpublished == Waiting(1, (seen.at - events.NOW).total_seconds())
    assert (seen.queued, seen.letters) == (1, {"sqs": 1, "kafka": 1, "inbox": 1, "outbox": 1})
    assert (seen.lost, seen.lost_sample) == ({"stuck_processing": 1, "lost_notification": 1}, 4)
    assert len(list(problems(seen, late=0))) >= 10
    assert seen.as_json(late=0)["lag"] == 1


def test_an_address_where_no_http_is_spoken_is_a_problem_and_no_failure() -> None:
    with talker(b"SSH-2.0-OpenSSH_9.6\r\n") as port:
        seen = _service(f"http://127.0.0.1:{port}/readyz")
    assert "SSH" in (seen.problem or "")


def test_a_part_that_does_not_answer_hides_no_other(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("darkroom.ops.topics.CALL_SECONDS", 0.5)
    monkeypatch.setattr("darkroom.ops.status.GROUP_SECONDS", 0.5)
    asset = place.dead()
    seen = look(place.installation, late=0)
    assert set(seen.unknown) == {"Kafka", "processors"}
    assert seen.letters == {"sqs": None, "inbox": 1, "outbox": 0}
    facts = gather(place.installation, asset.id)
    assert "Kafka" in facts.unknown
    assert diagnose(facts).cause == "dead"


def test_the_story_of_an_asset_is_gathered_from_every_server(whole: Place) -> None:
    asset = whole.upload()
    key, value, headers = events.uploaded_record(asset, bucket=whole.installation.bucket)
    producer = Producer(producer_config(whole.installation.bootstrap))
    producer.produce(whole.installation.topics.uploaded, key=key, value=value, headers=headers)
    producer.produce(whole.installation.topics.uploaded_dlq, key=key, value=b"", headers=[("dlq_reason", b"odd")])
    assert producer.flush(10) == 0
    facts = gather(whole.installation, asset.id)
    assert facts.unknown == {}
    assert facts.searched
    told = story(facts)
    assert {entry.where for entry in told} == {"outbox", "s3", "kafka"}
    assert any("odd" in entry.what for entry in told)
    assert any("offset 0" in entry.what and "not finished" in entry.what for entry in told)
    assert diagnose(facts).cause == "announcement_dead"


@pytest.mark.parametrize(
    ("collection", "wanted", "index"),
    [
        ("assets", {"status": "UPLOADING", "updated_at": {"$lt": events.NOW}}, "unfinished"),
        ("assets", {"status": "PROCESSING"}, "unfinished"),
        ("assets", {"status": "FAILED", "upload.event_id": "x"}, "failed_by_upload"),
    ],
)
def test_what_operators_ask_for_is_found_by_an_index(place: Place, collection: str, wanted: Any, index: str) -> None:
    plan = place.db[collection].find(wanted).explain()["queryPlanner"]["winningPlan"]
    assert f"'{index}'" in str(plan)
