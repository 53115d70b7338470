"""What ``darkroom up`` says of what it starts, of what it does not, and of how to go on."""

import io
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from rich.console import Console

from darkroom.cli.up import announce, describe
from darkroom.contracts.topics import Topics
from darkroom.local.errors import AnotherStackError
from darkroom.local.servers import Servers
from darkroom.local.stack import Stack, start_stack

SERVERS = Servers(
    mongo_url="mongodb://me:hunter2@db/",
    kafka_bootstrap="kafka:9092",
    aws_endpoint_url="http://aws:4566",
    aws_region="us-east-1",
    data_dir=Path("data"),
    mongo=mock.Mock(),
    kafka=mock.Mock(),
    aws=mock.Mock(),
)
FIRST = {
    "DARKROOM_LOCAL_STACK": "/first/.darkroom/up-1",
    "DARKROOM_MONGO_URL": "mongodb://127.0.0.1:1/",
    "DARKROOM_KAFKA_BOOTSTRAP": "127.0.0.1:2",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:3",
}


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=80)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def stack(servers: Servers) -> Stack:
    return Stack(
        servers=servers,
        outputs=mock.Mock(bucket="uploads"),
        topics=Topics(),
        api_urls=("http://127.0.0.1:8080",),
        jwt_secret="0" * 32,
        services={},
        settings={},
        environment_file=Path("data/environment"),
    )


@pytest.mark.parametrize(
    ("environment", "starts", "named"),
    [
        ({}, "MongoDB, Kafka, an AWS endpoint and the services", None),
        (
            {"DARKROOM_KAFKA_BOOTSTRAP": "kafka:9092", "AWS_ENDPOINT_URL": ""},
            "MongoDB, an AWS endpoint and the services",
            "Kafka (DARKROOM_KAFKA_BOOTSTRAP)",
        ),
        (
            FIRST,
            "the services",
            "MongoDB (DARKROOM_MONGO_URL), Kafka (DARKROOM_KAFKA_BOOTSTRAP), an AWS endpoint (AWS_ENDPOINT_URL)",
        ),
    ],
)
def test_it_says_what_it_starts_and_which_variable_keeps_it_from_the_rest(
    console: Console, environment: dict[str, str], starts: str, named: str | None
) -> None:
    announce(console, environment)
    says = [f"Starting {starts} …", *([f"Not started, since a variable names yours: {named}."] if named else [])]
    assert printed(console).splitlines() == says


def test_a_server_that_is_not_its_own_is_called_yours(console: Console) -> None:
    describe(console, stack(replace(SERVERS, mongo=None, kafka=None, aws=None)), owner="demo")
    said = printed(console)
    for variable in ("DARKROOM_MONGO_URL", "DARKROOM_KAFKA_BOOTSTRAP", "AWS_ENDPOINT_URL"):
        assert f"yours ({variable})" in said
    assert "hunter2" not in said


def test_its_own_servers_are_nobodys_else(console: Console) -> None:
    describe(console, stack(SERVERS), owner="demo")
    assert "yours" not in printed(console)


def test_the_line_for_the_readmes_commands_is_ready_to_be_pasted(console: Console) -> None:
    describe(console, stack(SERVERS), owner="demo")
    told = dict(line.split(":", 1) for line in printed(console).splitlines())
    token = told["Token"].strip()
    assert told["By hand"].strip() == f"export API=http://127.0.0.1:8080 TOKEN={token}"


@pytest.mark.parametrize("server", ["DARKROOM_MONGO_URL", "DARKROOM_KAFKA_BOOTSTRAP", "AWS_ENDPOINT_URL"])
def test_in_the_environment_of_another_stack_nothing_is_started_over_it(tmp_path: Path, server: str) -> None:
    environment = {name: FIRST[name] for name in ("DARKROOM_LOCAL_STACK", server)}
    with (
        pytest.raises(AnotherStackError, match=f"/first/.darkroom/up-1: {server} .* unset {server}"),
        start_stack(tmp_path / "second", environment=environment),
    ):
        pass
    assert not (tmp_path / "second").exists()
