"""What a consumer and an inbox tell of themselves, on a real broker and a real MongoDB."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pymongo.database import Database

from darkroom.inbox import Claimed, Inbox, LeaseLost
from darkroom.inbox.consumer import (
    Bounds,
    Delivery,
    Finished,
    Later,
    OrderedConsumer,
    Verdict,
    consumer_config,
)
from darkroom.inbox.keeper import LeaseKeeper
from darkroom.inbox.outage import Outage
from darkroom.metrics.consumption import ConsumptionMetrics
from darkroom.metrics.registry import new_registry
from darkroom.runtime.mongo import ensure_indexes
from support.eventually import eventually
from support.scrape import Samples, scraped

QUICK = Bounds(commit_every=0.1, drain=3.0, grace=6.0, defect_pause=0.2, outage_pause=0.2, unfinished=10)


class Watched:
    """A consumer with a registry."""

    def __init__(self, bootstrap: str, topic: str, handle: Callable[[Delivery], Verdict]) -> None:
        self.topic = topic
        self._bootstrap = bootstrap
        self._registry = new_registry()
        metrics = ConsumptionMetrics(self._registry)
        self.consumer = OrderedConsumer(
            config=consumer_config(bootstrap, group=f"group-{uuid.uuid4().hex[:8]}", session_seconds=6.0),
            topics=[topic],
            handler=handle,
            slots=2,
            bounds=QUICK,
            observer=metrics,
        )
        metrics.watch(self.consumer)

    def scrape(self) -> Samples:
        return scraped(self._registry)

    def value(self, name: str, **labels: str) -> float:
        return self.scrape().value(name, **labels)

    def handed(self, outcome: str) -> float:
        return self.value("darkroom_consumer_handovers_total", outcome=outcome)

    @property
    def lag(self) -> float:
        return self.value("darkroom_consumer_lag_records", topic=self.topic, partition="0")

    def send(self, *keys: str) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap})
        for key in keys:
            producer.produce(self.topic, key=key.encode(), value=b"0", partition=0)
        assert producer.flush(20) == 0

    @contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self.consumer.run, args=(stop,))
        thread.start()
        try:
            eventually(lambda: self.value("darkroom_consumer_assigned_partitions") == 1, deadline=30)
            yield
        finally:
            stop.set()
            thread.join(20)
            assert not thread.is_alive()


@pytest.fixture
def watched(kafka_bootstrap: str, topic_names: Callable[[str], str]) -> Callable[..., Watched]:
    name = topic_names("uploads")
    # The client must outlive the future that it gave.
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.create_topics([NewTopic(name, num_partitions=1)])[name].result(timeout=10)
    return lambda handle: Watched(kafka_bootstrap, name, handle)


def test_hand_overs_are_counted_by_their_end_and_the_lag_falls_to_nothing(
    watched: Callable[..., Watched],
) -> None:
    tries: dict[bytes | None, int] = {}

    def handle(delivery: Delivery) -> Verdict:
        tries[delivery.key] = tries.get(delivery.key, 0) + 1
        if tries[delivery.key] == 1:
            if delivery.key == b"later":
                return Later(0.01)
            if delivery.key == b"defect":
                raise ValueError("as it happens")
            if delivery.key == b"outage":
                raise Outage("MongoDB", lambda: None)
        return Finished()

    target = watched(handle)
    with target.running():
        target.send("good", "later", "defect", "outage")
        eventually(lambda: target.handed("finished") == 4, deadline=20)
        eventually(lambda: target.lag == 0)
        assert [target.handed(outcome) for outcome in ("later", "defect", "outage")] == [1, 1, 1]
        samples = target.scrape()
        assert samples.value("darkroom_consumer_handling_seconds_count") == 5
        assert samples.value("darkroom_consumer_outages_total", server="MongoDB") == 1
        assert samples.value("darkroom_consumer_unfinished_records") == 0
        assert samples.value("darkroom_consumer_oldest_unfinished_seconds") == 0
        assert samples.value("darkroom_consumer_stalled_seconds") == 0
        assert time.time() - samples.value("darkroom_consumer_last_progress_timestamp_seconds") < 30


def test_a_handler_that_hangs_shows_in_age_stall_lag_and_pauses(watched: Callable[..., Watched]) -> None:
    go_on = threading.Event()

    def hang(_: Delivery) -> Verdict:
        go_on.wait(60)
        return Finished()

    target = watched(hang)
    with target.running():
        try:
            target.send(*(f"key-{n}" for n in range(40)))
            eventually(lambda: target.value("darkroom_consumer_paused_partitions") == 1, deadline=20)
            eventually(lambda: target.value("darkroom_consumer_stalled_seconds") > 0.5)
            samples = target.scrape()
            assert samples.value("darkroom_consumer_in_flight_records") == 2
            assert samples.value("darkroom_consumer_unfinished_records") >= 10
            assert samples.value("darkroom_consumer_oldest_unfinished_seconds") > 0.5
            assert target.lag == 40
        finally:
            go_on.set()
        eventually(lambda: target.lag == 0, deadline=20)
        assert target.value("darkroom_consumer_stalled_seconds") == 0
        # The loop resumes in its next turn after the one that committed.
        eventually(lambda: target.value("darkroom_consumer_paused_partitions") == 0)


def test_a_key_that_waits_as_its_handler_asked_is_no_stall_and_one_that_fails_is(
    watched: Callable[..., Watched],
) -> None:
    begun = threading.Event()

    def patient(_: Delivery) -> Verdict:
        begun.set()
        return Later(60)

    target = watched(patient)
    with target.running():
        target.send("one")
        assert begun.wait(20)
        eventually(lambda: target.value("darkroom_consumer_oldest_unfinished_seconds") > 0.5)
        assert target.value("darkroom_consumer_stalled_seconds") == 0

    def broken(_: Delivery) -> Verdict:
        raise ValueError("each time")

    target = watched(broken)
    with target.running():
        eventually(lambda: target.value("darkroom_consumer_stalled_seconds") > 0.5, deadline=20)
        assert target.handed("finished") == 0


def test_the_breaker_shows_while_a_server_is_away(watched: Callable[..., Watched]) -> None:
    away = threading.Event()
    away.set()

    def probe() -> None:
        if away.is_set():
            raise ConnectionError("nobody answers")

    def handle(_: Delivery) -> Verdict:
        if away.is_set():
            raise Outage("S3", probe)
        return Finished()

    target = watched(handle)
    with target.running():
        target.send("one")
        eventually(lambda: target.value("darkroom_consumer_breaker_open") == 1, deadline=20)
        away.clear()
        eventually(lambda: target.value("darkroom_consumer_breaker_open") == 0)
        eventually(lambda: target.handed("finished") == 1)


def test_leases_lost_and_writes_refused_by_the_fence_are_counted(mongo_db: Database[dict[str, Any]]) -> None:
    ensure_indexes(mongo_db, Inbox.indexes())
    registry = new_registry()
    inbox = Inbox(mongo_db, consumer="tests", lease_seconds=0.6, observer=ConsumptionMetrics(registry))
    event_id = str(uuid.uuid4())
    claim = inbox.claim(event_id, owner="one")
    assert isinstance(claim, Claimed)
    inbox.claim(event_id, owner="two")
    mongo_db.consumer_inbox.update_one({"event_id": event_id}, {"$unset": {"lease_until": ""}})
    other = inbox.claim(event_id, owner="two")
    assert isinstance(other, Claimed)

    lost = threading.Event()
    keeper = LeaseKeeper(inbox)
    try:
        with keeper.hold(claim.lease, lost=lost):
            assert lost.wait(10)
    finally:
        keeper.close()
    with pytest.raises(LeaseLost):
        inbox.complete(claim.lease, outcome="too late")
    inbox.release(other.lease, error="storage")
    mongo_db.consumer_inbox.update_one({"event_id": event_id}, {"$unset": {"not_before": ""}})
    again = inbox.claim(event_id, owner="three")
    assert isinstance(again, Claimed)
    inbox.complete(again.lease, outcome="done")
    inbox.claim(event_id, owner="four")

    samples = scraped(registry)
    assert samples.value("darkroom_inbox_lease_lost_total") == 1
    assert samples.value("darkroom_inbox_fence_rejected_total", write="renew") == 1
    assert samples.value("darkroom_inbox_fence_rejected_total", write="complete") == 1
    assert samples.value("darkroom_inbox_released_total", why="retry") == 1
    claims = {
        answer: samples.value("darkroom_inbox_claims_total", answer=answer) for answer in ("claimed", "held", "done")
    }
    assert claims == {"claimed": 3, "held": 1, "done": 1}
