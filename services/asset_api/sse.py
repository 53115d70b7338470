"""Server-Sent Events as bytes, and the answer that sends them for as long as somebody listens."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

MEDIA_TYPE = "text/event-stream"
BEAT = b": alive\n\n"
"""A comment: it keeps proxies from giving up, and clients do not see it."""
_HEADERS = {
    "Cache-Control": "no-store",
    # nginx and those who follow it would else keep events back until a buffer is full.
    "X-Accel-Buffering": "no",
}


def message(data: bytes | Mapping[str, Any], *, event_id: str | None = None, event: str | None = None) -> bytes:
    """One event. ``data`` is JSON, which has no line break in it; ``event`` is left out for the usual kind."""
    body = data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":")).encode()
    lines = [b"data: " + body]
    if event is not None:
        lines.insert(0, b"event: " + event.encode())
    if event_id is not None:
        lines.insert(0, b"id: " + event_id.encode())
    return b"\n".join(lines) + b"\n\n"


def mark(event_id: str) -> bytes:
    """An id without data: a client notes it as its Last-Event-ID and dispatches nothing."""
    return b"id: " + event_id.encode() + b"\n\n"


def retry(milliseconds: int) -> bytes:
    """How long a client waits before it connects again."""
    return b"retry: %d\n\n" % milliseconds


class EventStream(Response):
    """Sends what ``chunks`` gives until it ends, the client goes away, or a chunk cannot be sent in time.

    ``left`` is called at the end, however it comes.
    """

    media_type = MEDIA_TYPE

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        left: Callable[[], None],
        send_seconds: float = 30.0,
        status_code: int = 200,  # FastAPI reads it from here for its description
    ) -> None:
        super().__init__(status_code=status_code, headers=_HEADERS)
        del self.headers["content-length"]
        self._chunks = chunks
        self._left = left
        self._send_seconds = send_seconds

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._left()
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            await self._chunks.aclose()
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        # A client that takes nothing is given up; its next request goes on where this one ends.
        with contextlib.suppress(TimeoutError):
            async for chunk in self._chunks:
                async with asyncio.timeout(self._send_seconds):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            async with asyncio.timeout(self._send_seconds):
                await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
