"""What a relay shows, and when it says that it is not ready, on a real MongoDB and a real broker."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from darkroom.metrics.registry import new_registry
from darkroom.outbox import SHARDS
from outbox_relay.backlog import LIMIT, Backlog
from outbox_relay.metrics import RelayMetrics
from outbox_relay.relay import SAMPLED, Observer, Pace
from support.events import new_id
from support.eventually import eventually
from support.relay_stage import Stage, big_events
from support.scrape import Samples, scrape, scraped

DEAD = "127.0.0.1:1"


@dataclass
class Process:
    """A relay as a process."""

    port: int

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, ""
        except urllib.error.HTTPError as error:
            with error:
                return error.code, str(json.load(error)["reason"])

    def scrape(self) -> Samples:
        return scrape(self.port)


@contextmanager
def process(stage: Stage, log: Path, **settings: str) -> Iterator[Process]:
    started = stage.process(log, **settings)
    try:
        yield Process(eventually(lambda: port_in(log), deadline=30, what="the relay's start"))
        started.terminate()
        assert started.wait(20) == 0
    finally:
        started.kill()
        started.wait()


def port_in(log: Path) -> int:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return next((int(line["health_port"]) for line in lines if line["event"] == "relay_started"), 0)


def test_what_is_published_is_counted_and_how_long_it_took(stage: Stage) -> None:
    registry = new_registry()
    metrics = RelayMetrics(registry)
    leases = stage.leases(lease_seconds=3600)
    with stage.relay(observer=metrics, leases=leases) as relay:
        metrics.watch(relay=relay, leases=leases, backlog=Backlog(stage.db))
        stage.append_assets(40, 3)
        eventually(lambda: stage.unpublished() == 0, deadline=20)
        eventually(lambda: relay.unmarked == 0)
        samples = scraped(registry)
        assert samples.value("darkroom_relay_published_total") == 120
        assert samples.value("darkroom_relay_publish_latency_seconds_count") >= 1 + 120 // 32
        assert samples.value("darkroom_relay_shards_owned") == SHARDS
        assert samples.value("darkroom_relay_in_flight_rows") == 0
        assert samples.value("darkroom_relay_unmarked_rows") == 0
        assert samples.value("darkroom_relay_unpublished_rows") == 0
        assert samples.value("darkroom_relay_unpublished_oldest_seconds") == 0
        assert samples.value("darkroom_relay_kafka_silent_seconds") == 0
        assert samples.value("darkroom_relay_sweep_failures_total", server="kafka") == 0


def test_how_long_it_took_is_told_and_not_kept_of_a_row_that_is_waited_for_at_once(stage: Stage) -> None:
    told: list[float] = []

    class Latencies(Observer):
        def acknowledged(self, count: int, latencies: Iterable[float]) -> None:
            assert count > 0
            told.extend(latencies)

    stage.append_assets(SAMPLED + 1, 1)
    with stage.relay(observer=Latencies(), pace=Pace(poll=0.2, grace=3.0, in_flight=1)):
        eventually(lambda: stage.unpublished() == 0, deadline=30)
    assert len(told) == 2


def test_a_row_that_is_parked_shows_and_is_not_the_oldest_that_waits(stage: Stage) -> None:
    stage.set_up(**{"max.message.bytes": "20000"})
    registry = new_registry()
    metrics = RelayMetrics(registry)
    stage.max_message_bytes = 20_000
    with stage.relay(observer=metrics):
        stage.append(big_events(new_id(), 30_000), scrambled=False)
        eventually(lambda: stage.db.outbox_events.count_documents({"parked_at": {"$exists": True}}) == 1, deadline=20)
        assert scraped(registry).value("darkroom_relay_parked_total") == 1
    look = Backlog(stage.db).look()
    assert (look.waiting, look.parked) == (2, 1)


def test_the_backlog_is_the_oldest_of_a_bounded_look_through_the_index(stage: Stage) -> None:
    backlog = Backlog(stage.db)
    assert backlog.look().oldest == 0
    stage.append_assets(LIMIT + 50, 1)
    stage.rows.update_many({}, {"$set": {"occurred_at": datetime.now(UTC) - timedelta(seconds=90)}})
    look = backlog.look()
    assert (look.waiting, look.parked) == (LIMIT, 0)
    assert 90 <= look.oldest < 150
    plan = stage.db.command(
        "explain",
        {
            "aggregate": stage.rows.name,
            "pipeline": [{"$match": {"published": False}}, {"$limit": LIMIT}, {"$group": {"_id": None}}],
            "hint": "unpublished",
            "cursor": {},
        },
        verbosity="executionStats",
    )
    told = json.dumps(plan, default=str)
    assert '"indexName": "unpublished"' in told
    assert examined(plan) <= LIMIT + 1


def examined(plan: Any) -> int:
    """The most keys that any stage of the plan looked at."""
    if isinstance(plan, dict):
        own = int(plan.get("totalKeysExamined", 0))
        return max([own, *(examined(inner) for inner in plan.values())])
    return max((examined(inner) for inner in plan), default=0) if isinstance(plan, list) else 0


def test_a_relay_that_reaches_no_kafka_is_alive_and_not_ready(stage: Stage, tmp_path: Path) -> None:
    stage.append_assets(2, 2)
    with process(stage, tmp_path / "log", DARKROOM_KAFKA_BOOTSTRAP=DEAD, DARKROOM_RELAY_SILENCE_SECONDS="1") as relay:
        code, reason = eventually(lambda: refused(relay), deadline=30)
        assert code == 503
        assert "Kafka has acknowledged nothing" in reason
        assert relay.ask("/healthz")[0] == 200
        samples = relay.scrape()
        assert samples.value("darkroom_relay_kafka_silent_seconds") > 1
        assert samples.value("darkroom_relay_sweep_failures_total", server="kafka") >= 1
        assert samples.value("darkroom_relay_unpublished_rows") == 4
        assert samples.value("darkroom_relay_unpublished_oldest_seconds") > 0


def refused(relay: Process) -> tuple[int, str]:
    code, reason = relay.ask("/readyz")
    assert code != 200
    return code, reason


def test_a_relay_that_owns_nothing_though_it_should_is_not_ready_until_it_does(stage: Stage, tmp_path: Path) -> None:
    # Somebody who is no live relay holds every shard, as after a relay whose clock-long lease nobody renews.
    held = {"owner": "a ghost", "epoch": 1, "lease_until": datetime.now(UTC) + timedelta(hours=1)}
    stage.db.relay_shards.insert_many([{"_id": shard, **held} for shard in range(SHARDS)])
    with process(stage, tmp_path / "log", DARKROOM_RELAY_LEASE_SECONDS="0.6") as relay:
        code, reason = eventually(lambda: refused(relay), deadline=30)
        assert code == 503
        assert "owns no shard" in reason
        assert relay.ask("/healthz")[0] == 200
        assert relay.scrape().value("darkroom_relay_shards_owned") == 0
        stage.db.relay_shards.update_many({}, {"$unset": {"lease_until": ""}})
        eventually(lambda: relay.ask("/readyz")[0] == 200, deadline=20)
        assert relay.scrape().value("darkroom_relay_shards_owned") == SHARDS


@pytest.mark.parametrize("relays", [2])
def test_relays_that_share_are_both_ready(stage: Stage, tmp_path: Path, relays: int) -> None:
    with process(stage, tmp_path / "1") as first, process(stage, tmp_path / "2") as second:
        eventually(lambda: first.scrape().value("darkroom_relay_shards_owned") == SHARDS / relays, deadline=30)
        eventually(lambda: second.scrape().value("darkroom_relay_shards_owned") == SHARDS / relays, deadline=30)
        assert [relay.ask("/startedz")[0] for relay in (first, second)] == [200, 200]
