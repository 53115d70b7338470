"""``darkroom chaos``: uploads while everything is killed, then every invariant checked."""

import contextlib
import json
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer
from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka import KafkaException
from httpx import HTTPError
from pymongo.errors import PyMongoError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from darkroom.chaos import run as chaos_run
from darkroom.chaos.faults import Fault
from darkroom.chaos.run import Options, described_plan
from darkroom.cli.operation import JsonFile, between, fail
from darkroom.local.errors import LocalServerError
from darkroom.local.processes import ended_by_signals

VIOLATED = 1
COULD_NOT = (LocalServerError, PyMongoError, KafkaException, BotoCoreError, ClientError, HTTPError, TimeoutError)
"""What a server raises that did not start, or that is not well again at the end."""
WIDTH_IN_A_FILE = 160


def chaos(
    assets: Annotated[int, between(1, 1_000_000, "How many pictures are uploaded.")] = 1000,
    minutes: Annotated[float, between(0.1, 10_080, "How long uploads and faults go on.")] = 5.0,
    seed: Annotated[int | None, between(0, 2**63 - 1, "Decides faults and uploads. Default: a random one.")] = None,
    only: Annotated[list[Fault] | None, typer.Option(help="Only this fault; can be given several times.")] = None,
    brokers: Annotated[Literal["1", "3"], typer.Option(help="How many Kafka brokers.")] = "3",
    json_file: JsonFile = None,
    data: Annotated[Path | None, typer.Option(help="Folder for data and logs. Default: a temporary one.")] = None,
) -> None:
    """Upload pictures while everything is killed, stalled and cut off, then check every invariant.

    Exit code 0: no violation. 1: a violation. 2: it could not run.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_IN_A_FILE)
    chosen = secrets.randbelow(2**31) if seed is None else seed
    options = Options(seed=chosen, assets=assets, minutes=minutes, brokers=int(brokers), only=tuple(only or ()))
    console.print(f"Seed {chosen}. The same again: --seed {chosen}", highlight=False)
    try:
        with ended_by_signals(), _folder(data) as folder, _shown(console, options) as show:
            report = chaos_run.run(options, folder, on_progress=show)
    except COULD_NOT as error:
        fail(str(error))
    console.print("\nThe schedule of this seed:")
    console.print(described_plan(chosen, minutes=minutes, only=options.only), highlight=False)
    report.show(console)
    if json_file is not None:
        json_file.write_text(json.dumps(report.as_json(), indent=2, default=str) + "\n", encoding="utf-8")
    if report.violations:
        raise typer.Exit(VIOLATED)


@contextlib.contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    if data is not None:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="darkroom-chaos-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextlib.contextmanager
def _shown(console: Console, options: Options) -> Iterator[Callable[[chaos_run.Progress], None]]:
    """A bar that follows the endings, and what else is counted beside it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[counted]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=options.assets, counted="")

        def show(now: chaos_run.Progress) -> None:
            counted = f"{now.registered} registered, {now.uploaded} uploaded, {now.faults} faults"
            progress.update(task, description=now.phase, completed=now.ended, counted=counted)

        yield show
