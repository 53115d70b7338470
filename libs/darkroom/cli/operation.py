"""What all operations share: how they connect, what they print, and how they end.

Exit codes: 0 all is well or done; 1 something is wrong, was found or is left; 2 it could not run: a wrong call, a
setting that is missing, a server that does not answer.
"""

import contextlib
import json
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka import KafkaException
from pymongo.errors import PyMongoError
from rich.console import Console
from rich.markup import escape

from darkroom.ops.installation import Installation, NoDeadLetterQueue, OpsSettings, connected
from darkroom.runtime import logging
from darkroom.runtime.mongo import NotAReplicaSet, reason
from darkroom.runtime.settings import load
from darkroom.runtime.tokens import MAX_OWNER_CHARACTERS, is_owner

FOUND, COULD_NOT = 1, 2
YEAR = 31_536_000.0
"""Seconds of a year: the longest time that an option takes."""
LEAST_A_SECOND, MOST_A_SECOND = 0.001, 1_000_000.0
FAILURES = (PyMongoError, KafkaException, BotoCoreError, ClientError, NotAReplicaSet, TimeoutError, NoDeadLetterQueue)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs on standard output, and nothing else.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


def _writable(file: Path | None) -> Path | None:
    # Before the work is done, of which it would be all that is left.
    if file is not None:
        try:
            file.open("ab").close()
        except OSError as error:
            raise typer.BadParameter(f"cannot write it: {error.strerror}.") from None
    return file


JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write the outcome to this file, as JSON.", callback=_writable)
]


def between(least: float, most: float, help: str, *names: str) -> Any:  # noqa: A002 -- typer's word
    """An option that is a number from ``least`` to ``most``."""
    return typer.Option(*names, min=least, max=most, help=help)


def a_second(what: str) -> Any:
    """An option that says how many of ``what`` there may be a second; 0 is no bound."""
    help_text = f"At most so many{what and f' {what}'} a second; 0: no bound."
    return typer.Option(min=0, max=MOST_A_SECOND, callback=_none_or_some, help=help_text)


def _none_or_some(rate: float) -> float:
    # The next one would be after the end of all that can be waited for.
    if 0 < rate < LEAST_A_SECOND:
        raise typer.BadParameter(f"must be 0, which is no bound, or {LEAST_A_SECOND:g} or more.")
    return rate


def owner(name: str) -> str:
    """The callback of an owner's name."""
    if not is_owner(name):
        raise typer.BadParameter(f"must be 1 to {MAX_OWNER_CHARACTERS} printable characters, not all of them blanks.")
    return name


@contextlib.contextmanager
def installation() -> Iterator[Installation]:
    """The installation that the environment names; what stands in the way is one message and exit code 2."""
    try:
        settings = load(OpsSettings)
    except SystemExit as error:
        fail(str(error))
    # What commands have to say they print; logs are for --every.
    logging.configure(service="darkroom", level="CRITICAL")
    try:
        with connected(settings) as found:
            yield found
    except FAILURES as error:
        fail(f"{type(error).__name__}: {reason(error) if isinstance(error, PyMongoError) else error}")


def plain(text: object) -> str:
    """Anybody's text as it may be printed: what is in brackets is no markup, and a terminal obeys none of it."""
    return escape("".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in str(text)))


def fail(why: str) -> NoReturn:
    """End with exit code 2 and the reason on standard error."""
    console = Console(stderr=True)
    console.print("[bold red]Could not run:[/]", end=" ")
    # Of several lines; what stands in brackets in somebody's message is no markup.
    console.print(why, highlight=False, soft_wrap=True, markup=False)
    raise SystemExit(COULD_NOT)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, default=_plain) + "\n")


def age(seconds: float | None) -> str:
    """A length of time as people say it; nothing for None."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return str(timedelta(seconds=round(seconds)))


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
