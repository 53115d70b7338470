"""The only place that knows where the tests' servers come from.

An address in DARKROOM_MONGO_URL, DARKROOM_KAFKA_BOOTSTRAP or AWS_ENDPOINT_URL is used, and must answer; otherwise a
local process is started when a test first asks for it, and ended with the session; or a container, where
DARKROOM_TEST_SERVERS says `containers`.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import boto3
from botocore.config import Config
from confluent_kafka.admin import AdminClient

from darkroom.local.aws import DEFAULT_REGION, require_endpoint, start_aws
from darkroom.local.kafka import require_broker, start_kafka
from darkroom.local.mongod import require_replica_set, start_mongod
from darkroom.local.processes import Supervisor
from darkroom.local.servers import AWS_VARIABLE, KAFKA_VARIABLE, MONGO_VARIABLE
from support.container_servers import ContainerServers

KINDS = ("processes", "containers")


def describe_choice() -> list[str]:
    """One line a server for pytest's header: where it comes from."""
    names = {"mongod": MONGO_VARIABLE, "kafka": KAFKA_VARIABLE, "aws": AWS_VARIABLE}
    kind = "container" if in_containers() else "local process"
    return [
        f"{name}: " + (f"given by {variable}" if os.environ.get(variable) else f"{kind}, started on first use")
        for name, variable in names.items()
    ]


def in_containers() -> bool:
    """Whether the session's servers are to be containers."""
    asked = os.environ.get("DARKROOM_TEST_SERVERS", KINDS[0])
    if asked not in KINDS:
        raise ValueError(f"DARKROOM_TEST_SERVERS: {asked!r} is none of {', '.join(KINDS)}")
    return asked == "containers"


class SessionServers:
    """The servers of one test session, each started at its first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._supervisor: Supervisor | None = None
        self._containers = ContainerServers(folder) if in_containers() else None
        self._addresses: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as leave:
            # The data goes, the logs stay where pytest keeps the folders of its last sessions.
            for name in ("mongo", "kafka", "aws"):
                leave.callback(shutil.rmtree, self._folder / name, ignore_errors=True)
            if self._supervisor is not None:
                leave.callback(self._supervisor.stop)
            if self._containers is not None:
                leave.callback(self._containers.stop)

    def mongo_url(self) -> str:
        """The address of a replica set whose server accepts failCommand when it is a local one."""
        return self._address(
            MONGO_VARIABLE,
            require_replica_set,
            lambda supervisor: (
                start_mongod(supervisor, self._folder / "mongo", parameters={"enableTestCommands": "1"}).url
            ),
            ContainerServers.start_mongo,
        )

    def kafka_bootstrap(self) -> str:
        """The brokers' address."""
        return self._address(
            KAFKA_VARIABLE,
            require_broker,
            lambda supervisor: start_kafka(supervisor, self._folder / "kafka").bootstrap,
            ContainerServers.start_kafka,
        )

    def aws_endpoint(self) -> str:
        """The address of S3, SQS and Lambda."""
        return self._address(
            AWS_VARIABLE,
            require_endpoint,
            lambda supervisor: start_aws(supervisor, self._folder).url,
            ContainerServers.start_aws,
        )

    def _address(
        self,
        variable: str,
        require: Callable[[str], None],
        start: Callable[[Supervisor], str],
        contain: Callable[[ContainerServers], str],
    ) -> str:
        if variable not in self._addresses:
            if given := os.environ.get(variable):
                require(given)
                self._addresses[variable] = given
            elif self._containers is not None:
                self._addresses[variable] = contain(self._containers)
            else:
                self._supervisor = self._supervisor or Supervisor(self._folder / "logs")
                self._addresses[variable] = start(self._supervisor)
        return self._addresses[variable]


def aws_environment() -> dict[str, str]:
    """What a service needs to reach the tests' endpoint; for a local one, credentials that mean nothing."""
    if os.environ.get(AWS_VARIABLE):
        return {}
    return {"AWS_REGION": DEFAULT_REGION, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


def aws_session() -> Any:
    """A boto3 session for the tests' endpoint."""
    given = aws_environment()
    return boto3.session.Session(
        aws_access_key_id=given.get("AWS_ACCESS_KEY_ID"),
        aws_secret_access_key=given.get("AWS_SECRET_ACCESS_KEY"),
        region_name=given.get("AWS_REGION") or os.environ.get("AWS_REGION", DEFAULT_REGION),
    )


def aws_client(service: str, endpoint: str) -> Any:
    """A boto3 client for the tests' endpoint."""
    config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 2})
    return aws_session().client(service, endpoint_url=endpoint, config=config)


def delete_topics(bootstrap: str, prefix: str) -> None:
    """Delete every topic whose name starts with `prefix`."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = [name for name in admin.list_topics(timeout=10).topics if name.startswith(prefix)]
    if names:
        for future in admin.delete_topics(names).values():
            future.result(timeout=10)


def empty_and_delete_bucket(s3: Any, bucket: str) -> None:
    """Delete every version of every object in the bucket, and the bucket."""
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
        for kind in ("Versions", "DeleteMarkers"):
            for version in page.get(kind, []):
                s3.delete_object(Bucket=bucket, Key=version["Key"], VersionId=version["VersionId"])
    s3.delete_bucket(Bucket=bucket)
