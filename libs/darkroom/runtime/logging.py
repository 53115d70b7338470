"""Structured logs: one JSON object a line on standard error, with a static event name and ids, and without secrets."""

import json
import logging
import sys
from contextlib import suppress
from typing import Protocol, TextIO

import structlog

from darkroom.runtime.redaction import Redactor

OWN = ("darkroom", "asset_api", "s3_bridge", "processor", "outbox_relay", "notifier")
"""The loggers that ``level`` is for."""
TALKATIVE = ("httpx", "httpcore")
"""They tell the whole URL of each request, at INFO: with whatever a webhook's address holds."""


class Settings(Protocol):
    """What a service's settings say of its log; see ``darkroom.runtime.settings.LogSettings``."""

    @property
    def log_level(self) -> str: ...
    @property
    def log_libraries(self) -> str | None: ...
    def secrets(self) -> set[str]: ...


def begin(settings: Settings, *, service: str) -> None:
    """``configure`` for a service, by its settings."""
    configure(
        service=service,
        level=settings.log_level,
        libraries=settings.log_libraries,
        redactor=Redactor(settings.secrets()),
    )


def configure(
    *,
    service: str,
    level: str = "INFO",
    libraries: str | None = None,
    redactor: Redactor | None = None,
) -> None:
    """Send this process's logs, also those of libraries, to standard error as JSON lines.

    ``libraries`` is the level of everybody else's loggers; by default INFO, or ``level`` where that is higher. Below it
    drivers tell their requests with headers and signatures, of which ``redactor`` takes out what is secret.
    """
    hide = redactor or Redactor()

    timed = structlog.processors.TimeStamper(fmt="iso", utc=True)
    # Without local variables, which structlog adds by default: they hold tokens and secrets.
    with_traceback = structlog.processors.ExceptionRenderer(
        structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    )

    def line(logger: object, level: str, event: structlog.typing.EventDict) -> str:
        # Behind the redaction, since these are ours: no secret is looked for in them.
        own = timed(logger, level, {"service": service, "level": level})
        name = event["event"] if isinstance(event.get("event"), str) else ""
        try:
            # After the traceback is a value like others: its messages quote what was wrong.
            return json.dumps({**hide.fields(with_traceback(logger, level, event)), **own})
        except Exception as error:  # noqa: BLE001 -- whoever logs is at work, or handles an error: this must be none
            return json.dumps({"event": hide.text(name), "unprintable": type(error).__name__, **own})

    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            # Libraries give their values as `extra`.
            foreign_pre_chain=[structlog.contextvars.merge_contextvars, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, line],
        )
    )
    # Ours are written without the detour over the library's records, which costs as much as all else about a line.
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, line],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: _Lines(stream),
        cache_logger_on_first_use=True,
    )
    # No line tells of them, and finding them out costs more than all else that makes a record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    numbers = logging.getLevelNamesMapping()
    others = max(numbers[level], logging.INFO) if libraries is None else numbers[libraries]
    logging.basicConfig(handlers=[stream], level=others, force=True)
    for name in OWN:
        logging.getLogger(name).setLevel(level)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(max(others, logging.WARNING) if libraries is None else others)


class _Lines:
    """Writes lines to where a handler of the standard library writes its own, in turns with it."""

    def __init__(self, handler: logging.StreamHandler[TextIO]) -> None:
        self._handler = handler

    def msg(self, line: str) -> None:
        """Write a line. As with the handler's own, one that cannot be written stops nobody's work."""
        self._handler.acquire()
        try:
            with suppress(OSError, ValueError):
                self._handler.stream.write(line + "\n")
                self._handler.flush()
        finally:
            self._handler.release()

    debug = info = warning = error = critical = log = msg
