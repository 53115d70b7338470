"""How fast the relay publishes, and at what price, next to the plainest loop that could do its work.

    python benchmarks/relay.py [--mongo URL --kafka BOOTSTRAP] [--events N] [--assets N] [--rounds N]
                               [--published N] [--json FILE]

Without addresses the servers are started in a temporary folder. Figures compare only within one run.
"""

import argparse
import contextlib
import json
import os
import signal
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
from darkroom.local.servers import start_servers
from darkroom.outbox import COLLECTION, shard_of
from darkroom.outbox.rows import INDEXES
from darkroom.runtime.kafka import ensure_topics, producer_config
from darkroom.runtime.mongo import Db, connect, ensure_indexes

PARTITIONS = 12
BULK = 2000
PROBES = 200
DEADLINE = 300.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Rate:
    """Events a second, and microseconds of the publisher's own CPU time for each."""

    per_second: float
    cpu_us: float


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

    def all_marked(self) -> bool:
        """Looks at one key of the partial index, to cost those that are measured nothing."""
        return self.db[COLLECTION].find_one({"published": False}, {"_id": 1}, hint="unpublished") is None

    @contextlib.contextmanager
    def relay(self) -> Iterator[int]:
        """The relay as its own process, ready; yields its id."""
        settings = {
            "DARKROOM_MONGO_URL": self.mongo_url,
            "DARKROOM_MONGO_DATABASE": self.db.name,
            "DARKROOM_KAFKA_BOOTSTRAP": self.bootstrap,
            "DARKROOM_TOPIC_PREFIX": self.prefix,
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
    key, value = str(uuid.uuid4()), json.dumps(row(str(uuid.uuid4()), 1)["data"])
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


def idle_latency(bench: Bench) -> list[float]:
    """Milliseconds from the commit of one row to its record read back, with nothing else running, sorted."""
    consumer = Consumer({"bootstrap.servers": bench.bootstrap, "group.id": uuid.uuid4().hex, "fetch.wait.max.ms": 100})
    consumer.assign([TopicPartition(bench.topic, p, -1) for p in range(PARTITIONS)])
    consumer.poll(3)
    taken = []
    with bench.relay():
        for number in range(PROBES + 20):
            bench.db[COLLECTION].insert_one(row(str(uuid.uuid4()), 1))
            began = time.perf_counter()
            while (message := consumer.poll(10)) is None or message.error():
                pass
            # The first ones find cold connections.
            if number >= 20:
                taken.append((time.perf_counter() - began) * 1e3)
            time.sleep(0.02)
    consumer.close()
    return sorted(taken)


def pause(pid: int, *, stopped: bool) -> None:
    """Stand the process still, or let it go on."""
    os.kill(pid, signal.SIGSTOP if stopped else signal.SIGCONT)


def cpu_seconds(pid: int) -> float:
    """What the process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait(done: Callable[[], bool], *, every: float = 0.05) -> None:
    """Until it is done, or five minutes have passed."""
    ends = time.monotonic() + DEADLINE
    while not done():
        if time.monotonic() > ends:
            raise SystemExit("the relay did not finish in time")
        time.sleep(every)


def median(rates: list[Rate]) -> Rate:
    """Each figure's own median."""
    return Rate(statistics.median(r.per_second for r in rates), statistics.median(r.cpu_us for r in rates))


def compare(bench: Bench, events: int, assets: int, rounds: int) -> dict[str, Rate]:
    """Contestants in turns, so that a busy moment of the machine hits all of them.

    A peer such as Debezium joins as one more entry here.
    """
    results: dict[str, list[Rate]] = {"bare producer": [], "bare loop": [], "relay": []}
    for _ in range(rounds):
        results["bare producer"].append(bare_producer(bench, events))
        bench.fill(events, assets)
        results["bare loop"].append(bare_loop(bench, events))
        results["relay"].append(relay(bench, events, lambda: bench.fill(events, assets)))
    return {name: median(rates) for name, rates in results.items()}


def measure(mongo_url: str, bootstrap: str, given: argparse.Namespace) -> dict[str, Any]:
    """Everything, as what is written to the JSON file."""
    run = uuid.uuid4().hex[:8]
    with connect(mongo_url) as client:
        bench = Bench(mongo_url, bootstrap, client[f"bench_{run}"], f"bench{run}.")
        bench.set_up()
        try:
            rates = compare(bench, given.events, given.assets, given.rounds)
            found: dict[str, Any] = {name: vars(rate) for name, rate in rates.items()}
            found["relay ÷ bare loop"] = rates["relay"].per_second / rates["bare loop"].per_second
            found["relay ÷ bare producer"] = rates["relay"].per_second / rates["bare producer"].per_second
            latency = idle_latency(bench)
            found["idle ms"] = {"p50": latency[len(latency) // 2], "p99": latency[len(latency) * 99 // 100]}
            if given.published:
                bench.fill(given.published, max(1, given.published // 20), published=True)
                history = [
                    relay(bench, given.events, lambda: bench.fill(given.events, given.assets))
                    for _ in range(given.rounds)
                ]
                found[f"relay behind {given.published} published"] = vars(median(history))
                found["with history ÷ without"] = median(history).per_second / rates["relay"].per_second
        finally:
            client.drop_database(bench.db.name)
    return found


def main() -> None:
    """Measure, print, and write the JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mongo", help="a replica set's URL; else one is started")
    parser.add_argument("--kafka", help="bootstrap servers; else a broker is started")
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--assets", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--published", type=int, default=0, help="also measure behind so many published rows")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if given.mongo and given.kafka:
            found = measure(given.mongo, given.kafka, given)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            servers = stack.enter_context(start_servers(folder, mongo_url=given.mongo, kafka_bootstrap=given.kafka))
            found = measure(servers.mongo_url, servers.kafka_bootstrap, given)
    for name, value in found.items():
        print(
            f"{name:36}", *(f"{k} {v:,.1f}" for k, v in value.items()) if isinstance(value, dict) else [f"{value:.2f}"]
        )
    if given.json:
        given.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
