"""The long-polling container: the same bridge on a queue without Lambda."""

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from darkroom.contracts.topics import Topics
from darkroom.local.aws import DEFAULT_REGION, without_aws
from s3_bridge.bridge import bridge
from s3_bridge.poller import QueuePoller
from s3_bridge.publisher import KafkaPublisher
from support.eventually import eventually
from support.queues import headers_of, messages_in, move_messages, read_topic
from support.s3_messages import ASSET, BUCKET, OTHER, RecordingPublisher, body, original, s3_record


class Queues(NamedTuple):
    url: str
    dlq_url: str


@pytest.fixture
def queues(sqs: Any) -> Iterator[Queues]:
    """A queue with its dead-letter queue, whose messages come back after a second."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    dlq_url = sqs.create_queue(QueueName=f"{name}-dlq")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dlq_url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 3}}'
    url = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "1", "RedrivePolicy": redrive})["QueueUrl"]
    yield Queues(url, dlq_url)
    sqs.delete_queue(QueueUrl=url)
    sqs.delete_queue(QueueUrl=dlq_url)


def poller(sqs: Any, queues: Queues, publisher: Any, *, timeout: float = 10.0) -> QueuePoller:
    handle = partial(bridge, bucket=BUCKET, publisher=publisher, timeout=timeout)
    return QueuePoller(sqs=sqs, queue_url=queues.url, handle=handle, poll_seconds=1)


def test_only_what_is_confirmed_is_deleted(sqs: Any, queues: Queues) -> None:
    bodies = [body(s3_record()), "this is not json", body(s3_record(original(OTHER))), "{}"]
    sqs.send_message_batch(
        QueueUrl=queues.url,
        Entries=[{"Id": str(place), "MessageBody": text} for place, text in enumerate(bodies)],
    )
    publisher = RecordingPublisher(lambda event: event.asset_id == OTHER)
    target = poller(sqs, queues, publisher)
    result = target.run_once()
    assert result is not None
    assert len(result.failed) == 2
    assert [event.asset_id for event in publisher.events] == [ASSET]
    eventually(lambda: target.run_once() is None and messages_in(sqs, queues.dlq_url) == 2, deadline=30)
    assert messages_in(sqs, queues.url) == 0
    left = sqs.receive_message(QueueUrl=queues.dlq_url, MaxNumberOfMessages=10)["Messages"]
    assert {message["Body"] for message in left} == {bodies[1], bodies[2]}


def test_broker_down_then_back(sqs: Any, queues: Queues, mortal: Any) -> None:
    topic = mortal.topics.uploaded
    mortal.broker.kill()
    target = poller(sqs, queues, KafkaPublisher(bootstrap=mortal.bootstrap, topic=topic), timeout=1.0)
    stop = threading.Event()
    thread = threading.Thread(target=target.run, args=[stop])
    thread.start()
    try:
        sqs.send_message(QueueUrl=queues.url, MessageBody=body(s3_record(versionId="v1")))
        eventually(lambda: messages_in(sqs, queues.dlq_url) == 1, deadline=60, what="the message in the DLQ")
    finally:
        stop.set()
        thread.join(timeout=20)
    assert not thread.is_alive()
    mortal.broker.start()
    move_messages(sqs, source=queues.dlq_url, target=queues.url)
    back = poller(sqs, queues, KafkaPublisher(bootstrap=mortal.bootstrap, topic=topic), timeout=20.0)
    result = back.run_once()
    assert result is not None
    assert result.failed == ()
    (record,) = read_topic(mortal.bootstrap, topic, count=1)
    twin = RecordingPublisher()
    sqs.send_message(QueueUrl=queues.url, MessageBody=body(s3_record(versionId="v1")))
    poller(sqs, queues, twin).run_once()
    assert headers_of(record)["ce_id"] == twin.events[0].id
    assert messages_in(sqs, queues.url) == 0


def test_the_process_publishes_and_ends_orderly_on_sigterm(
    sqs: Any, queues: Queues, topics: Topics, kafka_bootstrap: str, aws_endpoint: str, tmp_path: Path
) -> None:
    local = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": DEFAULT_REGION}
    settings = {
        "AWS_ENDPOINT_URL": aws_endpoint,
        "AWS_DEFAULT_REGION": DEFAULT_REGION,
        "DARKROOM_BUCKET": BUCKET,
        "DARKROOM_KAFKA_BOOTSTRAP": kafka_bootstrap,
        "DARKROOM_TOPIC_PREFIX": topics.prefix,
        "DARKROOM_QUEUE_URL": queues.url,
        "DARKROOM_POLL_SECONDS": "1",
    }
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "s3_bridge"],
            env=without_aws(os.environ) | ({} if os.environ.get("AWS_ENDPOINT_URL") else local) | settings,
            stderr=log,
        )
        try:
            sqs.send_message(QueueUrl=queues.url, MessageBody=body(s3_record()))
            (record,) = read_topic(kafka_bootstrap, topics.uploaded, count=1)
            assert record.key() == ASSET.encode()
            eventually(lambda: messages_in(sqs, queues.url) == 0, what="the message deleted")
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=10) == 0
        finally:
            process.kill()
            process.wait()
    lines = (tmp_path / "log").read_text()
    assert '"event": "upload_published"' in lines
    assert f'"asset_id": "{ASSET}"' in lines
    assert '"event": "poller_stopped"' in lines


def test_missing_settings_end_the_process_with_their_names() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DARKROOM_")}
    done = subprocess.run(
        [sys.executable, "-m", "s3_bridge"], env=environment, capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 1
    for name in ("DARKROOM_BUCKET", "DARKROOM_KAFKA_BOOTSTRAP", "DARKROOM_QUEUE_URL"):
        assert name in done.stderr
