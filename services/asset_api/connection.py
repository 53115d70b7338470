"""A client's connection: uvicorn's, with bounds for what comes before a request and answers that leave in one piece."""

import asyncio
import uuid
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, cast

import structlog
from starlette.types import Receive
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from asset_api.problems import Problem, Problems, to_response

log = structlog.get_logger()

MAX_HEAD_BYTES = 64 * 1024
"""Of a request's line and header fields, and of what else is around its body."""
LARGEST = 64 * 1024
"""Bytes. More is not gathered: what is sent without a pause in between must come to where the network slows it down."""


class GatheringTransport:
    """A transport that writes once a turn of the event loop what was written to it in that turn."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._call_soon = asyncio.get_running_loop().call_soon
        self._gathered: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        """See ``asyncio.Transport``."""
        if not self._gathered:
            self._call_soon(self._flush)
        self._gathered.append(data)
        self._size += len(data)
        if self._size > LARGEST:
            self._flush()

    def close(self) -> None:
        """See ``asyncio.Transport``: what was written is sent before."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        gathered, self._gathered, self._size = self._gathered, [], 0
        # The client may have gone away since.
        if gathered and not self._transport.is_closing():
            self._transport.write(b"".join(gathered))


class Connection(HttpToolsProtocol):
    """Uvicorn's faster protocol, which by itself keeps whatever comes as a header, however much and for how long.

    A head must have come within ``head_seconds``, and so must the first one of a connection.
    """

    head_seconds = 10.0

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._in_head = True
        self._in_body = False
        self._received = 0
        self._late: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None
        self._refusal: Problem | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        super().connection_made(cast("asyncio.Transport", GatheringTransport(cast("asyncio.Transport", transport))))
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._wait_no_more()
        super().connection_lost(exc)
        # Uvicorn tells the latest request alone; while that waits for its turn another one runs, perhaps for ever.
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        self._received += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._received > MAX_HEAD_BYTES:
            self._refuse(_too_large())
        elif self._answering() and not self._in_head:
            self._wait_no_more()
        elif self._late is None:
            # Also for what comes behind an answer and is no request: the rest of a body that nobody reads.
            self._expect_head()

    def on_message_begin(self) -> None:
        """Of the parser: a request's first byte."""
        super().on_message_begin()
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of the parser: a field. Those behind a body are none of the head's, and must not become any (RFC 9110)."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Of the parser: the head is there."""
        # Here as well, so that it makes no difference in how many pieces it came.
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refusal = _too_large()
            raise ValueError("the head is too large")  # the parser ends by it, and uvicorn calls send_400_response
        if fault := _fault(self.headers, version=self.parser.get_http_version(), upgrade=self.parser.should_upgrade()):
            self._refusal = Problem(Problems.BAD_REQUEST, fault)
            raise ValueError(fault)
        self._in_head, self._in_body = False, True
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Of uvicorn: a request's turn has come."""
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """Of the parser: a part of the body, which whoever reads it bounds."""
        self._received -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Of the parser: the request is there."""
        self._received = 0
        self._in_body = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Of uvicorn, for what is no HTTP: its answer, but as a problem."""
        if self._answering() and not self._in_body:
            # The request before this is whole, and its answer on the way: that is the last one of the connection.
            self.cycle.keep_alive = False
        else:
            self._refuse(self._refusal or Problem(Problems.BAD_REQUEST, msg))

    def _unsupported_upgrade_warning(self) -> None:
        """Of uvicorn, which would advise to install what speaks WebSocket. Nothing here does: it is a plain request."""

    def _expect_head(self) -> None:
        self._late = self.loop.call_later(self.head_seconds / 2, self._half_late)

    def _half_late(self) -> None:
        # In two steps: when it was this process that stood still, what has come meanwhile is read between them.
        self._late = self.loop.call_later(self.head_seconds / 2, self._too_late)

    def _too_late(self) -> None:
        if self._answering():
            self._expect_head()  # what is behind it has its time when that is done
        elif self._received == 0:
            self.transport.close()  # nothing was asked
        else:
            detail = f"The head did not arrive within {self.head_seconds:g} seconds."
            self._refuse(Problem(Problems.HEAD_TIMEOUT, detail))

    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _wait_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse(self, problem: Problem) -> None:
        """End the connection. The client is told why, unless that would be taken for another request's answer, or for a
        part of one."""
        self._wait_no_more()
        if not self._answering() or not (self._in_head or self.cycle.response_started):
            request_id = str(uuid.uuid4())
            answer = to_response(problem, request_id=request_id)
            status = HTTPStatus(answer.status_code)
            fields = [
                *self.server_state.default_headers,
                *answer.raw_headers,
                (b"x-request-id", request_id.encode()),
                (b"connection", b"close"),
            ]
            head = [f"HTTP/1.1 {status.value} {status.phrase}".encode(), *(b": ".join(field) for field in fields)]
            self.transport.write(b"\r\n".join(head) + b"\r\n\r\n" + bytes(answer.body))
            log.info("request_refused", request_id=request_id, status=status.value, reason=problem.detail)
        self.transport.close()


def connection(*, head_seconds: float) -> type[asyncio.Protocol]:
    """``Connection`` with this time, for uvicorn to make instances of."""
    return type("Connection", (Connection,), {"head_seconds": head_seconds})


def _fault(fields: Sequence[tuple[bytes, bytes]], *, version: str, upgrade: bool) -> str | None:
    """What makes others on the way, such as a proxy, understand another request than this server (RFC 9112)."""
    names = [name for name, _ in fields]
    hosts = names.count(b"host")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return "Send one Host field."
    if b"transfer-encoding" in names and [
        value.strip().lower() for name, value in fields if name == b"transfer-encoding"
    ] != [b"chunked"]:
        return "Send a body with a Content-Length, or with the Transfer-Encoding chunked and no other."
    if upgrade and any(_tells_of_a_body(*field) for field in fields):
        # The parser takes what follows for another protocol, and what comes still later for a request.
        return "Send a request that has a body without an Upgrade field."
    return None


def _tells_of_a_body(name: bytes, value: bytes) -> bool:
    return name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 ") != b"")


def has_come(receive: Receive) -> bool:
    """Whether the whole body of the request is here. False when that is not known, under another server."""
    cycle = getattr(receive, "__self__", None)
    return isinstance(cycle, RequestResponseCycle) and not cycle.more_body


def _too_large() -> Problem:
    return Problem(Problems.HEAD_TOO_LARGE, f"Line and header fields must be at most {MAX_HEAD_BYTES} bytes.")
