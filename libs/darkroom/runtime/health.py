"""Liveness and readiness over HTTP, for services that otherwise serve nothing."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from darkroom.runtime.start import StartRefused

Check = Callable[[], Mapping[str, Any]]
"""Gives what the service knows of itself; raises, with a message for people, when it is not fit."""


@contextmanager
def health_server(*, host: str, port: int, live: Check, ready: Check) -> Iterator[int]:
    """Serve ``/healthz`` and ``/readyz`` while the block runs; yields the port, which ``port=0`` leaves to the system.

    200 with JSON when the check gives its facts, 503 with the reason when it raises.

    Raises:
        StartRefused: the port is taken, or the host is not of this machine.

    """
    checks = {"/healthz": live, "/readyz": ready}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            check = checks.get(self.path)
            if check is None:
                self._answer(404, {"error": f"{self.path}: only {', '.join(checks)} are here"})
                return
            try:
                self._answer(200, {"status": "ok", **check()})
            except Exception as error:  # noqa: BLE001 -- whatever a check raises is the answer
                self._answer(503, {"status": "unfit", "reason": f"{type(error).__name__}: {error}"})

        def _answer(self, status: int, body: Mapping[str, Any]) -> None:
            data = json.dumps(body, default=str).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

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
