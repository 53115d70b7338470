"""An answer leaves in one piece: head and body are one write to the network where uvicorn makes two."""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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


class GatheringProtocol(HttpToolsProtocol):
    """Uvicorn's faster one, on such a transport."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        super().connection_made(cast("asyncio.Transport", GatheringTransport(cast("asyncio.Transport", transport))))
