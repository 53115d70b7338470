"""Many events, each delivered three times, while the notifier is killed again and again.

NOTIFIER_EVENTS and NOTIFIER_KILLS make it longer.
"""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in its __all__
from pymongo.database import Database

from darkroom.contracts.envelope import STREAM_SOURCE, to_record
from darkroom.runtime.kafka import producer_config
from notifier.journal import State
from support import events
from support.eventually import eventually
from support.servers import aws_environment

from .conftest import SECRET, SENDER, Mailbox, Receiver

EVENTS = int(os.environ.get("NOTIFIER_EVENTS", "300"))
DELIVERIES = 3
KILLS = int(os.environ.get("NOTIFIER_KILLS", "2"))
PARTITIONS = 6
GROUP = "tests.notifier"


@pytest.mark.timeout(300)
def test_each_event_is_told_once(
    mongo_url: str,
    mongo_db: Database[dict[str, Any]],
    kafka_bootstrap: str,
    aws_endpoint: str,
    ses: Any,
    receiver: Receiver,
    topic_names: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topic = topic_names("assets.events")
    # The client must outlive the future that it gives.
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
    owner = f"{events.new_id()}@example.com"
    published = _publish(kafka_bootstrap, topic, owner)
    environment = {
        **os.environ,
        **aws_environment(),
        "AWS_ENDPOINT_URL": aws_endpoint,
        "DARKROOM_MONGO_URL": mongo_url,
        "DARKROOM_MONGO_DATABASE": mongo_db.name,
        "DARKROOM_KAFKA_BOOTSTRAP": kafka_bootstrap,
        "DARKROOM_TOPIC_PREFIX": topic.removesuffix("assets.events"),
        # The shortest that the broker allows: for so long the group waits for a member that was killed.
        "DARKROOM_SESSION_SECONDS": "6",
        "DARKROOM_BUCKET": "bucket",
        "DARKROOM_NOTIFIER_GROUP": GROUP,
        "DARKROOM_NOTIFIER_LEASE_SECONDS": "2",
        "DARKROOM_EMAIL_FROM": SENDER,
        "DARKROOM_WEBHOOK_URL": receiver.url,
        "DARKROOM_WEBHOOK_SECRET": SECRET,
    }
    log = (tmp_path / "notifier.log").open("wb")

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "notifier"], env=environment, stdout=log, stderr=log)

    process = start()
    try:
        chance = random.Random(1)
        for kill in range(KILLS):
            # Counted in webhooks, so that a kill falls anywhere between a mail and its end.
            wanted = (kill + 1) * EVENTS // (KILLS + 2) + chance.randrange(20)
            eventually(partial(_told, receiver, wanted), deadline=60, what=f"{wanted} events told")
            process.send_signal(signal.SIGKILL)
            process.wait()
            process = start()
        eventually(lambda: _lag(kafka_bootstrap, topic) == 0, deadline=120, what="everything committed")
    finally:
        process.terminate()
        process.wait(30)
        log.close()

    states = Counter(row["state"] for row in mongo_db.notifications.find({"channel": "email"}))
    mails = Mailbox(aws_endpoint, owner).mails
    named = Counter(mail["Subject"] for mail in mails)
    assert set(receiver.ids) == published
    assert receiver.forged == 0
    assert max(named.values()) == 1, "a mail went out twice"
    # What a kill hid is on record, and nothing else is missing.
    assert set(states) <= {State.SENT, State.IN_DOUBT}
    assert states[State.SENT] + states[State.IN_DOUBT] == EVENTS
    assert states[State.SENT] <= len(mails) <= EVENTS
    print(f"{len(mails)} mails, {dict(states)}, {sum(receiver.ids.values()) - EVENTS} webhooks repeated")  # noqa: T201 -- told by pytest -rP
    assert states[State.IN_DOUBT] <= KILLS * 8  # one a slot and kill, at most
    assert sum(receiver.ids.values()) - EVENTS <= KILLS * 8


def _told(receiver: Receiver, wanted: int) -> bool:
    return len(receiver.taken) >= wanted


def _publish(bootstrap: str, topic: str, owner: str) -> set[str]:
    """Each asset's registration and AssetReady, and then AssetReady twice more; gives the ids of the latter."""
    producer = Producer(producer_config(bootstrap))
    ready = []
    for number in range(EVENTS):
        registered = events.registered(owner_id=owner, filename=f"{number}.jpg")
        working = events.step(registered.after, events.processing()).after
        ready.append(events.step(working, events.ready(working)).event)
        record = to_record(registered.event, source=STREAM_SOURCE)
        producer.produce(topic, key=record.key, value=record.value, headers=record.headers)
    for _ in range(DELIVERIES):
        for event in ready:
            record = to_record(event, source=STREAM_SOURCE)
            producer.produce(topic, key=record.key, value=record.value, headers=record.headers)
        assert producer.flush(30) == 0
    return {event.id for event in ready}


def _lag(bootstrap: str, topic: str) -> int:
    """Records of the topic that the group has not committed."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        places = consumer.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], timeout=10)
        ends = [consumer.get_watermark_offsets(place, timeout=10)[1] for place in places]
    finally:
        consumer.close()
    return sum(end - max(0, place.offset) for end, place in zip(ends, places, strict=True))
