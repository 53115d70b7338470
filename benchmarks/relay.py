"""How fast the relay publishes, and at what price, next to the plainest loop that could do its work.

    python benchmarks/relay.py [--mongo URL --kafka BOOTSTRAP] [--events N] [--assets N] [--rounds N]
                               [--published N] [--debezium] [--json FILE]

Without addresses the servers are started in a temporary folder. Figures compare only within one run.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from pymongo import IndexModel, MongoClient

from darkroom.contracts.topics import Topics, TopicSpec
from darkroom.outbox import COLLECTION, shard_of
from darkroom.outbox.rows import INDEXES
from darkroom.runtime.kafka import ensure_topics, producer_config
from darkroom.runtime.mongo import Db, connect, ensure_indexes
from debezium import Debezium
from measuring import Rate, cpu_seconds, pause, percentiles, servers, wait

PARTITIONS = 12
BULK = 2000
PROBES = 200
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Bench:
    """One database and one topic."""

    mongo_url: str
    bootstrap: str
    db: Db
    prefix: str

    @property
    def topic(self) -> str:
        return Topics(self.prefix).events

    def set_up(self) -> None:
        ensure_indexes(self.db, {COLLECTION: [IndexModel(keys, **options) for keys, options in INDEXES]})
        ensure_topics(self.bootstrap, [TopicSpec(self.topic, PARTITIONS)])

    def fill(self, events: int, assets: int, *, published: bool = False) -> None:
        """Insert so many rows of so many new assets, spread as if their events came in turns."""
        ids = [str(uuid.uuid4()) for _ in range(assets)]
        rows = self.db[COLLECTION]
        for start in range(0, events, 5000):
            numbers = range(start, min(events, start + 5000))
            rows.insert_many(
                [row(ids[n % assets], n // assets + 1, published=published) for n in numbers], ordered=False
            )

    def insert_one(self) -> None:
        """One row of a new asset."""
        self.db[COLLECTION].insert_one(row(str(uuid.uuid4()), 1))

    def all_marked(self) -> bool:
        """Looks at one key of the partial index, to cost those that are measured nothing."""
        return self.db[COLLECTION].find_one({"published": False}, {"_id": 1}, hint="unpublished") is None

    def environment(self) -> dict[str, str]:
        """What tells a relay to work here."""
        return {
            "DARKROOM_MONGO_URL": self.mongo_url,
            "DARKROOM_MONGO_DATABASE": self.db.name,
            "DARKROOM_KAFKA_BOOTSTRAP": self.bootstrap,
            "DARKROOM_TOPIC_PREFIX": self.prefix,
        }

    @contextlib.contextmanager
    def relay(self) -> Iterator[int]:
        """The relay as its own process, ready; yields its id."""
        settings = {
            **self.environment(),
            # It stands still while the rows are written, and keeps its shards.
            "DARKROOM_RELAY_LEASE_SECONDS": "120",
            "DARKROOM_LOG_LEVEL": "WARNING",
        }
        process = subprocess.Popen([sys.executable, "-m", "outbox_relay"], env=os.environ | settings)
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(30)


def row(asset_id: str, sequence: int, *, published: bool = False) -> dict[str, Any]:
    """A row as AssetReady makes it, with about 300 bytes of data."""
    renditions = [
        {"name": name, "object_key": f"assets/{asset_id}/{name}.jpg", "size": 12_345, "width": size, "height": size}
        for name, size in (("thumb", 256), ("large", 1024))
    ]
    return {
        "_id": str(uuid.uuid4()),
        "asset_id": asset_id,
        "sequence": sequence,
        "shard": shard_of(asset_id),
        "type": "AssetReady",
        "data_version": 1,
        "data": {"bucket": "assets", "object_key": f"assets/{asset_id}/original.jpg", "renditions": renditions},
        "owner_id": "owner-1",
        "causation_id": str(uuid.uuid4()),
        "correlation_id": "request-1",
        "occurred_at": NOW,
        "published": published,
        "attempts": 0,
    }


def payload(asset_id: str) -> str:
    """The same data as text, for those who send what they are given."""
    return json.dumps(row(asset_id, 1)["data"])


def bare_loop(bench: Bench, events: int) -> Rate:
    """Find, produce, flush, mark: no leases, no order, no headers."""
    rows: Any = MongoClient(bench.mongo_url)[bench.db.name][COLLECTION]
    producer = Producer(producer_config(bench.bootstrap, linger_ms=1))
    began, cpu = time.perf_counter(), time.process_time()
    done = 0
    while done < events:
        batch = list(rows.find({"published": False}).hint("unpublished").limit(BULK))
        for each in batch:
            producer.produce(bench.topic, key=each["asset_id"], value=json.dumps(each["data"]))
            producer.poll(0)
        producer.flush()
        rows.update_many({"_id": {"$in": [each["_id"] for each in batch]}}, {"$set": {"published": True}})
        done += len(batch)
    rate = Rate(events / (time.perf_counter() - began), (time.process_time() - cpu) / events * 1e6)
    rows.database.client.close()
    return rate


def bare_producer(bench: Bench, events: int) -> Rate:
    """The client alone, with the same payload."""
    producer = Producer(producer_config(bench.bootstrap, linger_ms=1))
    key, value = str(uuid.uuid4()), payload(str(uuid.uuid4()))
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(events):
        while True:
            try:
                producer.produce(bench.topic, key=f"{key}-{number % 1000}", value=value)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    producer.flush()
    return Rate(events / (time.perf_counter() - began), (time.process_time() - cpu) / events * 1e6)


def relay(bench: Bench, events: int, fill: Callable[[], None]) -> Rate:
    """The relay from its first mark to its last; the rows were there before it could see them."""
    with bench.relay() as pid:
        # Warm, and with its connections: what is measured is the work, not the start.
        bench.fill(500, 100)
        wait(bench.all_marked)
        pause(pid, stopped=True)
        fill()
        cpu = cpu_seconds(pid)
        began = time.perf_counter()
        pause(pid, stopped=False)
        wait(bench.all_marked, every=0.02)
        return Rate(events / (time.perf_counter() - began), (cpu_seconds(pid) - cpu) / events * 1e6)


def idle_latency(bootstrap: str, topic: str, partitions: int, insert: Callable[[], object]) -> list[float]:
    """Milliseconds from the commit of one row to its record read back, with nothing else running."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "fetch.wait.max.ms": 100})
    consumer.assign([TopicPartition(topic, p, -1) for p in range(partitions)])
    consumer.poll(3)
    taken = []
    for number in range(PROBES + 20):
        insert()
        began = time.perf_counter()
        while (message := consumer.poll(10)) is None or message.error():
            pass
        # The first ones find cold connections.
        if number >= 20:
            taken.append((time.perf_counter() - began) * 1e3)
        time.sleep(0.02)
    consumer.close()
    return taken


def median(rates: list[Rate]) -> Rate:
    """Each figure's own median."""
    return Rate(statistics.median(r.per_second for r in rates), statistics.median(r.cpu_us for r in rates))


def compare(
    bench: Bench, events: int, assets: int, rounds: int, debezium: Debezium | None
) -> tuple[dict[str, Rate], dict[str, Any]]:
    """Contestants in turns, so that a busy moment of the machine hits all of them; and what else the peer shows."""
    results: dict[str, list[Rate]] = {"bare producer": [], "bare loop": [], "relay": []}
    told: dict[str, Any] = {}
    with debezium.running() if debezium else contextlib.nullcontext():
        if debezium:
            # What Java compiles while it runs, it has compiled after this.
            told["debezium's first round"] = vars(debezium.round(events, assets))
        for _ in range(rounds):
            results["bare producer"].append(bare_producer(bench, events))
            bench.fill(events, assets)
            results["bare loop"].append(bare_loop(bench, events))
            results["relay"].append(relay(bench, events, lambda: bench.fill(events, assets)))
            if debezium:
                results.setdefault("debezium", []).append(debezium.round(events, assets))
        if debezium:
            with debezium.awake():
                taken = idle_latency(bench.bootstrap, debezium.topic, debezium.PARTITIONS, debezium.insert_one)
            told["debezium idle ms"] = percentiles(taken)
            told["debezium MiB"] = debezium.resident_mib
    return {name: median(rates) for name, rates in results.items()}, told


def measure(mongo_url: str, bootstrap: str, given: argparse.Namespace) -> dict[str, Any]:
    """Everything, as what is written to the JSON file."""
    run = uuid.uuid4().hex[:8]
    with connect(mongo_url) as client, tempfile.TemporaryDirectory() as folder:
        bench = Bench(mongo_url, bootstrap, client[f"bench_{run}"], f"bench{run}.")
        bench.set_up()
        peer = None
        if given.debezium:
            peer = Debezium(mongo_url, bootstrap, client[f"peer_{run}"], f"peer{run}.events", Path(folder), payload)
        try:
            rates, told = compare(bench, given.events, given.assets, given.rounds, peer)
            found: dict[str, Any] = {name: vars(rate) for name, rate in rates.items()}
            for name in rates.keys() - {"relay"}:
                found[f"relay ÷ {name}"] = rates["relay"].per_second / rates[name].per_second
            with bench.relay():
                one = bench.insert_one
                found["idle ms"] = percentiles(idle_latency(bootstrap, bench.topic, PARTITIONS, one))
            found |= told
            if given.published:
                found |= with_history(bench, given)
        finally:
            client.drop_database(bench.db.name)
            if peer is not None:
                client.drop_database(peer.db.name)
    return found


def with_history(bench: Bench, given: argparse.Namespace) -> dict[str, Any]:
    """The relay before and after so many published rows are written, in turns with the bare loop."""

    def rounds() -> tuple[Rate, Rate]:
        relayed, looped = [], []
        for _ in range(given.rounds):
            bench.fill(given.events, given.assets)
            looped.append(bare_loop(bench, given.events))
            relayed.append(relay(bench, given.events, lambda: bench.fill(given.events, given.assets)))
        return median(relayed), median(looped)

    bench.db[COLLECTION].delete_many({})
    before, loop_before = rounds()
    bench.fill(given.published, max(1, given.published // 20), published=True)
    # What was written is on the disk before anything is measured.
    bench.db.client.admin.command("fsync")
    after, loop_after = rounds()
    return {
        "relay without history": vars(before),
        f"relay behind {given.published} published": vars(after),
        "with history ÷ without": after.per_second / before.per_second,
        "bare loop with history ÷ without": loop_after.per_second / loop_before.per_second,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be told of the measurement itself."""
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--assets", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--published", type=int, default=0, help="also measure behind so many published rows")
    parser.add_argument("--debezium", action=argparse.BooleanOptionalAction, default=False, help="beside Debezium")


def main() -> None:
    """Measure, print, and write the JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mongo", help="a replica set's URL; else one is started")
    parser.add_argument("--kafka", help="bootstrap servers; else a broker is started")
    parser.add_argument("--json", type=Path)
    add_arguments(parser)
    given = parser.parse_args()
    with servers(given.mongo, given.kafka) as (mongo, kafka):
        found = measure(mongo, kafka, given)
    for name, value in found.items():
        print(
            f"{name:36}", *(f"{k} {v:,.1f}" for k, v in value.items()) if isinstance(value, dict) else [f"{value:.2f}"]
        )
    if given.json:
        given.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
