"""Run the API as a process: listen, serve, end in order."""

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI
from uvicorn.loops.auto import auto_loop_factory

from asset_api.app import create_app
from asset_api.connection import connection
from asset_api.settings import Settings
from darkroom.metrics.registry import exposition
from darkroom.runtime import logging
from darkroom.runtime.health import health_server
from darkroom.runtime.settings import load
from darkroom.runtime.start import StartRefused
from darkroom.runtime.tracing import tracing

log = structlog.get_logger()

BACKLOG = 2048
UNTAKEN_MS = 30_000
LOOP_SECONDS = 10.0
"""An event loop that stands still for so long serves nobody."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Server(uvicorn.Server):
    """Uvicorn, but for its signals: it would end the process by the signal it got instead of by exit code 0.

    ``ending`` is called as it begins to end: what would go on for ever ends then.
    """

    def __init__(self, config: uvicorn.Config, *, ending: Callable[[], None]) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)


def main() -> None:
    """Serve until SIGTERM or SIGINT; requests in flight then have ``grace_seconds`` to end.

    Raises:
        StartRefused: the service is set up wrongly.

    """
    settings = load(Settings)
    logging.begin(settings, service="asset-api")
    # uvicorn's own choice, which is uvloop wherever that can be installed.
    with tracing(service="asset-api"), asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(serve(settings))


async def serve(settings: Settings) -> None:
    """Serve until told to stop.

    Raises:
        StartRefused: saying what is missing.

    """
    app = create_app(settings)
    # Not by uvicorn, which logs a refusal as a traceback.
    async with app.router.lifespan_context(app):
        listener = _listen(settings.http_host, settings.http_port)
        host, port = listener.getsockname()[:2]
        server = _Server(
            uvicorn.Config(
                app,
                http=connection(head_seconds=settings.body_seconds),
                ws="none",
                # Nothing here is about the client's address or the scheme that it came by.
                proxy_headers=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=settings.keep_alive_seconds,
                timeout_graceful_shutdown=settings.grace_seconds,
            ),
            ending=app.state.hub.end,
        )
        # Metrics are for those inside, so they have a port of their own; and so has how it is, for who watches it.
        with _health(app, settings) as health_port:
            _settle()
            log.info("api_started", host=host, port=port, health_port=health_port)
            await server.serve(sockets=[listener])
    log.info("api_stopped")


def _settle() -> None:
    """Take what was made by starting, which stays for good, out of what the garbage collector looks through.

    Looking through all of it took tens of milliseconds each time, in which every request waited.
    """
    gc.collect()
    gc.freeze()


def _health(app: FastAPI, settings: Settings) -> contextlib.AbstractContextManager[int]:
    loop = asyncio.get_running_loop()

    def live() -> dict[str, Any]:
        try:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(LOOP_SECONDS)
        except TimeoutError:
            raise RuntimeError(f"the event loop stands still for {LOOP_SECONDS:g} s") from None
        return {"listeners": app.state.hub.listening}

    def ready() -> dict[str, Any]:
        asyncio.run_coroutine_threadsafe(app.state.store.ping(), loop).result(settings.mongo_seconds + LOOP_SECONDS)
        return live()

    return health_server(
        host=settings.health_host,
        port=settings.health_port,
        live=live,
        ready=ready,
        metrics=exposition(app.state.metrics.registry),
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Called TCP in so many words: asyncio turns Nagle's delay (40 ms an answer) off only for sockets that say so.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # A client that takes nothing of what was sent is cut off; its buffers would else be kept for ever.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNTAKEN_MS)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartRefused(
            f"cannot listen on {host} port {port} (DARKROOM_HTTP_HOST, DARKROOM_HTTP_PORT): {error.strerror}"
        ) from error
    return listener
