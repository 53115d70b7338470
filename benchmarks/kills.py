"""Relays are killed one after the other while events are appended: is every event there, each asset's in order?

    python benchmarks/kills.py [--mongo URL --kafka BOOTSTRAP] [--relays 3] [--events 20000] [--assets 1000]
                               [--every 2] [--seconds 20] [--seed S] [--json FILE]

A record that comes twice is allowed, and counted. Exit status 1 if an event is missing or came before its predecessor.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition

from darkroom.outbox import COLLECTION
from darkroom.runtime.mongo import connect
from measuring import servers, wait
from outbox_relay.shards import COLLECTION as SHARDS
from relay import PARTITIONS, Bench, row

BATCH = 100


class Relays:
    """So many relays, each replaced as soon as it is killed."""

    def __init__(self, bench: Bench, count: int) -> None:
        self._bench = bench
        self._environment = os.environ | {
            **bench.environment(),
            "DARKROOM_RELAY_LEASE_SECONDS": "1.5",
            "DARKROOM_RELAY_POLL_SECONDS": "0.3",
            "DARKROOM_LOG_LEVEL": "ERROR",
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        for _ in range(count):
            self._start()
        self.killed = 0

    def kill_one(self, chance: random.Random) -> bool:
        """SIGKILL for one that has shards to publish; false if none has any now."""
        working = self._working()
        if not working:
            return False
        victim = self._running.pop(chance.choice(working))
        victim.kill()
        victim.wait()
        self._start()
        self.killed += 1
        return True

    def wait(self) -> None:
        """Until all of them have shards."""
        wait(lambda: len(self._working()) == len(self._running), what="the relays' start")

    def _working(self) -> list[str]:
        leased = self._bench.db[SHARDS].find({"$expr": {"$gt": ["$lease_until", "$$NOW"]}}, ["owner"])
        owners = {shard["owner"] for shard in leased}
        return [name for name in self._running if name in owners]

    def end(self) -> list[int]:
        """SIGTERM for all; gives their exit codes."""
        for process in self._running.values():
            process.terminate()
        return [process.wait(40) for process in self._running.values()]

    def _start(self) -> None:
        name = uuid.uuid4().hex
        named = self._environment | {"DARKROOM_RELAY_INSTANCE": name}
        self._running[name] = subprocess.Popen([sys.executable, "-m", "outbox_relay"], env=named)


def append_and_kill(bench: Bench, relays: Relays, given: argparse.Namespace) -> None:
    """Append at an even pace, each asset's events in order and in turns, kill, and wait until all is marked."""
    chance = random.Random(given.seed)
    ids = [str(uuid.UUID(int=chance.getrandbits(128), version=4)) for _ in range(given.assets)]
    began = time.monotonic()
    next_kill = began + given.every
    appended = marked_before = 0
    while appended < given.events or not bench.all_marked():
        now = time.monotonic()
        # As many kills as belong to the time: a slow machine would start relays for ever.
        if now >= next_kill and relays.killed < given.seconds / given.every:
            marked = bench.db[COLLECTION].count_documents({"published": True})
            # In the midst of work, and not before the last one is made good for: a kill must not only hit beginners.
            if marked > marked_before and relays.kill_one(chance):
                marked_before, next_kill = marked, now + given.every
        if now - began > 10 * given.seconds + 60:
            marked = bench.db[COLLECTION].count_documents({"published": True})
            raise SystemExit(f"no end after {relays.killed} kills: {marked} of {appended} events are marked")
        if appended < given.events and appended <= (now - began) / given.seconds * given.events:
            numbers = range(appended, min(given.events, appended + BATCH))
            bench.db[COLLECTION].insert_many([row(ids[n % given.assets], n // given.assets + 1) for n in numbers])
            appended += len(numbers)
        else:
            time.sleep(0.005)


def read(bench: Bench) -> list[Message]:
    """Everything on the topic, each partition in its order."""
    consumer = Consumer({"bootstrap.servers": bench.bootstrap, "group.id": uuid.uuid4().hex})
    ends = {p: consumer.get_watermark_offsets(TopicPartition(bench.topic, p))[1] for p in range(PARTITIONS)}
    consumer.assign([TopicPartition(bench.topic, p, 0) for p in ends])
    found: list[Message] = []

    def all_read() -> bool:
        found.extend(m for m in consumer.consume(5000, timeout=0.5) if m.error() is None)
        return len(found) >= sum(ends.values())

    wait(all_read, every=0.0, what="reading the topic")
    consumer.close()
    return found


def judge(bench: Bench, messages: list[Message]) -> dict[str, int]:
    """Compare the topic with the outbox."""
    appeared: dict[str, list[int]] = defaultdict(list)
    seen = set()
    for message in messages:
        headers: dict[str, Any] = dict(message.headers() or [])
        asset_id, sequence = headers["ce_subject"].decode(), int(headers["ce_sequence"])
        if (asset_id, sequence) not in seen:
            seen.add((asset_id, sequence))
            appeared[asset_id].append(sequence)
    written = {(each["asset_id"], each["sequence"]) for each in bench.db[COLLECTION].find({}, ["asset_id", "sequence"])}
    return {
        "events": len(written),
        "records": len(messages),
        "duplicates": len(messages) - len(seen),
        "missing": len(written - seen),
        "invented": len(seen - written),
        "assets out of order": sum(found != sorted(found) for found in appeared.values()),
        "not marked": bench.db[COLLECTION].count_documents({"published": False}),
    }


def measure(mongo: str, kafka: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run and judge."""
    run = uuid.uuid4().hex[:8]
    with connect(mongo) as client:
        bench = Bench(mongo, kafka, client[f"kills_{run}"], f"kills{run}.")
        bench.set_up()
        try:
            relays = Relays(bench, given.relays)
            try:
                relays.wait()
                began = time.monotonic()
                append_and_kill(bench, relays, given)
            finally:
                codes = relays.end()
            found = judge(bench, read(bench))
        finally:
            client.drop_database(bench.db.name)
    ended_badly = sum(code not in {0, -signal.SIGTERM} for code in codes)
    return {
        "seed": given.seed,
        "relays": given.relays,
        "kills": relays.killed,
        "seconds": round(time.monotonic() - began, 1),
        **found,
        "ended badly": ended_badly,
    }


VIOLATIONS = ("missing", "invented", "assets out of order", "not marked", "ended badly")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be told of the run itself."""
    parser.add_argument("--relays", type=int, default=3)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--assets", type=int, default=1_000)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two kills")
    parser.add_argument("--seconds", type=float, default=20.0, help="over which the events are appended")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))


def main() -> None:
    """Run, print, and say by the exit status whether it held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mongo")
    parser.add_argument("--kafka")
    parser.add_argument("--json", type=Path)
    add_arguments(parser)
    given = parser.parse_args()
    with servers(given.mongo, given.kafka) as (mongo, kafka):
        found = measure(mongo, kafka, given)
    print(json.dumps(found, indent=2))
    if given.json is not None:
        given.json.write_text(json.dumps(found))
    sys.exit(any(found[name] for name in VIOLATIONS))


if __name__ == "__main__":
    main()
