"""What comes before a request is bounded: how much of it there is, and how long it takes."""

import json
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import pytest

from asset_api.connection import MAX_HEAD_BYTES
from support.eventually import eventually
from support.scrape import scrape
from support.sockets import read_all

Api = Any
Connect = Callable[[], socket.socket]
MUCH = 64 * 2**20
"""Bytes: far more than what the buffers on the way hold."""
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: api\r\n"


@pytest.fixture(scope="module")
def hasty(start_api: Callable[..., Api]) -> Api:
    """An API that waits for a head for a second."""
    return start_api(DARKROOM_BODY_SECONDS="1")


@pytest.fixture
def connect(hasty: Api) -> Iterator[Connect]:
    address = urlsplit(hasty.url)
    opened: list[socket.socket] = []

    def one() -> socket.socket:
        opened.append(socket.create_connection((address.hostname, address.port), timeout=30))
        return opened[-1]

    yield one
    for connection in opened:
        connection.close()


@pytest.fixture
def listeners(hasty: Api) -> Callable[[], int]:
    """How many streams are open."""
    port = next(int(event["health_port"]) for event in hasty.events() if event["event"] == "api_started")
    return lambda: int(scrape(port).value("darkroom_api_stream_listeners"))


def pour(connection: socket.socket, part: bytes) -> None:
    """Send it over and over, much of it."""
    for _ in range(MUCH // 65536):
        connection.sendall(part * (65536 // len(part)))


def problem(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    told = json.loads(body)
    assert head.startswith(b"HTTP/1.1 %d %s\r\n" % (told["status"], HTTPStatus(told["status"]).phrase.encode()))
    assert fields[b"connection"] == b"close"
    assert fields[b"x-request-id"].decode() == told["request_id"]
    assert fields[b"date"].endswith(b"gmt")
    return told["status"], told["type"].removeprefix("urn:darkroom:problem:")


@pytest.mark.parametrize(
    "begun",
    [
        pytest.param(b"GET /", id="line"),
        pytest.param(HEALTH + b"X: ", id="field"),
        pytest.param(
            b"POST /assets HTTP/1.1\r\nHost: api\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX: ", id="trailer"
        ),
    ],
)
def test_what_never_ends_is_cut_off(hasty: Api, connect: Connect, begun: bytes) -> None:
    connection = connect()
    connection.sendall(begun)
    with pytest.raises(ConnectionError):
        pour(connection, b"a")
    assert hasty.http.get("/healthz").status_code == 200


def test_many_fields_are_as_much_as_a_large_one(connect: Connect) -> None:
    connection = connect()
    connection.sendall(HEALTH)
    with pytest.raises(ConnectionError):
        pour(connection, b"X: a\r\n")


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_head_that_is_too_large_is_refused_in_however_many_pieces_it_comes(connect: Connect, pieces: int) -> None:
    connection = connect()
    head = HEALTH + b"X: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n"
    step = len(head) // pieces + 1
    for at in range(0, len(head), step):
        connection.sendall(head[at : at + step])
    assert problem(read_all(connection)) == (431, "head-too-large")


def test_a_large_head_that_is_not_too_large_is_served(connect: Connect) -> None:
    connection = connect()
    for _ in range(3):
        connection.sendall(HEALTH + b"X: " + b"a" * (MAX_HEAD_BYTES - 500) + b"\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_head_that_does_not_come_in_time_is_refused_and_silence_is_ended(connect: Connect) -> None:
    silent, served, slow, slow_again = connect(), connect(), connect(), connect()
    for connection in (served, slow_again):
        connection.sendall(HEALTH + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    slow.sendall(b"GET /healthz HT")
    slow_again.sendall(HEALTH)
    assert problem(read_all(slow)) == (408, "head-timeout")
    assert problem(read_all(slow_again)) == (408, "head-timeout")
    assert read_all(silent) == b""
    # By now as much time has passed for this one, which owes nothing.
    served.sendall(HEALTH + b"\r\n")
    assert served.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_what_is_no_http_is_a_problem_too(connect: Connect) -> None:
    connection = connect()
    connection.sendall(b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
    assert problem(read_all(connection)) == (400, "bad-request")


def test_a_body_that_breaks_http_is_a_problem_too(hasty: Api, connect: Connect) -> None:
    connection = connect()
    head = f"POST /assets HTTP/1.1\r\nHost: api\r\nAuthorization: {hasty.headers()['Authorization']}\r\n"
    fields = "Idempotency-Key: broken\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection.sendall(head.encode() + fields.encode() + b"1\r\n{\r\n")
    connection.sendall(b"no length\r\n")
    assert problem(read_all(connection)) == (400, "bad-request")


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET /healthz HTTP/1.1\r\n", id="no-host"),
        pytest.param(HEALTH + b"Host: other\r\n", id="two-hosts"),
        pytest.param(HEALTH + b"Transfer-Encoding: gzip, chunked\r\n", id="coding"),
        pytest.param(HEALTH + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", id="two-codings"),
    ],
)
def test_a_head_that_a_proxy_may_understand_otherwise_is_refused(hasty: Api, connect: Connect, head: bytes) -> None:
    connection = connect()
    connection.sendall(head + b"\r\n")
    answer = read_all(connection)
    assert problem(answer) == (400, "bad-request")
    told = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert "Send" in told["detail"], "what to do"
    line = next(event for event in hasty.events() if event.get("request_id") == told["request_id"])
    assert (line["event"], line["status"], line["reason"]) == ("request_refused", 400, told["detail"])


def test_without_a_host_http_1_0_is_served(connect: Connect) -> None:
    connection = connect()
    connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert read_all(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\r\n\r\n", b"GET /healthz HTTP/1.1\r\n\r\n"], ids=["bytes", "host"]
)
def test_what_follows_a_request_and_is_none_takes_no_answer_away(
    hasty: Api, connect: Connect, garbage: bytes, *, together: bool
) -> None:
    connection = connect()
    body = json.dumps({"filename": "a.jpg", "content_type": "image/jpeg", "size": 4}).encode()
    head = (
        f"POST /assets HTTP/1.1\r\nHost: api\r\nAuthorization: {hasty.headers()['Authorization']}\r\n"
        f"Idempotency-Key: {uuid.uuid4()}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    for part in [head + body + garbage] if together else [head + body, garbage]:
        connection.sendall(part)
    answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 201 ")
    assert b'"asset_id"' in answer


def test_a_body_that_is_announced_to_be_too_large_is_not_waited_for(hasty: Api, connect: Connect) -> None:
    connection = connect()
    head = f"POST /assets HTTP/1.1\r\nHost: api\r\nAuthorization: {hasty.headers()['Authorization']}\r\n"
    fields = f"Idempotency-Key: large\r\nContent-Type: application/json\r\nContent-Length: {10**12}\r\n\r\n"
    connection.sendall(head.encode() + fields.encode() + b"{")
    told = connection.recv(65536)
    assert told.startswith(b"HTTP/1.1 413 ")
    assert b"urn:darkroom:problem:body-too-large" in told


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_body_in_pieces_is_read_and_one_that_does_not_come_in_time_is_refused(
    hasty: Api, connect: Connect, parts: int
) -> None:
    body = json.dumps({"filename": "a.jpg", "content_type": "image/jpeg", "size": 4}).encode()
    head = (
        f"POST /assets HTTP/1.1\r\nHost: api\r\nAuthorization: {hasty.headers()['Authorization']}\r\n"
        f"Idempotency-Key: pieces-{parts}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    pieces = [body[len(body) * part // parts : len(body) * (part + 1) // parts] for part in range(parts)]
    whole, late = connect(), connect()
    for connection in (whole, late):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    whole.sendall(head + pieces[0])
    for piece in pieces[1:]:
        whole.sendall(piece)
    assert whole.recv(65536).startswith(b"HTTP/1.1 201 ")
    late.sendall(head + b"".join(pieces)[:-1])
    told = late.recv(65536)
    assert told.startswith(b"HTTP/1.1 408 ")
    assert b"urn:darkroom:problem:body-timeout" in told


def test_a_stream_ends_with_its_client_also_when_another_request_waits_behind_it(
    hasty: Api, connect: Connect, listeners: Callable[[], int]
) -> None:
    before = listeners()
    head = f"GET /assets/stream HTTP/1.1\r\nHost: a\r\nAuthorization: {hasty.headers()['Authorization']}\r\n\r\n"
    connections = [connect() for _ in range(3)]
    for connection in connections:
        connection.sendall(head.encode() + HEALTH + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    eventually(lambda: listeners() == before + 3, deadline=10, what="listeners")
    for connection in connections:
        connection.close()
    eventually(lambda: listeners() == before, deadline=10, what="their end")


def test_an_upgrade_with_a_body_is_refused_and_nothing_of_it_is_a_request(connect: Connect) -> None:
    connection, hidden = connect(), HEALTH + b"\r\n"
    head = b"POST /assets HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n"
    connection.sendall(head % len(hidden) + hidden)
    answer = read_all(connection)
    assert problem(answer) == (400, "bad-request")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param((HEALTH + b"\r\n", b"\r\n"), id="line"),
        pytest.param((HEALTH + b"Content-Length: 1000\r\n\r\n", b"a"), id="body"),
        pytest.param((b"POST /assets HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n", b"a"), id="refused"),
    ],
)
def test_what_comes_behind_an_answer_and_is_no_request_keeps_no_connection(
    connect: Connect, rest: tuple[bytes, bytes]
) -> None:
    connection = connect()
    connection.sendall(rest[0])
    assert connection.recv(65536).startswith(b"HTTP/1.1 ")
    connection.sendall(rest[1])
    read_all(connection)  # ends: by the connection's end


def test_fields_behind_a_body_are_none_of_the_heads(hasty: Api, connect: Connect) -> None:
    connection = connect()
    fields = f"Authorization: {hasty.headers()['Authorization']}\r\nIdempotency-Key: trailer\r\n"
    body = json.dumps({"filename": "a.jpg", "content_type": "image/jpeg", "size": 4}).encode()
    head = b"POST /assets HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection.sendall(head + b"%x\r\n%s\r\n0\r\n" % (len(body), body) + fields.encode() + b"\r\n")
    assert connection.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_half_a_request_behind_a_stream_does_not_end_the_stream(hasty: Api, start_api: Callable[..., Api]) -> None:
    heartbeats = start_api(DARKROOM_BODY_SECONDS="0.2", DARKROOM_STREAM_HEARTBEAT_SECONDS="1")
    address = urlsplit(heartbeats.url)
    with closing(socket.create_connection((address.hostname, address.port), timeout=30)) as connection:
        token = hasty.headers()["Authorization"]
        connection.sendall(f"GET /assets/stream HTTP/1.1\r\nHost: a\r\nAuthorization: {token}\r\n\r\nGET /x".encode())
        heard = b""

        def three_heartbeats() -> bool:
            nonlocal heard
            part = connection.recv(65536)
            assert part, "closed"
            heard += part
            return heard.count(b": alive") >= 3

        eventually(three_heartbeats, deadline=30, what="heartbeats")


def test_an_upgrade_is_a_plain_request_and_nobody_is_advised_to_install_anything(hasty: Api, connect: Connect) -> None:
    connection = connect()
    connection.sendall(HEALTH + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n")
    assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert not [line for line in hasty.log.read_text().splitlines() if "websocket" in line.lower()]
