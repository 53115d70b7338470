"""A server of the user's own must answer and be fit; there is no fallback to a local one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from darkroom.local.aws import require_endpoint
from darkroom.local.errors import LocalServerError, NotAReplicaSetError, PortTakenError, ServerUnreachableError
from darkroom.local.kafka import require_broker
from darkroom.local.mongod import find_mongod, require_replica_set, start_mongod
from darkroom.local.ports import HOST, free_ports
from darkroom.local.processes import Supervisor
from darkroom.local.servers import start_servers
from support.sockets import talker


@pytest.mark.parametrize(
    ("require", "address", "variable"),
    [
        (require_replica_set, "mongodb://{}/?replicaSet=rs0", "DARKROOM_MONGO_URL"),
        (require_broker, "{}", "DARKROOM_KAFKA_BOOTSTRAP"),
        (require_endpoint, "http://{}", "AWS_ENDPOINT_URL"),
    ],
)
def test_an_address_that_does_not_answer_is_an_error(require: Callable[..., None], address: str, variable: str) -> None:
    (port,) = free_ports(1)
    with pytest.raises(ServerUnreachableError, match=variable):
        require(address.format(f"{HOST}:{port}"), timeout=0.3)


def test_an_address_that_is_none_is_an_error_too() -> None:
    with pytest.raises(ServerUnreachableError, match="DARKROOM_MONGO_URL"):
        require_replica_set("mongodb://127.0.0.1:99999")


@pytest.mark.parametrize(
    "address", ["http://a:x", "http://a b", "file:///etc/hostname", "http://me:hunter2@127.0.0.1:9"]
)
def test_an_endpoint_that_is_no_url_is_an_error_that_shows_no_password(address: str) -> None:
    with pytest.raises(ServerUnreachableError, match="AWS_ENDPOINT_URL") as refused:
        require_endpoint(address)
    assert "hunter2" not in str(refused.value)


def test_an_endpoint_that_speaks_something_else_is_an_error() -> None:
    with talker(b"SSH-2.0-OpenSSH_9.6\r\n") as port, pytest.raises(ServerUnreachableError, match="AWS_ENDPOINT_URL"):
        require_endpoint(f"http://{HOST}:{port}")


def test_given_servers_are_used_and_nothing_is_started(
    tmp_path: Path, mongo_url: str, kafka_bootstrap: str, aws_endpoint: str
) -> None:
    given = {
        "DARKROOM_MONGO_URL": mongo_url,
        "DARKROOM_KAFKA_BOOTSTRAP": kafka_bootstrap,
        "AWS_ENDPOINT_URL": aws_endpoint,
        "AWS_REGION": "eu-west-1",
    }
    with start_servers(tmp_path, environment=given) as servers:
        assert servers.processes == ()
        assert servers.environment() == given | {"AWS_DEFAULT_REGION": "eu-west-1"}


def test_one_wrong_address_stops_the_whole_start(tmp_path: Path, kafka_bootstrap: str, aws_endpoint: str) -> None:
    with (
        pytest.raises(LocalServerError, match="AWS_ENDPOINT_URL"),
        start_servers(tmp_path, kafka_bootstrap=kafka_bootstrap, aws_endpoint_url="nonsense", environment={}),
    ):
        pytest.fail("it started")


def test_a_standalone_mongod_is_refused_with_the_fix(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    data = tmp_path / "data"
    data.mkdir()
    argv = [str(find_mongod()), "--dbpath", str(data), "--port", str(port), "--bind_ip", HOST, "--nounixsocket"]
    with Supervisor(tmp_path / "logs") as supervisor:
        process = supervisor.prepare("standalone", argv, ready=lambda: "Waiting for connections" in process.log())
        process.start()
        with pytest.raises(NotAReplicaSetError, match=r"standalone.*--replSet rs0"):
            require_replica_set(f"mongodb://{HOST}:{port}")


def test_a_taken_port_that_was_asked_for_is_named(tmp_path: Path, mongo_url: str) -> None:
    port = int(mongo_url.split(":")[2].split("/")[0])
    with Supervisor(tmp_path / "logs") as supervisor, pytest.raises(PortTakenError, match=f"mongod: port {port}"):
        start_mongod(supervisor, tmp_path / "mongo", ports=(port,))
