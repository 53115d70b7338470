"""``darkroom why``: the whole story of one asset, and what it waits for."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from darkroom.cli.operation import FOUND, YEAR, Json, between, installation, plain, print_json
from darkroom.ops.diagnosis import diagnose
from darkroom.ops.story import LATE, gather, story


def why(
    asset_id: Annotated[str, typer.Argument(help="The asset's id.")],
    late: Annotated[float, between(0, YEAR, "Seconds until what is on its way is called lost.")] = LATE,
    as_json: Json = False,
) -> None:
    """Tell what happened to an asset, on every server and in the order of time, and what it waits for.

    Exit code 0: it needs nothing, or waits for what will come by itself. 1: a command is named that helps, or there is
    no such asset. 2: it could not run.
    """
    with installation() as found:
        facts = gather(found, asset_id, late=late)
    diagnosis, entries = diagnose(facts), story(facts)
    if as_json:
        print_json(
            {
                "asset": facts.kept.asset,
                "traces": facts.traces,
                "waits_for": diagnosis.as_json(),
                "story": [entry.as_json() for entry in entries],
                "unknown": facts.unknown,
            }
        )
    else:
        _show(Console(), asset_id, facts.asset.status if facts.asset is not None else "not registered")
        for name, traced in facts.traces.items():
            Console().print(
                f"{'Trace' if name == 'trace' else 'Trace of its way through SQS'}: {traced}", highlight=False
            )
        table = Table(box=None, show_header=False)
        for entry in entries:
            table.add_row(f"{entry.at:%Y-%m-%d %H:%M:%S.%f}"[:-3], plain(entry.where), plain(entry.what))
        Console().print(table)
        for name, reason in facts.unknown.items():
            Console().print(
                f"[red]{plain(name)} could not be asked:[/] {plain(reason)}", highlight=False, soft_wrap=True
            )
        Console().print(f"[bold]Waits for:[/] {plain(diagnosis.sentence)}", highlight=False, soft_wrap=True)
        if diagnosis.mend is not None:
            Console().print(f"    → {plain(diagnosis.mend)}", highlight=False, soft_wrap=True)
    if diagnosis.mend is not None or facts.asset is None:
        raise typer.Exit(FOUND)


def _show(console: Console, asset_id: str, status: str) -> None:
    console.print(f"[bold]{plain(asset_id)}[/] {status}", highlight=False)
    console.print("Times are in UTC, each by its own server's clock; S3's are cut to seconds.", style="dim")
