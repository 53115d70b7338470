"""All servers that Darkroom needs, each started here or the user's own, in one `with` block."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from darkroom.local.aws import DEFAULT_REGION, AwsEndpoint, require_endpoint, start_aws, without_aws
from darkroom.local.disk import exclusive
from darkroom.local.kafka import KafkaCluster, require_broker, start_kafka
from darkroom.local.mongod import MongoReplicaSet, require_replica_set, start_mongod
from darkroom.local.processes import SupervisedProcess, Supervisor

MONGO_VARIABLE = "DARKROOM_MONGO_URL"
KAFKA_VARIABLE = "DARKROOM_KAFKA_BOOTSTRAP"
AWS_VARIABLE = "AWS_ENDPOINT_URL"

VARIABLES = {"MongoDB": MONGO_VARIABLE, "Kafka": KAFKA_VARIABLE, "an AWS endpoint": AWS_VARIABLE}
"""By which variable each server is the user's own."""

Started = TypeVar("Started")


@dataclass(frozen=True)
class Servers:
    """The servers of a run. `mongo`, `kafka` and `aws` are None where the user's own server is used."""

    mongo_url: str
    kafka_bootstrap: str
    aws_endpoint_url: str
    aws_region: str
    data_dir: Path
    mongo: MongoReplicaSet | None
    kafka: KafkaCluster | None
    aws: AwsEndpoint | None

    @property
    def log_dir(self) -> Path:
        """Where the servers' logs are, one file each."""
        return self.data_dir / "logs"

    @property
    def processes(self) -> tuple[SupervisedProcess, ...]:
        """Every server process that was started here."""
        found: list[SupervisedProcess] = []
        if self.mongo:
            found.extend(self.mongo.members)
        if self.kafka:
            found.extend(self.kafka.brokers)
        if self.aws:
            found.append(self.aws.process)
        return tuple(found)

    def environment(self) -> dict[str, str]:
        """What a service must find in its environment to reach these servers.

        With the local AWS endpoint this includes credentials that mean nothing, and no file of the user's is read.
        """
        settings = {
            MONGO_VARIABLE: self.mongo_url,
            KAFKA_VARIABLE: self.kafka_bootstrap,
            AWS_VARIABLE: self.aws_endpoint_url,
            "AWS_REGION": self.aws_region,
            "AWS_DEFAULT_REGION": self.aws_region,
        }
        if self.aws is not None:
            settings |= {
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_CONFIG_FILE": os.devnull,
                "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
                "AWS_EC2_METADATA_DISABLED": "true",
            }
        return settings

    def process_environment(self, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
        """The whole environment for a service: what is inherited (None: os.environ) and `environment()`.

        With the local AWS endpoint, every AWS setting of the user is left out.
        """
        inherited = os.environ if inherited is None else inherited
        return (dict(inherited) if self.aws is None else without_aws(inherited)) | self.environment()


def named_servers(environment: Mapping[str, str]) -> dict[str, str]:
    """What of ``VARIABLES`` is not started, since its variable names the user's own."""
    return {server: variable for server, variable in VARIABLES.items() if environment.get(variable)}


@contextlib.contextmanager
def start_servers(
    data_dir: Path,
    *,
    mongo_url: str | None = None,
    kafka_bootstrap: str | None = None,
    aws_endpoint_url: str | None = None,
    mongo_members: int = 1,
    brokers: int = 1,
    mongo_parameters: Mapping[str, str] | None = None,
    jar_folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Servers]:
    """Start what no address was given for, all at once, yield the servers, and end what was started.

    An address comes from the argument, else from DARKROOM_MONGO_URL, DARKROOM_KAFKA_BOOTSTRAP or AWS_ENDPOINT_URL in
    `environment` (None: os.environ). A server at an address must answer: there is no fallback to a local one. Data and
    logs are kept under `data_dir`, which one process at a time can use. Raises LocalServerError.
    """
    env = os.environ if environment is None else environment
    mongo_url = mongo_url or env.get(MONGO_VARIABLE)
    kafka_bootstrap = kafka_bootstrap or env.get(KAFKA_VARIABLE)
    aws_endpoint_url = aws_endpoint_url or env.get(AWS_VARIABLE)
    data_dir = data_dir.absolute()
    with exclusive(data_dir) as lock, Supervisor(data_dir / "logs", hold=[lock]) as supervisor:
        with ThreadPoolExecutor(max_workers=3) as pool:
            mongo = pool.submit(
                _unless_given,
                mongo_url,
                require_replica_set,
                lambda: start_mongod(
                    supervisor, data_dir / "mongo", members=mongo_members, parameters=mongo_parameters
                ),
            )
            kafka = pool.submit(
                _unless_given,
                kafka_bootstrap,
                require_broker,
                lambda: start_kafka(supervisor, data_dir / "kafka", brokers=brokers, jar_folder=jar_folder),
            )
            aws = pool.submit(
                _unless_given, aws_endpoint_url, require_endpoint, lambda: start_aws(supervisor, data_dir)
            )
        yield _servers(
            data_dir,
            mongo.result(),
            kafka.result(),
            aws.result(),
            region=env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or DEFAULT_REGION,
        )


def _unless_given(given: str | None, require: Callable[[str], None], start: Callable[[], Started]) -> Started | str:
    if given:
        require(given)
        return given
    return start()


def _servers(
    data_dir: Path,
    mongo: MongoReplicaSet | str,
    kafka: KafkaCluster | str,
    aws: AwsEndpoint | str,
    *,
    region: str,
) -> Servers:
    return Servers(
        mongo_url=mongo if isinstance(mongo, str) else mongo.url,
        kafka_bootstrap=kafka if isinstance(kafka, str) else kafka.bootstrap,
        aws_endpoint_url=aws if isinstance(aws, str) else aws.url,
        aws_region=region if isinstance(aws, str) else aws.region,
        data_dir=data_dir,
        mongo=None if isinstance(mongo, str) else mongo,
        kafka=None if isinstance(kafka, str) else kafka,
        aws=None if isinstance(aws, str) else aws,
    )
