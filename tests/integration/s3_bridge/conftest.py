"""The template, deployed for a test and deleted with all that it made."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import boto3
import pytest

from darkroom.contracts.topics import Topics
from darkroom.local.aws import DEFAULT_REGION
from darkroom.local.deployment import Outputs, delete, deploy
from darkroom.local.kafka import KafkaCluster, start_kafka
from darkroom.local.processes import SupervisedProcess, Supervisor
from darkroom.local.servers import AWS_VARIABLE
from darkroom.runtime.kafka import ensure_topics
from support.servers import aws_client, empty_and_delete_bucket, in_containers

Deploy = Callable[..., Outputs]


class Mortal(NamedTuple):
    """A broker that the test may kill."""

    bootstrap: str
    topics: Topics
    broker: SupervisedProcess


@pytest.fixture
def topics(kafka_bootstrap: str, topic_names: Callable[[str], str]) -> Topics:
    """Topics of this test's own, on the session's broker."""
    own = Topics(topic_names(""))
    ensure_topics(kafka_bootstrap, own.specs(partitions=6))
    return own


@pytest.fixture
def session() -> Any:
    """Credentials that mean nothing, unless the endpoint is the user's own."""
    if os.environ.get(AWS_VARIABLE):
        return boto3.session.Session()
    return boto3.session.Session("test", "test", region_name=DEFAULT_REGION)


@pytest.fixture
def stack(aws_endpoint: str, kafka_bootstrap: str, session: Any) -> Iterator[Deploy]:
    """Deploys the template under a name of its own, on the session's broker unless another is given."""
    if in_containers():
        pytest.skip("an endpoint in a container has none of the packages that the function imports")
    with ExitStack() as cleanup:

        def deploy_one(**given: Any) -> Outputs:
            name = given.pop("stack_name", f"test-{uuid.uuid4().hex[:8]}")
            settings = {"kafka_bootstrap": kafka_bootstrap, **given}
            cleanup.callback(delete, aws_endpoint, stack_name=name, session=session)
            outputs = deploy(aws_endpoint, stack_name=name, session=session, **settings)
            cleanup.callback(remove_buckets, aws_endpoint, name)
            return outputs

        yield deploy_one


def remove_buckets(endpoint: str, stack_name: str) -> None:
    """Remove the buckets that outlive a stack."""
    s3 = aws_client("s3", endpoint)
    try:
        for found in s3.list_buckets()["Buckets"]:
            if found["Name"].startswith(f"{stack_name}-"):
                empty_and_delete_bucket(s3, found["Name"])
    finally:
        s3.close()


@pytest.fixture(scope="session")
def mortal_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A broker beside the session's, which tests may kill."""
    folder = tmp_path_factory.mktemp("mortal")
    with Supervisor(folder / "logs") as supervisor:
        yield start_kafka(supervisor, folder / "kafka")


@pytest.fixture
def mortal(mortal_cluster: KafkaCluster) -> Iterator[Mortal]:
    """The same, running, with topics of this test's own."""
    (broker,) = mortal_cluster.brokers
    topics = Topics(f"t{uuid.uuid4().hex[:12]}.")
    ensure_topics(mortal_cluster.bootstrap, topics.specs(partitions=3))
    yield Mortal(mortal_cluster.bootstrap, topics, broker)
    if not broker.running:
        broker.start()


@pytest.fixture
def sqs(aws_endpoint: str) -> Iterator[Any]:
    client = aws_client("sqs", aws_endpoint)
    yield client
    client.close()


@pytest.fixture
def s3(aws_endpoint: str) -> Iterator[Any]:
    client = aws_client("s3", aws_endpoint)
    yield client
    client.close()
