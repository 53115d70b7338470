"""One asset for one key, over real transactions and several processes."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from pymongo import MongoClient
from pymongo.database import Database

from asset_api.server import serve
from asset_api.settings import Settings
from darkroom.assets import fold, from_document, to_document
from darkroom.local.mongod import find_mongod
from darkroom.outbox import from_row
from darkroom.runtime.settings import load
from darkroom.runtime.start import StartRefused
from darkroom.tracing.traceparent import of_asset, trace_id
from support.eventually import eventually

Api = Any
Db = Database[dict[str, Any]]
WANTED = {"filename": "photo.jpg", "content_type": "image/jpeg", "size": 4}


async def post_all(apis: list[Api], keys: list[str], sizes: tuple[int, ...] = (4,)) -> list[httpx.Response]:
    """One POST for each key, all at once, spread over the processes."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=30, limits=limits) as client:
        posts = [
            client.post(
                f"{apis[n % len(apis)].url}/assets",
                json={**WANTED, "size": sizes[n % len(sizes)]},
                headers=apis[0].headers(key=key),
            )
            for n, key in enumerate(keys)
        ]
        return await asyncio.gather(*posts)


def test_parallel_posts_of_one_key_make_one_asset(api: Api, other_api: Api, api_db: Db) -> None:
    key = uuid.uuid4().hex
    answers = asyncio.run(post_all([api, other_api], [key] * 100))
    assert Counter(answer.status_code for answer in answers) == {201: 1, 200: 99}
    (asset_id,) = {answer.json()["asset_id"] for answer in answers}
    assert all(answer.headers["idempotency-replayed"] == "true" for answer in answers if answer.status_code == 200)
    assert api_db.assets.count_documents({"idempotency_key": key}) == 1
    assert api_db.outbox_events.count_documents({"data.idempotency_key": key}) == 1
    assert api_db.outbox_events.count_documents({"asset_id": asset_id}) == 1


@pytest.mark.parametrize("text", ["$where", "$$NOW", "$owner_id", '{"$gt":""}', '{"$where":"sleep(1000)"}'])
def test_what_would_mean_something_to_mongodb_is_text(api: Api, api_db: Db, text: str) -> None:
    owner, another = f"{text} {uuid.uuid4().hex}", uuid.uuid4().hex
    api.register(owner=another)
    first = api.register(key=text, owner=owner, filename=text, reference=text, metadata={"said": text})
    assert first.status_code == 201, first.text
    (document,) = api_db.assets.find({"owner_id": owner})
    said = [document[name] for name in ("idempotency_key", "filename", "reference")]
    assert said == [text] * 3
    assert document["metadata"] == {"said": text}
    again = api.register(key=text, owner=owner, filename=text, reference=text, metadata={"said": text})
    assert (again.status_code, again.json()["asset_id"]) == (200, document["_id"])
    headers = api.headers(owner=owner)
    listed = api.http.get("/assets", params={"reference": text}, headers=headers).json()["assets"]
    assert [asset["asset_id"] for asset in listed] == [document["_id"]]
    # Nobody's document is found by an operator, wherever it is written.
    assert api.http.get("/assets", params={"reference": '{"$ne":null}'}, headers=headers).json()["assets"] == []
    assert api.get(text, owner=owner).status_code == 404
    assert api.get("%7B%22$gt%22:%22%22%7D", owner=owner).status_code == 404


def test_many_keys_at_once_make_one_asset_each(api: Api, api_db: Db) -> None:
    keys = [uuid.uuid4().hex for _ in range(20)]
    answers = asyncio.run(post_all([api], keys * 10))
    assert Counter(answer.status_code for answer in answers) == {201: 20, 200: 180}
    assert len({answer.json()["asset_id"] for answer in answers}) == 20
    assert api_db.outbox_events.count_documents({"data.idempotency_key": {"$in": keys}}) == 20


def test_fifty_keys_of_five_hundred_posts_over_two_processes(api: Api, other_api: Api, api_db: Db) -> None:
    keys = [uuid.uuid4().hex for _ in range(50)]
    answers = asyncio.run(post_all([api, other_api], keys * 10))
    assert Counter(answer.status_code for answer in answers) == {201: 50, 200: 450}
    assert len({answer.json()["asset_id"] for answer in answers}) == 50
    assert api_db.assets.count_documents({"idempotency_key": {"$in": keys}}) == 50


def test_other_requests_with_the_key_are_422_also_while_the_first_is_under_way(api: Api, other_api: Api) -> None:
    key = uuid.uuid4().hex
    answers = asyncio.run(post_all([api, other_api], [key] * 60, sizes=(4, 4, 5)))
    (winner,) = [answer for answer in answers if answer.status_code == 201]
    for answer in answers:
        if answer.request.content == winner.request.content:
            assert answer.json()["asset_id"] == winner.json()["asset_id"]
        else:
            assert (answer.status_code, answer.json()["type"]) == (422, "urn:darkroom:problem:idempotency-key-reused")


def test_two_header_fields_are_400_also_when_they_are_equal(api: Api) -> None:
    key = uuid.uuid4().hex
    headers = [*api.headers(key=key).items(), ("idempotency-key", key)]
    answer = api.http.post("/assets", json=WANTED, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:darkroom:problem:invalid-idempotency-key")


def test_a_replay_carries_a_fresh_url_while_uploading(api: Api) -> None:
    key = uuid.uuid4().hex
    first = api.register(key=key)

    answers: list[httpx.Response] = []

    def fresh() -> bool:
        answers.append(api.register(key=key))
        return bool(answers[-1].json()["upload"]["url"] != first.json()["upload"]["url"])

    eventually(fresh, deadline=5)
    again = answers[-1]
    assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
    assert again.json()["upload"]["expires_at"] > first.json()["upload"]["expires_at"]


def test_the_document_is_the_fold_of_the_stream(api: Api, api_db: Db) -> None:
    answer = api.http.post(
        "/assets",
        json={**WANTED, "filename": "Cafe\u0301.jpg"},
        headers={**api.headers(key=uuid.uuid4().hex), "X-Request-ID": "my-request"},
    )
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/assets/{answer.json()['asset_id']}"
    document = api_db.assets.find_one({"_id": answer.json()["asset_id"]})
    stream = [from_row(row) for row in api_db.outbox_events.find({"asset_id": answer.json()["asset_id"]})]
    assert document == to_document(fold(stream))
    assert document is not None
    assert from_document(document).filename == "Café.jpg"
    assert stream[0].correlation_id == "my-request"


def test_a_key_is_bound_to_owner_case_and_request(api: Api) -> None:
    key = uuid.uuid4().hex
    first = api.register(key=key)
    assert first.status_code == 201
    for same in (api.register(key=f'"{key}"'), api.register(key=key, content_type="IMAGE/JPEG")):
        assert (same.status_code, same.json()["asset_id"]) == (200, first.json()["asset_id"])
        assert same.headers["idempotency-replayed"] == "true"
    for other in (api.register(key=key.upper()), api.register(key=key, owner="owner-2")):
        assert other.status_code == 201
        assert "idempotency-replayed" not in other.headers
    reused = api.register(key=key, size=5)
    assert (reused.status_code, reused.json()["type"]) == (422, "urn:darkroom:problem:idempotency-key-reused")


def test_another_route_does_not_know_the_key(api: Api) -> None:
    key = uuid.uuid4().hex
    first = api.register(key=key).json()["asset_id"]
    answer = api.http.post(f"/assets/{first}/restore", headers=api.headers(key=key))
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:darkroom:problem:wrong-state")
    assert api.register(key=key).json()["asset_id"] == first


def test_a_key_is_good_after_a_failure_and_a_url_ends_with_its_credentials(
    start_api: Callable[..., Api], tmp_path: Path
) -> None:
    """Credentials of a role with a minute left, asked for anew at each use, while their source fails and comes back."""
    failing = tmp_path / "failing"
    source = tmp_path / "source.sh"
    credentials = '{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "c", "Expiration": "%s"}'
    source.write_text(
        f"[ -e {failing} ] && exit 1\nprintf '{credentials}' $(date -u -d '+60 seconds' +%Y-%m-%dT%H:%M:%SZ)\n"
    )
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = /bin/sh {source}\n")
    api = start_api(AWS_CONFIG_FILE=str(config), AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None)
    key = uuid.uuid4().hex
    failing.touch()
    failed = api.register(key=key)
    assert (failed.status_code, failed.json()["type"]) == (503, "urn:darkroom:problem:unavailable")
    assert failed.headers["retry-after"]
    failing.unlink()
    again = api.register(key=key)
    assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
    ends = datetime.fromisoformat(again.json()["upload"]["expires_at"])
    assert 0 < (ends - datetime.now(UTC)).total_seconds() <= 60, "not the 15 minutes of other URLs"


def test_indexes_are_there_before_traffic(api: Api, api_db: Db) -> None:
    assets = {name: (index["key"], index.get("unique", False)) for name, index in indexes(api_db, "assets")}
    assert ([("owner_id", 1), ("idempotency_key", 1)], True) in assets.values()
    assert assets["listing"][0] == [("owner_id", 1), ("created_at", -1), ("_id", 1)]
    assert "unpublished" in dict(indexes(api_db, "outbox_events"))


def indexes(db: Db, collection: str) -> list[tuple[str, Any]]:
    return list(db[collection].index_information().items())


def test_the_log_knows_paths_but_neither_queries_nor_tokens(api: Api) -> None:
    answer = api.http.get("/assets/x?secret=in-query-7", headers=api.headers())
    mine = answer.headers["x-request-id"]
    (line,) = eventually(lambda: [event for event in api.events() if event.get("request_id") == mine])
    assert (line["event"], line["route"], line["status"]) == ("request", "/assets/{asset_id}", 404)
    log = api.log.read_text()
    assert "in-query-7" not in log
    assert answer.request.headers["authorization"].split()[1] not in log


def test_without_mongodb_it_says_when_to_come_back(other_api: Api, mongo_url: str) -> None:
    assert other_api.http.get("/readyz").status_code == 200
    key = uuid.uuid4().hex
    with MongoClient[dict[str, Any]](mongo_url) as client:
        failing = {"failCommands": ["find"], "errorCode": 11600, "appName": "darkroom-asset-api"}
        client.admin.command({"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": failing})
        try:
            answer = other_api.register(key=key)
        finally:
            client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:darkroom:problem:unavailable")
    assert int(answer.headers["retry-after"]) > 0
    # A failure is not remembered: the key works as if it had never been used.
    eventually(lambda: other_api.register(key=key).status_code == 201)


def test_an_answer_comes_in_one_piece(api: Api) -> None:
    """Head and body are one packet: each further one costs as much as signing a URL does, on both sides."""
    address = urlsplit(api.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        for _ in range(50):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: api\r\n\r\n")
            assert connection.recv(65536).endswith(b'\r\n\r\n{"status":"ok"}')


def test_sigterm_ends_it_in_order(start_api: Callable[..., Api]) -> None:
    api = start_api()
    api.process.send_signal(signal.SIGTERM)
    assert api.process.wait(timeout=10) == 0
    assert api.events()[-1]["event"] == "api_stopped"


def refused(environment: dict[str, str], **changed: str) -> str:
    """What the API says when it does not start."""
    ended = subprocess.run(
        [sys.executable, "-m", "asset_api"],
        env={**environment, **changed},
        capture_output=True,
        timeout=30,
        check=False,
    )
    told = ended.stderr.decode()
    assert ended.returncode not in (0, None), told
    assert "Traceback" not in told
    return told


def test_a_standalone_mongod_is_refused(api_environment: dict[str, str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    data = tmp_path / "data"
    data.mkdir()
    command = [str(find_mongod()), "--dbpath", str(data), "--port", str(port), "--bind_ip", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as mongod:
        try:
            told = refused(api_environment, DARKROOM_MONGO_URL=f"mongodb://127.0.0.1:{port}/")
        finally:
            mongod.terminate()
    assert "standalone mongod" in told
    assert "--replSet" in told


def test_a_port_that_is_taken_is_named(
    api_environment: dict[str, str], api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = api.url.rpartition(":")[2]
    for name, value in {**api_environment, "DARKROOM_HTTP_PORT": port}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StartRefused, match=f"port {port}"):
        asyncio.run(serve(load(Settings)))


def test_bodies_over_the_limit_are_refused_while_they_arrive(api: Api) -> None:
    def endless() -> Any:
        yield b'{"filename": "'
        for _ in range(64):
            yield b"x" * 4096

    headers = {**api.headers(key=uuid.uuid4().hex), "Content-Type": "application/json"}
    answer = api.http.post("/assets", content=endless(), headers=headers)
    assert answer.status_code == 413
    million = json.dumps({**WANTED, "filename": "x" * 1_000_000})
    assert api.http.post("/assets", content=million, headers=headers).status_code == 413


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", True),
        ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", False),
        ("nonsense", False),
        (None, False),
    ],
)
def test_an_asset_is_in_its_clients_trace_or_else_in_its_own(
    api: Api, api_db: Db, sent: str | None, kept: bool
) -> None:
    headers = api.headers(key=uuid.uuid4().hex) | ({} if sent is None else {"traceparent": sent})
    answer = api.http.post("/assets", json=WANTED, headers=headers)
    asset_id = answer.json()["asset_id"]
    expected = sent if kept else str(of_asset(asset_id))
    row = api_db.outbox_events.find_one({"asset_id": asset_id})
    document = api_db.assets.find_one({"_id": asset_id})
    assert row is not None
    assert document is not None
    assert row["traceparent"] == document["traceparent"] == expected
    (line,) = eventually(lambda: [one for one in api.events() if one.get("asset_id") == asset_id])
    assert line["trace_id"] == trace_id(expected)
    assert line["event_id"] == row["_id"]
    assert (line["event"], line["route"], line["status"]) == ("request", "/assets", 201)


def test_a_token_in_the_path_is_not_logged(api: Api) -> None:
    token = api.headers()["Authorization"].split()[1]
    for path in (f"/assets/{token}", f"/{token}", f"/assets/{uuid.uuid4()}/{token}"):
        mine = api.http.get(path, headers=api.headers()).headers["x-request-id"]
        (line,) = eventually(lambda mine=mine: [one for one in api.events() if one.get("request_id") == mine])  # type: ignore[misc]
        assert line["route"] in ("/assets/{asset_id}", "none")
    assert token not in api.log.read_text()
