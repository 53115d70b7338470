"""``python -m darkroom.setup.prepare``: make servers that were just started ready for the services. May be repeated.

A replica set is initiated, the topics are made, and the cloud side is deployed from deploy/aws/template.yaml to an
endpoint that stands for AWS, without the function: the bridge runs as a container (``python -m s3_bridge``).
"""

import os
import sys
from collections.abc import Callable

from pydantic import Field
from pymongo import MongoClient
from pymongo.errors import OperationFailure
from pymongo.uri_parser import parse_uri

from darkroom.contracts.topics import Topics
from darkroom.local.deployment import deploy
from darkroom.runtime.addresses import check_url
from darkroom.runtime.kafka import ensure_topics
from darkroom.runtime.mongo import Document
from darkroom.runtime.s3 import aws_session
from darkroom.runtime.settings import KafkaSettings, MongoSettings, Origins, load
from darkroom.setup.wait import Need, await_all

_ALREADY_INITIALIZED = 23


class Settings(MongoSettings, KafkaSettings):
    """Of the preparation; the endpoint itself comes by AWS_ENDPOINT_URL."""

    stack_name: str = Field(default="darkroom", description="name of the CloudFormation stack, in lower case")
    queue_name: str = Field(default="", description="name of the uploads' queue; empty: CloudFormation makes one up")
    cors_origins: Origins = Field(
        default=("http://localhost:8080",),
        description="origins of the pages that upload, as browsers send them, by commas; * for every page there is",
    )
    partitions: int = Field(
        default=12, ge=1, le=10_000, description="partitions of each topic: the bound on processors"
    )
    prepare_seconds: float = Field(default=120.0, ge=1, le=3600, description="how long each server may take to answer")


def main() -> None:
    """Prepare the servers that the environment names, or end with what did not work."""
    settings = load(Settings)
    url = settings.mongo_url.get_secret_value()
    steps: list[tuple[str, Callable[[], None]]] = [
        ("MongoDB (DARKROOM_MONGO_URL)", lambda: initiate(url)),
        ("Kafka (DARKROOM_KAFKA_BOOTSTRAP)", lambda: _topics(settings)),
        ("the AWS endpoint (AWS_ENDPOINT_URL)", lambda: _cloud(settings)),
    ]
    for name, step in steps:
        # A step that went through leaves nothing missing; one that raises is tried again until the deadline.
        await_all([Need(name, step)], seconds=settings.prepare_seconds)
        print(f"ready: {name}", file=sys.stderr, flush=True)  # noqa: T201 -- a command's output


def initiate(url: str) -> None:
    """Initiate the replica set that ``url`` names, with the members that it lists; one that exists is left alone.

    Raises:
        ValueError: the URL names no replica set.
        pymongo.errors.PyMongoError: the first member did not answer or refused.

    """
    given = parse_uri(url)
    name = given["options"].get("replicaSet")
    if not name:
        raise ValueError("DARKROOM_MONGO_URL: add ?replicaSet=NAME, the name that mongod was started with")
    nodes = [f"{host}:{port}" for host, port in given["nodelist"]]
    members = [{"_id": number, "host": node} for number, node in enumerate(nodes)]
    with MongoClient[Document](
        f"mongodb://{nodes[0]}/", directConnection=True, serverSelectionTimeoutMS=3000
    ) as client:
        try:
            client.admin.command("replSetInitiate", {"_id": name, "members": members})
        except OperationFailure as error:
            if error.code != _ALREADY_INITIALIZED:
                raise


def _topics(settings: Settings) -> None:
    specs = Topics(settings.topic_prefix).specs(partitions=settings.partitions)
    ensure_topics(settings.kafka_bootstrap, specs, settings.kafka_config)


def _cloud(settings: Settings) -> None:
    deploy(
        _endpoint(),
        stack_name=settings.stack_name,
        kafka_bootstrap=settings.kafka_bootstrap,
        topic_prefix=settings.topic_prefix,
        allowed_origins=settings.cors_origins,
        session=aws_session(),
        parameters={"BridgeRunsAs": "container", "QueueName": settings.queue_name},
    )


def _endpoint() -> str:
    if url := os.environ.get("AWS_ENDPOINT_URL"):
        try:
            return check_url(url, base=True)
        except ValueError as error:
            raise SystemExit(f"AWS_ENDPOINT_URL: this is no address of an endpoint: {error}.") from None
    raise SystemExit(
        "AWS_ENDPOINT_URL is not set. AWS itself is prepared by SAM or CloudFormation; see docs/deployment.md."
    )


if __name__ == "__main__":
    main()
