"""The API without its servers: whatever these tests ask is decided before anything is connected."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from asset_api.app import create_app
from asset_api.settings import Settings
from darkroom.runtime.tokens import mint

SECRET = "unit-test-secret-of-more-than-32-bytes"

Ask = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def settings() -> Iterator[Settings]:
    """Settings, in an environment that is on AWS and has credentials."""
    with pytest.MonkeyPatch.context() as environment:
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
            environment.delenv(name, raising=False)
        environment.setenv("AWS_REGION", "eu-west-1")
        environment.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "example")
        given: dict[str, Any] = {
            "mongo_url": "mongodb://127.0.0.1:1/?replicaSet=rs0",
            "bucket": "pictures-of-us",
            "jwt_secret": SECRET,
            "cors_origins": "https://app.example, https://other.example",
        }
        yield Settings(**given)


@pytest.fixture(scope="module")
def app(settings: Settings) -> FastAPI:
    return create_app(settings)


@pytest.fixture
def token() -> str:
    return mint(SECRET, owner="owner-1")


@pytest.fixture
def ask(app: FastAPI) -> Ask:
    """Sends one request to the app and gives the answer."""

    def send(method: str, path: str, **options: Any) -> httpx.Response:
        async def once() -> httpx.Response:
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
                return await client.request(method, path, **options)

        return asyncio.run(once())

    return send
