"""A client of Server-Sent Events, by the rules of the HTML standard, over a bare connection."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Received:
    """One dispatched event. ``id`` is the last id at that moment."""

    event: str
    data: dict[str, Any]
    id: str


class EventSource:
    """One connection. ``last_id`` is what the next one would send as Last-Event-ID."""

    def __init__(self, url: str, headers: dict[str, str], *, last_id: str = "") -> None:
        self._url = urlsplit(url)
        self._given = headers | ({"Last-Event-ID": last_id} if last_id else {})
        self.last_id = last_id
        self.status = 0
        self.headers: dict[str, str] = {}
        self.retry: int | None = None
        self.comments = 0

    async def __aenter__(self) -> Self:
        # HTTP/1.0, so that the body comes as it is and not in chunks.
        lines = [f"GET {self._url.path} HTTP/1.0", f"Host: {self._url.netloc}"]
        lines += [f"{name}: {value}" for name, value in self._given.items()]
        self._reader, self._writer = await asyncio.open_connection(self._url.hostname, self._url.port)
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.status = int(head[0].split()[1])
        self.headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def events(self) -> AsyncIterator[Received]:
        """What is dispatched, until the server ends the stream."""
        event = ""
        data: list[str] = []
        async for raw in self._reader:
            line = raw.decode().rstrip("\n")
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if line == "":
                if data:
                    yield Received(event or "message", json.loads("\n".join(data)), self.last_id)
                event, data = "", []
            elif name == "":
                self.comments += 1
            elif name == "event":
                event = value
            elif name == "data":
                data.append(value)
            elif name == "id":
                self.last_id = value
            elif name == "retry":
                self.retry = int(value)

    async def body(self) -> dict[str, Any]:
        """A whole answer that is no stream."""
        answer: dict[str, Any] = json.loads(await self._reader.read())
        return answer
