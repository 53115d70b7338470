"""What exactly-once costs a processor: everything but the picture, with an image step that does nothing.

    python benchmarks/exactly_once.py [--mongo URL --kafka BOOTSTRAP] [--events N] [--json FILE]

Claim, start, finish and the offsets are the real ones, on a real mongod and a real broker; no byte is fetched, decoded
or stored. Without addresses the servers are started in a temporary folder. Figures compare only within one run.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from darkroom.assets import Asset, change, to_document
from darkroom.assets.documents import COLLECTION as ASSETS
from darkroom.contracts.envelope import BRIDGE_SOURCE, Event, to_record
from darkroom.contracts.events import AssetRegistered, AssetUploaded
from darkroom.contracts.ids import upload_event_id
from darkroom.contracts.topics import Topics
from darkroom.inbox import Inbox
from darkroom.inbox.consumer import Delivery, Finished, OrderedConsumer, consumer_config
from darkroom.inbox.keeper import LeaseKeeper
from darkroom.life.objects import ObjectStore
from darkroom.outbox import COLLECTION as OUTBOX
from darkroom.outbox import to_row
from darkroom.runtime import logging
from darkroom.runtime.kafka import ensure_topics, producer_config
from darkroom.runtime.mongo import Db, connect, ensure_indexes
from measuring import own_cpu_seconds, servers
from processor.dead_letters import DeadLetters
from processor.imaging.rendition import Limits, Rendered, RenditionSpec, SourceFormat
from processor.objects import Bucket, Fetched
from processor.process import Processor
from processor.rendering import Rendering
from processor.store import Store

BUCKET = "bench"
SLOTS = 16
DEADLINE = 300.0


class NoBucket(Bucket):
    """A bucket that has every object and takes every rendition."""

    def __init__(self) -> None:
        self.name = BUCKET

    def fetch(
        self, key: str, *, version_id: str | None, size: int, cancelled: threading.Event, hashed: bool = False
    ) -> Fetched:
        return Fetched([b""], "etag", version_id, None)


class NoDecoder:
    """An image step that does nothing."""

    def render(
        self,
        data: Sequence[bytes],
        specs: Sequence[RenditionSpec],
        limits: Limits,
        *,
        cancelled: threading.Event | None = None,
    ) -> Rendered:
        return Rendered(format=SourceFormat.JPEG, width=1, height=1, renditions=())

    def probe(self, *, cancelled: threading.Event | None = None) -> None:
        """It is always there."""


def processor(db: Db, kafka: str, topics: Topics) -> Processor:
    inbox = Inbox(db, consumer="bench", lease_seconds=30)
    return Processor(
        inbox=inbox,
        keeper=LeaseKeeper(inbox),
        store=Store(db.client, db, inbox),
        rendering=Rendering(
            bucket=NoBucket(), decoder=NoDecoder(), specs=(), limits=Limits(), max_upload_bytes=1 << 30
        ),
        originals=ObjectStore(None, bucket=BUCKET),
        dead_letters=DeadLetters(Producer(producer_config(kafka)), topic=topics.uploaded_dlq),
        max_attempts=5,
        backoff_seconds=1,
    )


def registered() -> tuple[Asset, Event, Event]:
    """A new asset, its first event, and the announcement of its upload."""
    asset_id, now = str(uuid.uuid4()), datetime.now(UTC)
    key = f"assets/{asset_id}/original.jpg"
    data = AssetRegistered(
        idempotency_key=asset_id, request_hash="0", filename="a.jpg", content_type="image/jpeg", size=1, object_key=key
    )
    made = change(None, data, occurred_at=now, asset_id=asset_id, owner_id="bench")
    uploaded = AssetUploaded(bucket=BUCKET, object_key=key, etag="etag", size=1)
    event_id = upload_event_id(BUCKET, key, None, "etag")
    return made.after, made.event, Event(id=event_id, asset_id=asset_id, occurred_at=now, data=uploaded)


def fill(db: Db, count: int) -> list[Event]:
    made = [registered() for _ in range(count)]
    db[ASSETS].insert_many([to_document(asset) for asset, _, _ in made])
    db[OUTBOX].insert_many([to_row(event) for _, event, _ in made])
    return [uploaded for _, _, uploaded in made]


def deliver(event: Event, number: int) -> Delivery:
    record = to_record(event, source=BRIDGE_SOURCE)
    return Delivery("t", 0, number, record.key, record.value, record.headers, owner=str(uuid.uuid4()))


def one_by_one(db: Db, kafka: str, topics: Topics, count: int) -> dict[str, float]:
    """Latency and client CPU of one event after the other, and of the same events once more."""
    handle = processor(db, kafka, topics)
    for number, event in enumerate(fill(db, 50)):
        handle(deliver(event, number))
    events = fill(db, count)
    result: dict[str, float] = {}
    for name in ("new", "duplicate"):
        took, used = [], own_cpu_seconds()
        for number, event in enumerate(events):
            began = time.perf_counter()
            assert isinstance(handle(deliver(event, number)), Finished)
            took.append((time.perf_counter() - began) * 1e3)
        result |= {
            f"{name}_p50_ms": round(statistics.median(took), 2),
            f"{name}_p99_ms": round(sorted(took)[int(len(took) * 0.99)], 2),
            f"{name}_cpu_ms": round((own_cpu_seconds() - used) / count * 1e3, 2),
        }
    handle.keeper.close()
    return result


def throughput(mongo: str, kafka: str, db: Db, topics: Topics, count: int, *, workers: int) -> float:
    """Events a second of so many processors together, once all have their partitions."""
    producer = Producer(producer_config(kafka))

    def produce(events: list[Event]) -> None:
        for event in events:
            record = to_record(event, source=BRIDGE_SOURCE)
            producer.produce(topics.uploaded, key=record.key, value=record.value, headers=record.headers)
        assert producer.flush(30) == 0

    def done() -> int:
        return db["consumer_inbox"].count_documents({"state": "COMPLETED"})

    def wait(wanted: int) -> None:
        ends = time.monotonic() + DEADLINE
        while done() < wanted:
            assert time.monotonic() < ends, f"{done()} of {wanted}"
            time.sleep(0.05)

    command = [sys.executable, __file__, "--mongo", mongo, "--kafka", kafka, "--worker", f"{db.name},{topics.prefix}"]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(workers)]
    try:
        produce(fill(db, 200))
        wait(200)
        began = time.monotonic()
        produce(fill(db, count))
        wait(200 + count)
        return count / (time.monotonic() - began)
    finally:
        for process in started:
            if process.stdin is not None:
                process.stdin.close()
            process.wait(30)


def work(mongo: str, kafka: str, given: str) -> None:
    """A processor of its own, until standard input closes."""
    database, prefix = given.split(",")
    topics = Topics(prefix)
    with connect(mongo) as client:
        handle = processor(client[database], kafka, topics)
        stop = threading.Event()
        threading.Thread(target=_until_closed, args=(stop,), daemon=True).start()
        OrderedConsumer(
            config=consumer_config(kafka, group=prefix), topics=[topics.uploaded], handler=handle, slots=SLOTS
        ).run(stop)


def _until_closed(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def measure(mongo: str, kafka: str, events: int) -> dict[str, Any]:
    result: dict[str, Any] = {"events": events, "cores": os.cpu_count()}
    with connect(mongo) as client:
        for name in ("one_by_one", "one", "two"):
            run = uuid.uuid4().hex[:8]
            db, topics = client[f"bench_{run}"], Topics(f"bench.{run}.")
            ensure_indexes(db, Store.indexes())
            ensure_topics(kafka, topics.specs())
            if name == "one_by_one":
                result |= one_by_one(db, kafka, topics, min(events, 1000))
            else:
                workers = ("one", "two").index(name) + 1
                result[f"{name}_processors_per_s"] = round(
                    throughput(mongo, kafka, db, topics, events, workers=workers)
                )
            client.drop_database(db.name)
    result["two_to_one"] = round(result["two_processors_per_s"] / result["one_processors_per_s"], 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mongo")
    parser.add_argument("--kafka")
    parser.add_argument("--events", type=int, default=3000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    logging.configure(service="bench", level="WARNING")
    if given.worker:
        work(given.mongo, given.kafka, given.worker)
        return
    with servers(given.mongo, given.kafka) as (mongo, kafka):
        result = measure(mongo, kafka, given.events)
    print(json.dumps(result, indent=2))
    if given.json is not None:
        given.json.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
