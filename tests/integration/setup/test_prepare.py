"""`python -m darkroom.setup.prepare` on servers that know nothing of Darkroom yet."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from darkroom.contracts.topics import Topics
from darkroom.local.declared import fill
from darkroom.local.deployment import delete
from darkroom.local.mongod import find_mongod
from darkroom.local.ports import HOST, free_ports
from darkroom.local.processes import Supervisor
from darkroom.runtime.mongo import connect
from darkroom.setup.prepare import initiate
from darkroom.setup.wait import needs
from support.eventually import eventually
from support.servers import aws_client, aws_environment, aws_session, delete_topics


def test_a_new_mongod_becomes_a_replica_set_and_a_second_time_changes_nothing(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = tmp_path / "mongod.conf"
    (tmp_path / "data").mkdir()
    config.write_text(fill("mongod.conf", port=port, db_path=str(tmp_path / "data"), cache_gb=0.25))
    url = f"mongodb://{HOST}:{port}/?replicaSet=rs0"
    with Supervisor(tmp_path / "logs") as supervisor:
        mongod = supervisor.prepare(
            "mongod",
            [str(find_mongod()), "--config", str(config)],
            ready=lambda: "Waiting for connections" in mongod.log(),
            deadline=30,
        )
        mongod.start()
        (need,) = needs({"DARKROOM_MONGO_URL": url})
        with pytest.raises(Exception, match="No replica set members match"):
            need.missing()
        initiate(url)
        initiate(url)
        eventually(lambda: need.missing() is None, deadline=20, what="a primary")
        with connect(url) as client:
            assert client.admin.command("hello")["setName"] == "rs0"


def test_an_address_without_a_replica_set_is_refused() -> None:
    with pytest.raises(ValueError, match=r"add \?replicaSet=NAME"):
        initiate("mongodb://127.0.0.1:1/")


def test_topics_bucket_and_queue_are_made_without_the_function_and_twice_is_once(
    mongo_url: str, kafka_bootstrap: str, aws_endpoint: str
) -> None:
    name = f"prep{uuid.uuid4().hex[:8]}"
    environment = {
        **os.environ,
        **aws_environment(),
        "AWS_ENDPOINT_URL": aws_endpoint,
        "DARKROOM_MONGO_URL": mongo_url,
        "DARKROOM_KAFKA_BOOTSTRAP": kafka_bootstrap,
        "DARKROOM_TOPIC_PREFIX": f"{name}.",
        "DARKROOM_STACK_NAME": name,
        "DARKROOM_QUEUE_NAME": f"{name}-uploads",
        "DARKROOM_PARTITIONS": "2",
        "DARKROOM_PREPARE_SECONDS": "60",
    }
    try:
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-m", "darkroom.setup.prepare"],
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        topics = AdminClient({"bootstrap.servers": kafka_bootstrap}).list_topics(timeout=10).topics
        assert len(topics[Topics(f"{name}.").uploaded].partitions) == 2
        sqs = aws_client("sqs", aws_endpoint)
        assert sqs.get_queue_url(QueueName=f"{name}-uploads")["QueueUrl"]
        account = aws_client("sts", aws_endpoint).get_caller_identity()["Account"]
        bucket = f"{name}-{account}-{aws_session().region_name}"
        assert aws_client("s3", aws_endpoint).head_bucket(Bucket=bucket)
        functions = aws_client("lambda", aws_endpoint).list_functions()["Functions"]
        assert not [function for function in functions if function["FunctionName"].startswith(name)]
    finally:
        delete_topics(kafka_bootstrap, f"{name}.")
        delete(aws_endpoint, stack_name=name, session=aws_session())
