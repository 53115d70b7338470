"""All three servers as one stack: killed ones come back with their data, and nothing is left behind."""

import io
import json
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pymongo import MongoClient

from darkroom.local.aws import start_aws
from darkroom.local.errors import DataFolderInUseError
from darkroom.local.kafka import start_kafka
from darkroom.local.mongod import start_mongod
from darkroom.local.processes import Supervisor
from darkroom.local.servers import Servers, start_servers
from support.eventually import eventually
from support.process_groups import alive_in_group
from support.servers import aws_client

STARTER = """
import json, signal, sys
from pathlib import Path
from darkroom.local.servers import start_servers

with start_servers(Path(sys.argv[1]), environment={}) as servers:
    print(json.dumps([servers.environment(), [process.pid for process in servers.processes]]), flush=True)
    signal.pause()
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with start_servers(tmp_path_factory.mktemp("stack"), environment={}) as servers:
        yield servers


def _produce(bootstrap: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0


def _consume(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])
        return [message.value() for message in consumer.consume(count, timeout=20) if message.error() is None]
    finally:
        consumer.close()


def _make_topic(bootstrap: str, topic: str, *, replicas: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, replicas)])[topic].result(timeout=20)


def test_a_killed_mongod_comes_back_with_its_data(stack: Servers) -> None:
    assert stack.mongo is not None
    with MongoClient[dict[str, Any]](stack.mongo_url) as client:
        client.kept.things.insert_one({"_id": 1})
        stack.mongo.primary().kill()
        stack.mongo.members[0].restart()
        assert client.kept.things.find_one() == {"_id": 1}


def test_a_killed_broker_comes_back_with_its_data(stack: Servers) -> None:
    assert stack.kafka is not None
    _make_topic(stack.kafka_bootstrap, "kept")
    _produce(stack.kafka_bootstrap, "kept", b"before")
    stack.kafka.brokers[0].kill()
    stack.kafka.brokers[0].restart()
    _produce(stack.kafka_bootstrap, "kept", b"after")
    assert _consume(stack.kafka_bootstrap, "kept", 2) == [b"before", b"after"]


def test_a_topic_is_not_made_by_asking_for_it(stack: Servers) -> None:
    admin = AdminClient({"bootstrap.servers": stack.kafka_bootstrap})
    assert admin.list_topics("nobody.made.this", timeout=10).topics["nobody.made.this"].error is not None
    assert "nobody.made.this" not in admin.list_topics(timeout=10).topics


def test_a_stopped_aws_endpoint_comes_back_with_objects_and_messages(stack: Servers) -> None:
    assert stack.aws is not None
    s3, sqs = (aws_client(service, stack.aws_endpoint_url) for service in ("s3", "sqs"))
    s3.create_bucket(Bucket="kept")
    s3.put_object(Bucket="kept", Key="a", Body=b"1")
    queue = sqs.create_queue(QueueName="kept")["QueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody="hello")
    stack.aws.process.restart()
    assert s3.get_object(Bucket="kept", Key="a")["Body"].read() == b"1"
    (message,) = sqs.receive_message(QueueUrl=queue)["Messages"]
    assert message["Body"] == "hello"
    s3.close()
    sqs.close()


def test_lambda_workers_get_none_of_the_users_account_and_end_with_the_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as archive:
        archive.writestr(
            "app.py", "import os\ndef handler(event, context):\n    return [os.getpid(), dict(os.environ)]\n"
        )
    with Supervisor(tmp_path / "logs") as supervisor:
        with monkeypatch.context() as users:
            users.setenv("AWS_PROFILE", "production")
            users.setenv("AWS_SECRET_ACCESS_KEY", "not for the local endpoint")
            aws = start_aws(supervisor, tmp_path)
        client = aws_client("lambda", aws.url)
        client.create_function(
            FunctionName="who",
            Runtime="python3.11",
            Handler="app.handler",
            Role="arn:aws:iam::000000000000:role/any",
            Code={"ZipFile": code.getvalue()},
        )
        worker, environment = json.loads(client.invoke(FunctionName="who")["Payload"].read())
        client.close()
        assert worker in alive_in_group(aws.process.pid)
        assert "AWS_PROFILE" not in environment
        assert environment["AWS_SECRET_ACCESS_KEY"] == "test"
        aws.process.kill()
        eventually(lambda: not alive_in_group(aws.process.pid), what="the end of the worker")


def test_a_data_folder_serves_one_starter_at_a_time(stack: Servers) -> None:
    with pytest.raises(DataFolderInUseError), start_servers(stack.data_dir, environment={}):
        pytest.fail("it started")


def test_two_stacks_side_by_side_and_one_starter_killed(stack: Servers, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        other, groups = json.loads(starter.stdout.readline())
        assert not set(other.values()) & {stack.mongo_url, stack.kafka_bootstrap, stack.aws_endpoint_url}
        with MongoClient[dict[str, Any]](other["DARKROOM_MONGO_URL"]) as theirs:
            theirs.mine.things.insert_one({"_id": 1})
        with MongoClient[dict[str, Any]](stack.mongo_url) as ours:
            assert ours.mine.things.find_one() is None
        assert len(groups) == 3
        assert all(alive_in_group(group) for group in groups)
        starter.send_signal(signal.SIGKILL)
    eventually(lambda: not any(alive_in_group(group) for group in groups), deadline=20, what="the end of its servers")
    assert all(process.running for process in stack.processes)


def test_three_members_outlive_the_loss_of_their_primary(tmp_path: Path) -> None:
    with Supervisor(tmp_path / "logs") as supervisor:
        mongo = start_mongod(supervisor, tmp_path / "mongo", members=3)
        with MongoClient[dict[str, Any]](mongo.url) as client:
            lost = mongo.primary()
            lost.kill()
            client.kept.things.insert_one({"_id": 1})
            assert mongo.primary() is not lost
            lost.restart()
            assert client.kept.things.count_documents({}) == 1


def test_three_brokers_outlive_the_loss_of_one(tmp_path: Path) -> None:
    with Supervisor(tmp_path / "logs") as supervisor:
        kafka = start_kafka(supervisor, tmp_path / "kafka", brokers=3)
        _make_topic(kafka.bootstrap, "kept", replicas=3)
        kafka.brokers[0].kill()
        _produce(kafka.bootstrap, "kept", b"without one")
        kafka.brokers[0].restart()
        assert _consume(kafka.bootstrap, "kept", 1) == [b"without one"]
        for broker in kafka.brokers:  # an orderly end of all three at once takes 5 s, as they lose their quorum
            broker.kill()
