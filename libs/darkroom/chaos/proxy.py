"""An HTTP proxy in front of the AWS endpoint that answers as an overloaded or broken S3 would."""

import contextlib
import http.client
import random
import threading
import time
from collections.abc import Iterator
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit

from darkroom.local.ports import HOST

SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)
TRICKLE_SECONDS = 4.0
"""How long a slowed answer's body takes."""
TRICKLE_STEPS = 20
UPSTREAM_SECONDS = 60.0
HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length"})


class Trouble(StrEnum):
    """What the proxy does to a share of the requests."""

    SLOW_DOWN = "503"
    SLOW = "slow"
    CUT = "cut"


class FaultyProxy:
    """Passes requests on to ``target`` until it is told to make trouble. Use as a context manager."""

    def __init__(self, target: str, *, chance: random.Random) -> None:
        self._target = urlsplit(target)
        self._chance = chance
        self._lock = threading.Lock()
        self._trouble: Trouble | None = None
        self._share = 0.0
        self.hits = 0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = UPSTREAM_SECONDS

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError, TimeoutError):  # a client that was killed
                    super().handle_one_request()
                    return
                self.close_connection = True

            def do_GET(self) -> None:
                proxy._serve(self)

            do_PUT = do_POST = do_HEAD = do_DELETE = do_GET  # noqa: N815 -- the base class looks for these names

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- likewise
                """Requests are no news."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="faulty-proxy", daemon=True)
        self.url = f"http://{HOST}:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @contextlib.contextmanager
    def trouble(self, trouble: Trouble, *, share: float) -> Iterator[None]:
        """While the block runs, ``share`` of the requests (0 … 1) meet the trouble."""
        with self._lock:
            self._trouble, self._share = trouble, share
        try:
            yield
        finally:
            with self._lock:
                self._trouble = None

    def _next_trouble(self) -> Trouble | None:
        with self._lock:
            if self._trouble is None or self._chance.random() >= self._share:
                return None
            self.hits += 1
            return self._trouble

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        trouble = self._next_trouble()
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if trouble is Trouble.SLOW_DOWN:
            _answer(request, 503, [("Content-Type", "application/xml")], SLOW_DOWN, length=len(SLOW_DOWN))
            return
        try:
            status, headers, data, length = self._forward(request, body)
        except (OSError, http.client.HTTPException):
            request.close_connection = True  # as a server that is down would: no answer at all
            return
        if trouble is Trouble.CUT:
            # A write has happened when its answer is lost; a read ends in the middle of its bytes.
            if request.command == "GET":
                _answer(request, status, headers, data[: len(data) // 2], length=length)
            request.close_connection = True
            return
        _answer(request, status, headers, data, length=length, slowly=trouble is Trouble.SLOW)

    def _forward(
        self, request: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes, int | None]:
        connection = http.client.HTTPConnection(
            self._target.hostname or HOST, self._target.port, timeout=UPSTREAM_SECONDS
        )
        with contextlib.closing(connection):
            connection.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                # What this connection agreed on is none of the next one's business.
                if name.lower() not in ("connection", "expect"):
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            data = answer.read()
            headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in HOP_BY_HOP]
            given = answer.getheader("Content-Length")
            return answer.status, headers, data, int(given) if given is not None else len(data)


def _answer(
    request: BaseHTTPRequestHandler,
    status: int,
    headers: list[tuple[str, str]],
    data: bytes,
    *,
    length: int | None,
    slowly: bool = False,
) -> None:
    request.send_response_only(status)
    for name, value in headers:
        request.send_header(name, value)
    if length is not None and status not in (204, 304):
        request.send_header("Content-Length", str(length))
    request.end_headers()
    if not slowly:
        request.wfile.write(data)
        return
    step = max(1, len(data) // TRICKLE_STEPS)
    for start in range(0, len(data), step):
        time.sleep(TRICKLE_SECONDS / TRICKLE_STEPS)
        request.wfile.write(data[start : start + step])
