"""The body of a request: JSON, small, and in time."""

import asyncio
import re

from starlette.requests import ClientDisconnect, Request

from asset_api.connection import has_come
from asset_api.problems import Problem, Problems

MAX_BODY_BYTES = 64 * 1024
_OTHER_CHARSET = re.compile(r'\bcharset\s*+=\s*+(?!"?(?:utf-?8|us-ascii)\b)', re.IGNORECASE)


async def read_json(request: Request, *, seconds: float) -> bytes:
    """The body, when it is called JSON, is small and comes in time.

    Raises:
        Problem: 415, 413 or 408.

    """
    types = request.headers.getlist("content-type")
    media_type, _, parameters = (types[0] if len(types) == 1 else "").partition(";")
    if media_type.strip().lower() != "application/json" or _OTHER_CHARSET.search(parameters):
        raise Problem(Problems.UNSUPPORTED_MEDIA_TYPE, "Send the body as Content-Type: application/json, in UTF-8.")
    if any(coding.strip().lower() != "identity" for coding in request.headers.getlist("content-encoding")):
        raise Problem(
            Problems.UNSUPPORTED_MEDIA_TYPE,
            "Send the body as it is, without a Content-Encoding.",
            headers={"Accept-Encoding": "identity"},
        )
    if int(request.headers.get("content-length", 0)) > MAX_BODY_BYTES:
        raise _too_large()  # at once: a client that sends slowly would else be told that it is late
    if has_come(request.receive):
        return await _read(request)  # nothing waits, and a deadline would cost more than all else of this
    try:
        async with asyncio.timeout(seconds):
            return await _read(request)
    except TimeoutError:
        raise Problem(Problems.BODY_TIMEOUT, f"The body did not arrive within {seconds:g} seconds.") from None


async def _read(request: Request) -> bytes:
    body = bytearray()
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
        more = message.get("more_body", False)
    return bytes(body)


def _too_large() -> Problem:
    return Problem(Problems.BODY_TOO_LARGE, f"The body must be at most {MAX_BODY_BYTES} bytes.")
