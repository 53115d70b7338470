"""The tests' servers as containers, by testcontainers: for machines with Docker (or podman's socket in its place).

They share the host's network and listen on 127.0.0.1 alone: so each is reached by one address from everywhere, as a
replica set's members, a broker's listeners and the endpoint's functions need it.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from testcontainers.core.container import DockerContainer

from darkroom.local.aws import require_endpoint
from darkroom.local.kafka import require_broker
from darkroom.local.mongod import require_replica_set
from darkroom.local.ports import free_ports
from darkroom.setup.prepare import initiate
from darkroom.setup.wait import Need, await_all

HOST = "127.0.0.1"
SECONDS = 120.0
"""For a server to answer, once its image is there."""
MONGO_IMAGE_VARIABLE = "DARKROOM_TEST_MONGO_IMAGE"
KAFKA_IMAGE_VARIABLE = "DARKROOM_TEST_KAFKA_IMAGE"
AWS_IMAGE_VARIABLE = "DARKROOM_TEST_AWS_IMAGE"
IMAGES = {
    "mongo": (MONGO_IMAGE_VARIABLE, "docker.io/library/mongo:8.0"),
    "kafka": (KAFKA_IMAGE_VARIABLE, "docker.io/apache/kafka:4.4.0"),
    "aws": (AWS_IMAGE_VARIABLE, "docker.io/ministackorg/ministack:full"),
}
"""By kind of server: the variable that names another image, and the image."""
_COMPOSE_PROPERTIES = Path(__file__).parents[2] / "deploy" / "compose" / "server.properties"


class ContainerServers:
    """Starts servers in containers and removes them again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Any] = []

    def stop(self) -> None:
        """Remove the containers with their data."""
        while self._started:
            self._started.pop().stop()

    def start_mongo(self) -> str:
        """A replica set of one member that accepts failCommand; gives its URL."""
        (port,) = free_ports(1)
        parameters = ["enableTestCommands=1", "transactionLifetimeLimitSeconds=15"]
        command = ["mongod", "--replSet", "rs0", "--bind_ip", HOST, "--port", str(port)]
        for parameter in parameters:
            command += ["--setParameter", parameter]
        self._run("mongo", command=command)
        url = f"mongodb://{HOST}:{port}/?replicaSet=rs0"
        self._await("mongod", lambda: initiate(url))
        self._await("the replica set", lambda: require_replica_set(url))
        return url

    def start_kafka(self) -> str:
        """One broker, set up as in deploy/compose.yaml but for its addresses; gives where it listens."""
        port, controller = free_ports(2)
        text = _COMPOSE_PROPERTIES.read_text(encoding="utf-8")
        for there, here in (
            ("controller.quorum.voters=1@kafka:9093", f"controller.quorum.voters=1@{HOST}:{controller}"),
            ("PLAINTEXT://:9092,CONTROLLER://:9093", f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}"),
            ("PLAINTEXT://kafka:9092", f"PLAINTEXT://{HOST}:{port}"),
        ):
            assert there in text, f"{_COMPOSE_PROPERTIES.name} has no {there}"
            text = text.replace(there, here)
        config = self._folder / "kafka-config"
        config.mkdir(parents=True)
        (config / "server.properties").write_text(text, encoding="utf-8")
        self._run("kafka", volume=(str(config), "/mnt/shared/config", "ro"))
        self._await("Kafka", lambda: require_broker(f"{HOST}:{port}"))
        return f"{HOST}:{port}"

    def start_aws(self) -> str:
        """S3, SQS and Lambda; gives the endpoint's address."""
        (port,) = free_ports(1)
        self._run("aws", environment={"GATEWAY_PORT": str(port), "BIND_HOST": HOST})
        self._await("the AWS endpoint", lambda: require_endpoint(f"http://{HOST}:{port}"))
        return f"http://{HOST}:{port}"

    def _run(
        self,
        kind: str,
        *,
        command: list[str] | None = None,
        environment: Mapping[str, str] | None = None,
        volume: tuple[str, str, str] | None = None,
    ) -> None:
        variable, image = IMAGES[kind]
        container = DockerContainer(
            os.environ.get(variable, image),
            env=dict(environment or {}),
            volumes=[volume] if volume else None,
            network_mode="host",
        )
        if command is not None:
            container = container.with_command(command)
        self._started.append(container.start())

    def _await(self, what: str, answers: Callable[[], None]) -> None:
        await_all([Need(what, answers)], seconds=SECONDS)
