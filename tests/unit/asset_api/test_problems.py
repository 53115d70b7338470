"""Every way to fail ends as a problem that tells nothing of the inside."""

import asyncio
import gzip
import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from botocore.exceptions import NoCredentialsError
from fastapi import FastAPI
from pymongo.errors import AutoReconnect, DuplicateKeyError, NetworkTimeout, PyMongoError

from asset_api import problems
from asset_api.edge import Edge
from asset_api.errors import CannotSign
from asset_api.page import FOLDER
from asset_api.problems import Problems
from asset_api.rounds import RoundBrokenOff

Ask = Callable[..., httpx.Response]
GOOD = {"filename": "photo.jpg", "content_type": "image/jpeg", "size": 1234}


def said(answer: httpx.Response) -> tuple[int, str]:
    content = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert content["status"] == answer.status_code
    assert content["request_id"] == answer.headers["x-request-id"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    return answer.status_code, content["type"].removeprefix("urn:darkroom:problem:")


def test_each_type_is_told_once() -> None:
    assert len({kind.value.type for kind in Problems}) == len(Problems)


def test_unknown_addresses_and_methods(ask: Ask) -> None:
    assert said(ask("GET", "/nope")) == (404, "not-found")
    assert said(ask("GET", "/pages/../app.py")) == (404, "not-found")
    assert said(ask("GET", "/pages/index.html")) == (404, "not-found")
    answer = ask("PUT", "/assets")
    assert said(answer) == (405, "method-not-allowed")
    assert answer.headers["allow"] == "GET, POST", "what every route at the path takes"
    assert ask("PUT", "/assets/5f0c8a4e-0000-0000-0000-000000000000").headers["allow"] == "DELETE, GET"
    for path in ("/", "/healthz", "/pages/app.js"):
        assert ask("POST", path).headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/assets%0A", "/healthz%0A", "/pages/app.js%0A", "/%0A", "/assets/x/events%0a"])
def test_a_newline_makes_another_address(ask: Ask, token: str, path: str) -> None:
    assert said(ask("GET", path, headers={"Authorization": f"Bearer {token}"})) == (404, "not-found")


@pytest.mark.parametrize(("method", "path"), [("POST", "/assets/"), ("GET", "/assets/x/events/"), ("GET", "/healthz/")])
def test_nobody_is_redirected_with_a_token_to_whatever_host_is_named(ask: Ask, method: str, path: str) -> None:
    answer = ask(method, path, headers={"Host": "elsewhere.example", "Authorization": "Bearer secret"})
    assert said(answer) == (404, "not-found")
    assert "location" not in answer.headers


@pytest.mark.parametrize("path", ["/assets/5f0c8a4e-0000-0000-0000-000000000000", "/assets/x"])
@pytest.mark.parametrize("given", [[], ["Basic eDp5"], ["Bearer"], ["Bearer "], ["Bearer x"], ["Bearer x", "Bearer y"]])
def test_without_a_token_everything_is_401(ask: Ask, path: str, given: list[str]) -> None:
    answer = ask("GET", path, headers=[("Authorization", value) for value in given])
    assert said(answer) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"].startswith('Bearer realm="darkroom"')


def test_authentication_comes_before_everything(ask: Ask) -> None:
    assert said(ask("POST", "/assets", content=b"x" * 100_000)) == (401, "unauthenticated")


@pytest.mark.parametrize(
    ("headers", "content", "expected"),
    [
        ([], json.dumps(GOOD), (400, "missing-idempotency-key")),
        ([("Idempotency-Key", "a"), ("idempotency-key", "a")], json.dumps(GOOD), (400, "invalid-idempotency-key")),
        ([("Idempotency-Key", "a b")], json.dumps(GOOD), (400, "invalid-idempotency-key")),
        ([("Idempotency-Key", "a")], "{", (400, "malformed-body")),
        ([("Idempotency-Key", "a")], b"\xff\xfe", (400, "malformed-body")),
        ([("Idempotency-Key", "a")], json.dumps({**GOOD, "size": 0}), (422, "invalid-request")),
        ([("Idempotency-Key", "a")], json.dumps({**GOOD, "\udcff": 1}), (400, "malformed-body")),
        ([("Idempotency-Key", "a")], " " * (64 * 1024 + 1), (413, "body-too-large")),
        ([("Idempotency-Key", "a"), ("Content-Type", "text/plain")], "{}", (415, "unsupported-media-type")),
        (
            [("Idempotency-Key", "a"), ("Content-Type", 'application/json; charset="utf-16"')],
            json.dumps(GOOD),
            (415, "unsupported-media-type"),
        ),
        (
            [("Idempotency-Key", "a"), ("Content-Encoding", "gzip")],
            gzip.compress(json.dumps(GOOD).encode(), mtime=0),
            (415, "unsupported-media-type"),
        ),
        (
            [("Idempotency-Key", "a"), ("Content-Type", "application/json"), ("Content-Type", "text/plain")],
            json.dumps(GOOD),
            (415, "unsupported-media-type"),
        ),
        (
            [("Idempotency-Key", "a"), ("Content-Encoding", "identity"), ("Content-Encoding", "gzip")],
            json.dumps(GOOD),
            (415, "unsupported-media-type"),
        ),
        # Refused for another reason: the media type is read.
        ([("Idempotency-Key", "a"), ("Content-Type", "Application/JSON; charset=UTF-8")], "{", (400, "malformed-body")),
        ([("Idempotency-Key", "a"), ("Content-Encoding", "identity")], "{", (400, "malformed-body")),
    ],
)
def test_a_refused_registration(
    ask: Ask, token: str, headers: list[tuple[str, str]], content: str | bytes, expected: tuple[int, str]
) -> None:
    json_type = [] if any(name == "Content-Type" for name, _ in headers) else [("Content-Type", "application/json")]
    answer = ask(
        "POST", "/assets", headers=[("Authorization", f"Bearer {token}"), *json_type, *headers], content=content
    )
    assert said(answer) == expected
    if expected[1] == "invalid-request":
        assert answer.json()["errors"][0]["field"] == "size"


def test_many_errors_are_cut(ask: Ask, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "a"}
    answer = ask("POST", "/assets", headers=headers, json={f"f{n}" * 30: n for n in range(200)})
    assert said(answer) == (422, "invalid-request")
    assert len(answer.json()["errors"]) == 20
    assert len(answer.content) < 5000


@pytest.mark.parametrize(("given", "kept"), [("abc-1.2:3", True), ("x" * 129, False), ("a b", False), ("é", False)])
def test_a_sane_request_id_is_kept(ask: Ask, given: str, *, kept: bool) -> None:
    answer = ask("GET", "/healthz", headers=[(b"X-Request-ID", given.encode())])
    assert answer.status_code == 200
    assert (answer.headers["x-request-id"] == given) is kept


def raising(error: Exception) -> httpx.Response:
    app = FastAPI()
    problems.install(app)
    app.add_middleware(Edge)

    @app.get("/")
    async def fail() -> None:
        raise error

    async def once() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://api") as client:
            return await client.get("/")

    return asyncio.run(once())


class Labelled(PyMongoError):
    def has_error_label(self, label: str) -> bool:
        return label == "TransientTransactionError"


@pytest.mark.parametrize("error", [AutoReconnect("db-host-7"), NetworkTimeout("db-host-7"), Labelled("db-host-7")])
def test_a_database_out_of_reach_is_503_and_says_when_to_come_back(error: Exception) -> None:
    answer = raising(error)
    assert said(answer) == (503, "unavailable")
    assert int(answer.headers["retry-after"]) > 0
    assert "db-host-7" not in answer.text


def test_a_round_that_was_broken_off_is_503_for_those_who_were_in_it() -> None:
    answer = raising(RoundBrokenOff("inside-7"))
    assert said(answer) == (503, "unavailable")
    assert int(answer.headers["retry-after"]) > 0
    assert "inside-7" not in answer.text


@pytest.mark.parametrize("error", [CannotSign("secret-role"), NoCredentialsError()])
def test_no_credentials_is_503(error: Exception) -> None:
    answer = raising(error)
    assert said(answer) == (503, "unavailable")
    assert "secret-role" not in answer.text


@pytest.mark.parametrize("error", [ZeroDivisionError("inside-7"), DuplicateKeyError("E11000 inside-7")])
def test_a_fault_of_ours_is_500_without_internals(error: Exception) -> None:
    answer = raising(error)
    assert said(answer) == (500, "internal")
    assert "inside-7" not in answer.text


def test_only_named_origins_may_call(ask: Ask) -> None:
    preflight: dict[str, Any] = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, idempotency-key",
    }
    allowed = ask("OPTIONS", "/assets", headers={"Origin": "https://app.example", **preflight})
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    refused = ask("OPTIONS", "/assets", headers={"Origin": "https://evil.example", **preflight})
    assert "access-control-allow-origin" not in refused.headers
    assert refused.status_code == 400
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["type"] == "urn:darkroom:problem:bad-request"
    assert "DARKROOM_CORS_ORIGINS" in refused.json()["detail"]


def test_a_page_may_send_what_the_documents_ask_for_and_read_what_errors_say(ask: Ask) -> None:
    origin = {"Origin": "https://app.example"}
    asked = "authorization,content-type,idempotency-key,if-none-match,last-event-id,traceparent,tracestate,x-request-id"
    headers = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked}
    assert ask("OPTIONS", "/assets", headers=headers).status_code == 200
    answer = ask("GET", "/assets", headers=origin)
    exposed = {name.strip().lower() for name in answer.headers["access-control-expose-headers"].split(",")}
    assert {"allow", "etag", "idempotency-replayed", "link", "location", "retry-after"} < exposed
    assert {"www-authenticate", "x-request-id"} <= exposed & set(answer.headers)


def test_the_page_lets_no_script_in_and_talks_to_s3_alone(ask: Ask) -> None:
    page = ask("GET", "/")
    policy = page.headers["content-security-policy"]
    origin = "https://pictures-of-us.s3.eu-west-1.amazonaws.com"
    assert f"connect-src 'self' {origin};" in policy
    assert f"img-src 'self' blob: {origin};" in policy
    assert "unsafe" not in policy
    assert "<script src=" in page.text
    assert "require-trusted-types-for 'script'" in policy
    named = set(re.findall(r'"/pages/([^"]+)"', page.text))
    imported = {name for file in FOLDER.glob("*.js") for name in re.findall(r'from "\./([^"]+)"', file.read_text())}
    assert named | imported == {file.name for file in FOLDER.iterdir()} - {"index.html"}
    for address in [f"/pages/{name}" for name in named | imported] + ["/favicon.ico"]:
        found = ask("GET", address)
        assert found.status_code == 200
        known = ask("GET", address, headers={"If-None-Match": found.headers["etag"]})
        assert known.status_code == 304
        # What a cache has of it goes on as this answer says (RFC 9110, 15.4.5).
        for name in ("cache-control", "content-security-policy", "content-location", "etag", "expires", "vary"):
            assert known.headers.get(name) == found.headers.get(name)
        assert known.headers["cache-control"] == "no-cache"
        tag = found.headers["etag"].removeprefix("W/")
        for odd in ('"other"', f"x{tag}", f"{tag}x", f'"other" {tag}', f'"other", x{tag}', f'"{tag}'):
            assert ask("GET", address, headers={"If-None-Match": odd}).content == found.content
        for good in (f'"other",, W/{tag} ,', f" {tag}", "*"):
            assert ask("GET", address, headers={"If-None-Match": good}).status_code == 304
        # Nobody needs a part of a few kilobytes: the whole is the right answer to any Range.
        assert ask("GET", address, headers={"Range": "bytes=zz-"}).content == found.content


@pytest.mark.parametrize("path", ["/", "/favicon.ico", "/pages/app.js", "/healthz"])
def test_what_tools_look_at_answers_head(ask: Ask, path: str) -> None:
    assert ask("HEAD", path).status_code == 200


def test_a_parameter_that_breaks_a_rule_is_named_as_it_is_sent(ask: Ask, token: str) -> None:
    answer = ask("GET", "/assets?limit=0&status=NOPE", headers={"Authorization": f"Bearer {token}"})
    assert said(answer) == (422, "invalid-request")
    assert {one["field"] for one in answer.json()["errors"]} == {"limit", "status.0"}
    assert answer.json()["detail"] == "Wrong: status.0, limit."


def test_openapi_names_every_answer(ask: Ask) -> None:
    post = ask("GET", "/openapi.json").json()["paths"]["/assets"]["post"]
    assert {"200", "201", "400", "401", "413", "422", "503"} <= set(post["responses"])
    assert post["security"]
    assert post["parameters"][0]["name"] == "Idempotency-Key"
