"""``darkroom up``: everything on this machine, until Ctrl-C."""

import contextlib
import itertools
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from darkroom.cli import operation
from darkroom.cli.operation import between, plain
from darkroom.local.errors import DataFolderInUseError
from darkroom.local.processes import ended_by_signals
from darkroom.local.servers import AWS_VARIABLE, KAFKA_VARIABLE, MONGO_VARIABLE, VARIABLES, named_servers
from darkroom.local.stack import Stack, start_stack

FOLDER = Path(".darkroom")
_LOOK_SECONDS = 0.5


def up(
    data: Annotated[
        Path | None, typer.Option(help="Folder for data and logs. Default: the first in .darkroom/ that is not in use.")
    ] = None,
    port: Annotated[int | None, between(1, 65_535, "Port of the API and the page. Default: a free one.")] = None,
    processors: Annotated[int, between(1, 64, "How many processors to run.")] = 1,
    relays: Annotated[int, between(1, 64, "How many relays to run.")] = 1,
    owner: Annotated[str, typer.Option(help="Whom the printed token is for.", callback=operation.owner)] = "demo",
) -> None:
    """Start MongoDB, Kafka, an AWS endpoint and all services on this machine, and keep them running.

    Servers named by DARKROOM_MONGO_URL, DARKROOM_KAFKA_BOOTSTRAP or AWS_ENDPOINT_URL are used instead of local ones.
    """
    console = Console()
    announce(console, os.environ)
    with (
        ended_by_signals(),
        contextlib.suppress(KeyboardInterrupt),
        _stack(data, port=port, processors=processors, relays=relays) as stack,
    ):
        describe(console, stack, owner=owner)
        console.print("Ctrl-C ends everything.")
        wait_for_interrupt(console, stack)


def announce(console: Console, environment: Mapping[str, str]) -> None:
    """Say at once what is started, and what is not: it takes half a minute on a small machine."""
    named = named_servers(environment)
    started = ", ".join(server for server in VARIABLES if server not in named)
    console.print(f"Starting {started} and the services …" if started else "Starting the services …", soft_wrap=True)
    if named:
        theirs = ", ".join(f"{server} ({variable})" for server, variable in named.items())
        console.print(f"Not started, since a variable names yours: {theirs}.", highlight=False, soft_wrap=True)


def describe(console: Console, stack: Stack, *, owner: str) -> None:
    """Print where everything is, and how to get in."""
    servers = stack.servers
    token = stack.token(owner)
    for name, value in {
        "Page": stack.page_url(owner),
        "API": stack.api_url,
        "Token": token,
        # Of somebody's own, the address may hold a password.
        "MongoDB": servers.mongo_url if servers.mongo else f"yours ({MONGO_VARIABLE})",
        "Kafka": servers.kafka_bootstrap if servers.kafka else f"yours ({KAFKA_VARIABLE}), {servers.kafka_bootstrap}",
        "AWS": f"{'' if servers.aws else f'yours ({AWS_VARIABLE}), '}{servers.aws_endpoint_url}, "
        f"bucket {stack.outputs.bucket}",
        "Logs": servers.log_dir,
        "By hand": f"export API={stack.api_url} TOKEN={token}",
        "Operate": f". {stack.environment_file} && {_command()} status",
    }.items():
        console.print(f"[bold]{name + ':':9}[/] {plain(value)}", highlight=False, soft_wrap=True)


def _command() -> str:
    """How this very command is called from this shell, which need not have it on its PATH."""
    own = Path(sys.executable).with_name("darkroom")
    return "darkroom" if shutil.which("darkroom") == str(own) else os.path.relpath(own)


def wait_for_interrupt(console: Console, stack: Stack) -> None:
    """Say which processes end by themselves, until KeyboardInterrupt or SystemExit: the user's or the system's wish.

    The rest goes on, for whoever wants to see how it copes; but nobody is left to wonder why a picture waits.
    """
    running = stack.processes
    while True:
        for process in running:
            if not process.running:
                console.print(
                    f"[bold red]{process.name} has ended[/] with exit code {process.exit_code}, and is not started "
                    f"again: Ctrl-C, and the same command, start everything. Its log: {plain(process.log_path)}",
                    highlight=False,
                    soft_wrap=True,
                )
        running = tuple(process for process in running if process.running)
        threading.Event().wait(_LOOK_SECONDS)


@contextlib.contextmanager
def _stack(data: Path | None, *, port: int | None, processors: int, relays: int) -> Iterator[Stack]:
    with contextlib.ExitStack() as running:
        for folder in [data] if data is not None else (FOLDER / f"up-{number}" for number in itertools.count(1)):
            try:
                stack = running.enter_context(
                    start_stack(folder, api_port=port, processors=processors, relays=relays, tidying=True)
                )
            except DataFolderInUseError:
                if data is not None:
                    raise
            else:
                break
        yield stack
