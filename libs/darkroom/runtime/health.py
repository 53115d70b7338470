"""Health and metrics over HTTP, on a port of their own: apart from what is public."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from darkroom.runtime.start import StartRefused

Check = Callable[[], Mapping[str, Any]]
"""Gives what the service knows of itself; raises, with a message for people, when it is not fit."""
Exposition = Callable[[str], tuple[str, bytes]]
"""From the request's Accept header to the content type and the body of ``/metrics``."""


@contextmanager
def health_server(
    *, host: str, port: int, live: Check, ready: Check, metrics: Exposition | None = None
) -> Iterator[int]:
    """Serve health and metrics while the block runs; yields the port, which ``port=0`` leaves to the system.

    ``/healthz`` is ``live``: start the process anew when it is not. ``/readyz`` is ``ready``: it can do its work now.
    ``/startedz`` is ``ready`` until that passed once, and fit from then on. Each is 200 with JSON when the check gives
    its facts, 503 with the reason when it raises.

    Raises:
        StartRefused: the port is taken, or the host is not of this machine.

    """
    pages = _Pages(live=live, ready=ready, metrics=metrics)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content_type, body = pages.answer(self.path.partition("?")[0], self.headers.get("Accept", ""))
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base class's name
            """Probes come every few seconds; they are no news."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise StartRefused(
            f"cannot listen on {host} port {port} (DARKROOM_HEALTH_HOST, DARKROOM_HEALTH_PORT): {error.strerror}"
        ) from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Pages:
    """What there is to see."""

    def __init__(self, *, live: Check, ready: Check, metrics: Exposition | None) -> None:
        self._ready = ready
        self._has_been_ready = False
        self._metrics = metrics
        self._checks: dict[str, Check] = {"/healthz": live, "/readyz": self._is_ready, "/startedz": self._has_started}

    def answer(self, path: str, accept: str) -> tuple[int, str, bytes]:
        """Status, content type and body."""
        if self._metrics is not None and path == "/metrics":
            return 200, *self._metrics(accept)
        check = self._checks.get(path)
        if check is None:
            here = [*self._checks, *(["/metrics"] if self._metrics is not None else [])]
            return _json(404, {"error": f"{path}: only {', '.join(here)} are here"})
        try:
            return _json(200, {"status": "ok", **check()})
        except Exception as error:  # noqa: BLE001 -- whatever a check raises is the answer
            return _json(503, {"status": "unfit", "reason": f"{type(error).__name__}: {error}"})

    def _is_ready(self) -> Mapping[str, Any]:
        facts = self._ready()
        self._has_been_ready = True
        return facts

    def _has_started(self) -> Mapping[str, Any]:
        return {} if self._has_been_ready else self._is_ready()


def _json(status: int, body: Mapping[str, Any]) -> tuple[int, str, bytes]:
    return status, "application/json", json.dumps(body, default=str).encode()
