"""The processor as a process: how it ends when what it needs is away."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pymongo import MongoClient

from darkroom.assets import to_document
from darkroom.contracts.topics import Topics, TopicSpec
from darkroom.local.mongod import start_mongod
from darkroom.local.processes import Supervisor
from darkroom.outbox import to_row
from darkroom.runtime.kafka import ensure_topics, producer_config
from support import events
from support.eventually import eventually
from support.servers import aws_environment

from .conftest import PICTURE

GRACE = 5.0
GOODBYES = 6.0
"""Seconds for what comes after the grace time: clients are closed, child processes end, the interpreter as well."""


@pytest.mark.parametrize("how", ["hangs", "is gone"])
def test_sigterm_ends_it_in_time_though_mongodb_is_away(
    how: str,
    kafka_bootstrap: str,
    topic_names: Callable[[str], str],
    aws_endpoint: str,
    s3: Any,
    bucket: str,
    tmp_path: Path,
) -> None:
    prefix = topic_names(Topics().uploaded).removesuffix(Topics().uploaded)
    topics = Topics(prefix)
    ensure_topics(kafka_bootstrap, [TopicSpec(name, 1, {}) for name in (topics.uploaded, topics.uploaded_dlq)])
    group = f"{prefix}group"

    def committed() -> int:
        reader = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": group})
        try:
            return reader.committed([TopicPartition(topics.uploaded, 0)], timeout=10)[0].offset  # type: ignore[no-any-return, unused-ignore]  # untyped in some versions
        finally:
            reader.close()

    def send(asset: Any) -> None:
        record = events.uploaded_record(asset, bucket=bucket)
        producer = Producer(producer_config(kafka_bootstrap))
        producer.produce(topics.uploaded, key=record.key, value=record.value, headers=record.headers)
        assert producer.flush(20) == 0

    with Supervisor(tmp_path / "logs") as supervisor:
        own = start_mongod(supervisor, tmp_path / "mongod")
        with MongoClient[dict[str, Any]](own.url) as client:
            made = [events.registered(size=len(PICTURE)) for _ in range(3)]
            for change in made:
                client.darkroom.assets.insert_one(to_document(change.after))
                client.darkroom.outbox_events.insert_one(to_row(change.event))
                s3.put_object(Bucket=bucket, Key=change.after.object_key, Body=PICTURE)
        settings = {
            "AWS_ENDPOINT_URL": aws_endpoint,
            "DARKROOM_MONGO_URL": own.url,
            "DARKROOM_MONGO_DATABASE": "darkroom",
            "DARKROOM_KAFKA_BOOTSTRAP": kafka_bootstrap,
            "DARKROOM_TOPIC_PREFIX": prefix,
            "DARKROOM_BUCKET": bucket,
            "DARKROOM_PROCESSOR_GROUP": group,
            "DARKROOM_PROCESSOR_DECODERS": "1",
            "DARKROOM_GRACE_SECONDS": f"{GRACE}",
            **aws_environment(),
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DARKROOM_")}
        log = tmp_path / "log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "processor"], env=inherited | settings, stdout=file, stderr=file
            )
        try:
            send(made[0].after)
            eventually(lambda: committed() == 1, deadline=60, what="the first asset")
            (mongod,) = own.members
            if how == "hangs":
                mongod.pause()
            else:
                mongod.kill()
            for change in made[1:]:
                send(change.after)
            eventually(lambda: '"outage"' in log.read_text(), deadline=60, what="the outage")
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
            took = time.monotonic() - began
        finally:
            process.kill()
            process.wait()
            if how == "hangs":
                own.members[0].resume()
        assert code == 0, log.read_text()[-2000:]
        assert took < GRACE + GOODBYES
        assert "Traceback" not in log.read_text()
        assert committed() == 1, "what was not done is not passed"
