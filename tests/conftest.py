"""Fixtures for every kind of test: servers per session, and a fresh database, topics and bucket per test."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from pymongo import MongoClient
from pymongo.database import Database

from support.servers import SessionServers, aws_client, delete_topics, describe_choice, empty_and_delete_bucket

# How long an example takes says more about the machine than about the code: no deadline for one, nor for making it.
settings.register_profile("darkroom", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("darkroom")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--full`: tests that have a small size for every day run at their full one."""
    parser.addoption("--full", action="store_true", help="run at full size what is small in make test")


def pytest_report_header() -> list[str]:
    """Where each server comes from."""
    return describe_choice()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionServers]:
    """The session's servers; nothing starts until one is asked for."""
    with SessionServers(tmp_path_factory.mktemp("servers")) as started:
        yield started


@pytest.fixture(scope="session")
def mongo_url(servers: SessionServers) -> str:
    """A replica set for the session."""
    return servers.mongo_url()


@pytest.fixture(scope="session")
def kafka_bootstrap(servers: SessionServers) -> str:
    """A broker for the session."""
    return servers.kafka_bootstrap()


@pytest.fixture(scope="session")
def aws_endpoint(servers: SessionServers) -> str:
    """An AWS endpoint for the session."""
    return servers.aws_endpoint()


@pytest.fixture
def mongo_db(mongo_url: str) -> Iterator[Database[dict[str, Any]]]:
    """A fresh database, dropped afterwards."""
    with MongoClient[dict[str, Any]](mongo_url, tz_aware=True) as client:
        name = f"test_{uuid.uuid4().hex[:12]}"
        yield client[name]
        client.drop_database(name)


@pytest.fixture
def topic_names(kafka_bootstrap: str) -> Iterator[Callable[[str], str]]:
    """Turns a topic's name into one that only this test uses; such topics are deleted afterwards."""
    prefix = f"t{uuid.uuid4().hex[:12]}."
    yield lambda name: prefix + name
    delete_topics(kafka_bootstrap, prefix)


@pytest.fixture
def bucket(aws_endpoint: str) -> Iterator[str]:
    """The name of a fresh bucket, emptied and deleted afterwards."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    s3 = aws_client("s3", aws_endpoint)
    try:
        s3.create_bucket(Bucket=name)
        yield name
        empty_and_delete_bucket(s3, name)
    finally:
        s3.close()
