"""What happens around every request: its id, its line in the log, its safe headers, and its end when all else fails."""

import re
import time
import uuid
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from asset_api.problems import Problem, Problems, to_response

log = structlog.get_logger()

REQUEST_ID = "X-Request-ID"
Answered = Callable[[Scope, int, float], None]
"""Told of a request, with the scope that its route is in, the status (0: there was none) and the seconds it took."""
QUIET_PATHS = frozenset({"/healthz", "/readyz"})
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Answers carry URLs that work without a token.
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


class Edge:
    """ASGI middleware. A client's X-Request-ID is kept when it is sane, and made otherwise."""

    def __init__(self, app: ASGIApp, *, answered: Answered = lambda _scope, _status, _seconds: None) -> None:
        self._app = app
        self._answered = answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._answered(scope, status, time.perf_counter() - started)
                _add_headers(message, request_id)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            log.info("client_went_away")
        except Exception:
            log.exception("request_failed")
            if status == 0:
                problem = Problem(Problems.INTERNAL, "The error is logged under this request id.")
                await to_response(problem, request_id=request_id)(scope, receive, send_with_headers)
        finally:
            if status == 0:
                self._answered(scope, status, time.perf_counter() - started)
            # The path alone: a query string may carry what is nobody's business.
            if scope["path"] not in QUIET_PATHS or status >= 500:
                log.info(
                    "request",
                    method=scope["method"],
                    path=scope["path"][:200],
                    status=status,
                    ms=round((time.perf_counter() - started) * 1000, 2),
                )


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).getlist(REQUEST_ID)
    if len(given) == 1 and _SANE_ID.fullmatch(given[0]):
        return given[0]
    return str(uuid.uuid4())


def _add_headers(message: MutableMapping[str, Any], request_id: str) -> None:
    headers = MutableHeaders(scope=message)
    headers[REQUEST_ID] = request_id
    for name, value in _SAFE_HEADERS.items():
        headers.setdefault(name, value)
