"""Structured logs: one JSON object a line on standard error, with a static event name and ids, and without secrets."""

import logging
import sys
from collections.abc import Mapping
from typing import Any, Protocol

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
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]

    def named(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {"service": service, **event}

    def redacted(_logger: object, _method: str, event: structlog.typing.EventDict) -> Mapping[str, Any]:
        return hide.fields(event)

    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            # Libraries give their values as `extra`.
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                named,
                # Without local variables, which structlog adds by default: they hold tokens and secrets.
                structlog.processors.ExceptionRenderer(
                    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
                ),
                # After the traceback is a value like others: its messages quote what was wrong.
                redacted,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    # No line tells of them, and finding them out costs more than all else that makes a record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    numbers = logging.getLevelNamesMapping()
    others = max(numbers[level], logging.INFO) if libraries is None else numbers[libraries]
    logging.basicConfig(handlers=[handler], level=others, force=True)
    for name in OWN:
        logging.getLogger(name).setLevel(level)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(max(others, logging.WARNING) if libraries is None else others)
