"""Routes run without FastAPI where it has nothing to do, and by FastAPI where it has."""

import asyncio
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse, Response

from asset_api import problems
from asset_api.auth import Bearer, Caller, Scope, SecretKey, Tokens
from asset_api.direct import Api, Route
from darkroom.runtime.tokens import AUDIENCE, ISSUER, mint

SECRET = "unit-test-secret-of-more-than-32-bytes"


def asked(app: FastAPI, path: str, *, method: str = "GET", **options: Any) -> httpx.Response:
    async def once() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://api") as client:
            return await client.request(method, path, **options)

    return asyncio.run(once())


@pytest.fixture
def small() -> FastAPI:
    """Each route answers what it was given, and whether FastAPI is around it."""
    tokens = Tokens(keys=SecretKey(SECRET), audience=AUDIENCE, issuer=ISSUER, leeway_seconds=0)
    reader = Bearer(tokens, scope=Scope.READ)
    router = APIRouter(route_class=Route)

    def told(request: Request, **given: object) -> Response:
        scope = request.scope
        return JSONResponse({**given, "by_fastapi": "fastapi_inner_astack" in scope, "by_router": "router" in scope})

    @router.get("/of/{name}")
    async def direct(name: str, request: Request, caller: Annotated[Caller, Depends(reader)]) -> Response:
        return told(request, name=name, owner=caller.owner_id)

    @router.get("/of/me")
    async def never(request: Request) -> Response:
        return told(request, never=True)

    @router.get("/plain")
    async def plain(request: Request) -> Response:
        return told(request, route=request.scope["route"].path)

    @router.get("/query/{name}")
    async def with_query(
        name: str, request: Request, caller: Annotated[Caller, Depends(reader)], limit: Annotated[int, Query(ge=1)] = 5
    ) -> Response:
        return told(request, name=name, owner=caller.owner_id, limit=limit)

    @router.get("/number/{number}")
    async def with_number(number: int, request: Request) -> Response:
        return told(request, number=number)

    @router.get("/text")
    async def with_text_of_the_query(request: Request, name: str) -> Response:
        return told(request, name=name)

    @router.get("/dictionary")
    async def dictionary() -> dict[str, str]:
        return {"status": "ok"}

    made = Api(telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False})
    problems.install(made)
    made.include(router)
    return made


@pytest.fixture
def headers() -> dict[str, str]:
    return {"Authorization": f"Bearer {mint(SECRET, owner='owner-1', scopes=[Scope.READ])}"}


def test_an_endpoint_gets_request_path_and_caller_without_fastapi(small: FastAPI, headers: dict[str, str]) -> None:
    by = {"by_fastapi": False, "by_router": True}
    assert asked(small, "/of/a%20b", headers=headers).json() == {"name": "a b", "owner": "owner-1", **by}


def test_a_path_without_parameters_is_looked_up_unless_another_route_comes_first(
    small: FastAPI, headers: dict[str, str]
) -> None:
    assert asked(small, "/plain").json() == {"route": "/plain", "by_fastapi": False, "by_router": False}
    assert asked(small, "/plain?and=more").json()["by_router"] is False
    assert asked(small, "/of/me", headers=headers).json()["name"] == "me"
    assert asked(small, "/plain", method="POST").status_code == 405


def test_without_a_caller_it_is_not_called(small: FastAPI) -> None:
    answer = asked(small, "/of/a")
    assert (answer.status_code, answer.json()["type"]) == (401, "urn:darkroom:problem:unauthenticated")


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/query/a", {"name": "a", "owner": "owner-1", "limit": 5, "by_fastapi": True, "by_router": True}),
        ("/query/a?limit=7", {"name": "a", "owner": "owner-1", "limit": 7, "by_fastapi": True, "by_router": True}),
        ("/number/4", {"number": 4, "by_fastapi": True, "by_router": True}),
        ("/text?name=b", {"name": "b", "by_fastapi": True, "by_router": True}),
        ("/dictionary", {"status": "ok"}),
    ],
)
def test_whatever_takes_more_is_run_by_fastapi(
    small: FastAPI, headers: dict[str, str], path: str, told: dict[str, object]
) -> None:
    assert asked(small, path, headers=headers).json() == told


@pytest.mark.parametrize("path", ["/query/a?limit=0", "/number/x", "/text"])
def test_what_fastapi_refuses_is_a_problem(small: FastAPI, headers: dict[str, str], path: str) -> None:
    answer = asked(small, path, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:darkroom:problem:invalid-request")


def test_it_is_described_as_fastapi_does(small: FastAPI) -> None:
    theirs = FastAPI()
    for route in small.router.routes:
        if isinstance(route, APIRoute):
            theirs.add_api_route(route.path, route.endpoint)
    assert small.openapi() == theirs.openapi()


def test_what_is_asked_for_most_is_run_directly(app: FastAPI) -> None:
    direct = {
        (method, route.path)
        for route in app.routes
        if isinstance(route, Route) and route.direct
        for method in route.methods or ()
    }
    assert direct >= {("POST", "/assets"), ("GET", "/assets/{asset_id}"), ("DELETE", "/assets/{asset_id}")}
