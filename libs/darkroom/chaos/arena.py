"""Where a run takes place: clusters of servers, several of every service, and a proxy between processors and S3."""

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from darkroom.chaos.proxy import FaultyProxy
from darkroom.local.mongod import MongoReplicaSet
from darkroom.local.processes import SupervisedProcess
from darkroom.local.servers import AWS_VARIABLE, Servers, start_servers
from darkroom.local.stack import Stack, start_stack
from darkroom.ops.topics import Offsets
from darkroom.runtime.mongo import Db, connect
from darkroom.runtime.s3 import s3_client

GROUP = "darkroom.processor"
DATABASE = "chaos"
MONGO_MEMBERS = 3
APIS = 2
PROCESSORS = 3
RELAYS = 3
SETTINGS = {
    # What is registered here in a minute is no frontend's.
    "DARKROOM_REGISTRATIONS_PER_MINUTE": "1000000",
    "DARKROOM_UPLOADING_LIMIT": "1000000",
    # Short, so that takeovers come by the dozen.
    "DARKROOM_LEASE_SECONDS": "3",
    "DARKROOM_RELAY_LEASE_SECONDS": "3",
    "DARKROOM_BACKOFF_SECONDS": "2",
    # A kill counts as an attempt, and here kills are the weather: they alone must not use an asset's attempts up.
    "DARKROOM_MAX_ATTEMPTS": "50",
    "DARKROOM_PROCESSOR_DECODERS": "1",
    "DARKROOM_PROCESSOR_SLOTS": "4",
    "DARKROOM_PROCESSOR_GROUP": GROUP,
}
FUNCTION_SECONDS = 5
VISIBILITY_SECONDS = 10


@dataclass(frozen=True)
class Arena:
    """Everything that runs, and clients to look at it with."""

    servers: Servers
    stack: Stack
    proxy: FaultyProxy
    db: Db
    sqs: Any
    s3: Any

    @property
    def mongo(self) -> MongoReplicaSet:
        """The replica set, which is always started here."""
        if self.servers.mongo is None:
            raise AssertionError("chaos never uses somebody else's MongoDB")
        return self.servers.mongo

    @property
    def brokers(self) -> tuple[SupervisedProcess, ...]:
        """The brokers, which are always started here."""
        if self.servers.kafka is None:
            raise AssertionError("chaos never uses somebody else's Kafka")
        return self.servers.kafka.brokers

    @property
    def aws(self) -> SupervisedProcess:
        """The AWS endpoint, which is always started here."""
        if self.servers.aws is None:
            raise AssertionError("chaos never uses somebody else's AWS account")
        return self.servers.aws.process

    @property
    def processors(self) -> tuple[SupervisedProcess, ...]:
        """The processors that always run."""
        return self.stack.services["processor"][:PROCESSORS]

    @property
    def spare_processor(self) -> SupervisedProcess:
        """One more, which runs now and then."""
        return self.stack.services["processor"][PROCESSORS]

    @property
    def lasting(self) -> tuple[SupervisedProcess, ...]:
        """Every process that must run unless a fault has ended it."""
        services = [process for processes in self.stack.services.values() for process in processes]
        return (*self.servers.processes, *(process for process in services if process is not self.spare_processor))

    def lag(self) -> int:
        """How many records of ``assets.uploaded`` the processors have not committed.

        Raises:
            KafkaException: no broker answers.

        """
        topic = self.stack.topics.uploaded
        with Offsets(self.servers.kafka_bootstrap, group=GROUP) as offsets:
            ends, committed = offsets.ends([topic]), offsets.committed(topic)
        return sum(end - committed.get(place, 0) for place, end in ends.items())


@contextlib.contextmanager
def start_arena(data_dir: Path, *, brokers: int, seed: int) -> Iterator[Arena]:
    """Start everything and end it. No server of the user's is ever used. Raises LocalServerError."""
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(
            start_servers(data_dir / "servers", mongo_members=MONGO_MEMBERS, brokers=brokers, environment={})
        )
        chance = random.Random(seed)  # noqa: S311 -- which requests meet trouble
        proxy = stack.enter_context(FaultyProxy(servers.aws_endpoint_url, chance=chance))
        credentials = servers.environment()
        session = boto3.session.Session(
            aws_access_key_id=credentials["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=credentials["AWS_SECRET_ACCESS_KEY"],
            region_name=servers.aws_region,
        )
        running = stack.enter_context(
            start_stack(
                data_dir / "services",
                database=DATABASE,
                stack_name="chaos",
                apis=APIS,
                processors=PROCESSORS + 1,
                relays=RELAYS,
                settings=servers.environment() | SETTINGS,
                service_settings={"processor": {AWS_VARIABLE: proxy.url}},
                function_timeout=FUNCTION_SECONDS,
                queue_visibility=VISIBILITY_SECONDS,
                environment=servers.environment(),
                session=session,
            )
        )
        client = stack.enter_context(connect(servers.mongo_url, appname="darkroom-chaos"))
        patient = Config(retries={"mode": "standard", "total_max_attempts": 2}, connect_timeout=2, read_timeout=10)
        sqs = session.client("sqs", endpoint_url=servers.aws_endpoint_url, config=patient)
        stack.callback(sqs.close)
        s3 = s3_client(endpoint_url=servers.aws_endpoint_url, session=session)
        stack.callback(s3.close)
        arena = Arena(servers, running, proxy, client[DATABASE], sqs, s3)
        arena.spare_processor.stop()
        yield arena
