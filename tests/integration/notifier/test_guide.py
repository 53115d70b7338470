"""The consumer that docs/consumers.md shows does what the page says."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in its __all__
from pymongo import MongoClient

from darkroom.contracts.envelope import STREAM_SOURCE, to_record
from darkroom.runtime.kafka import producer_config
from support import events
from support.eventually import eventually

GUIDE = Path(__file__).parents[3] / "docs" / "consumers.md"


def test_the_guide_s_consumer_counts_each_event_once(
    mongo_url: str, kafka_bootstrap: str, topic_names: Callable[[str], str], tmp_path: Path
) -> None:
    [program] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    database = f"test_{events.new_id()[:8]}"
    (tmp_path / "counter.py").write_text(program.replace('"my_consumer"', f'"{database}"'))
    topic, owner = topic_names("assets.events"), events.new_id()
    # The client must outlive the future that it gives.
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    producer = Producer(producer_config(kafka_bootstrap))
    producer.produce(topic, key=b"k", value=b"garbage")
    for event in [_ready(owner) for _ in range(5)]:
        record = to_record(event, source=STREAM_SOURCE)
        for _ in range(3):
            producer.produce(topic, key=record.key, value=record.value, headers=record.headers)
    assert producer.flush(30) == 0

    environment = {**os.environ, "MONGO_URL": mongo_url, "KAFKA_BOOTSTRAP": kafka_bootstrap, "TOPIC": topic}
    process = subprocess.Popen([sys.executable, tmp_path / "counter.py"], env=environment, stderr=subprocess.DEVNULL)
    try:
        with MongoClient[dict[str, Any]](mongo_url) as mongo:
            done = mongo[database].consumer_inbox
            eventually(lambda: done.count_documents({"state": "COMPLETED"}) == 5, deadline=60, what="five events")
            process.kill()
            process.wait()
            assert mongo[database].counts.find_one({"_id": owner}) == {"_id": owner, "ready": 5}
            mongo.drop_database(database)
    finally:
        process.kill()
        process.wait()


def _ready(owner: str) -> Any:
    asset = events.step(events.registered(owner_id=owner).after, events.processing()).after
    return events.step(asset, events.ready(asset)).event
