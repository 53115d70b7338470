"""The API as real processes, over a real replica set and an AWS endpoint that checks signatures."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from pymongo import MongoClient
from pymongo.database import Database

from darkroom.runtime.tokens import SCOPES, mint
from support.eventually import eventually
from support.servers import aws_client, empty_and_delete_bucket

SECRET = "integration-test-secret-of-more-than-32-bytes"
OWN_AWS = "AWS_ENDPOINT_URL"


@dataclass
class Api:
    """One running process of the API."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    http: httpx.Client

    def headers(
        self, *, key: str | None = None, owner: str = "owner-1", scopes: Iterable[str] = SCOPES
    ) -> dict[str, str]:
        token = {"Authorization": f"Bearer {mint(SECRET, owner=owner, scopes=scopes)}"}
        return token if key is None else {**token, "Idempotency-Key": key}

    def register(self, *, key: str | None = None, owner: str = "owner-1", **changed: Any) -> httpx.Response:
        wanted = {"filename": "photo.jpg", "content_type": "image/jpeg", "size": 4, **changed}
        return self.http.post("/assets", json=wanted, headers=self.headers(key=key or uuid.uuid4().hex, owner=owner))

    def get(self, asset_id: str, *, owner: str = "owner-1") -> httpx.Response:
        return self.http.get(f"/assets/{asset_id}", headers=self.headers(owner=owner))

    def events(self) -> list[dict[str, Any]]:
        """What it logged."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


@pytest.fixture(scope="session")
def api_environment(mongo_url: str, aws_endpoint: str) -> Iterator[dict[str, str]]:
    """What the processes are told: a database and a bucket of their own."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    s3 = aws_client("s3", aws_endpoint)
    s3.create_bucket(Bucket=name)
    credentials = {} if os.environ.get(OWN_AWS) else {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    yield {
        **os.environ,
        **credentials,
        "AWS_REGION": s3.meta.region_name,
        "AWS_ENDPOINT_URL": aws_endpoint,
        "DARKROOM_MONGO_URL": mongo_url,
        "DARKROOM_MONGO_DATABASE": name,
        "DARKROOM_BUCKET": name,
        "DARKROOM_JWT_SECRET": SECRET,
        "DARKROOM_HTTP_PORT": "0",
    }
    empty_and_delete_bucket(s3, name)
    s3.close()
    with MongoClient[dict[str, Any]](mongo_url) as client:
        client.drop_database(name)


@pytest.fixture(scope="session")
def start_api(
    api_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Api]]:
    """Starts processes of the API, which end with the session."""
    started: list[Api] = []

    def start(**changed: str | None) -> Api:
        environment = {name: value for name, value in (api_environment | changed).items() if value is not None}
        log = tmp_path_factory.mktemp("api") / "log"
        with log.open("wb") as stderr:
            process = subprocess.Popen([sys.executable, "-m", "asset_api"], env=environment, stderr=stderr)
        api = Api("", process, log, httpx.Client())
        started.append(api)
        port = eventually(lambda: port_of(api), deadline=90, what="the API's start")
        api.url = f"http://127.0.0.1:{port}"
        api.http.close()
        api.http = httpx.Client(base_url=api.url, timeout=30)
        return api

    yield start
    for api in started:
        api.http.close()
        if api.process.poll() is None:
            api.process.send_signal(signal.SIGTERM)
    for api in started:
        try:
            api.process.wait(timeout=30)
        finally:
            api.process.kill()


def port_of(api: Api) -> int:
    assert api.process.poll() is None, api.log.read_text()
    (event,) = [event for event in api.events() if event["event"] == "api_started"]
    port: int = event["port"]
    return port


@pytest.fixture(scope="session")
def api(start_api: Callable[..., Api]) -> Api:
    return start_api()


@pytest.fixture(scope="session")
def other_api(start_api: Callable[..., Api]) -> Api:
    """A second process, which waits for MongoDB not so long."""
    return start_api(DARKROOM_MONGO_SECONDS="3")


@pytest.fixture
def api_db(api_environment: dict[str, str]) -> Iterator[Database[dict[str, Any]]]:
    """The database of the processes."""
    with MongoClient[dict[str, Any]](api_environment["DARKROOM_MONGO_URL"], tz_aware=True) as client:
        yield client[api_environment["DARKROOM_MONGO_DATABASE"]]
