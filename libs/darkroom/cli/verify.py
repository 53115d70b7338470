"""``darkroom verify`` and ``darkroom rebuild``: what is stored, checked and made anew from the streams."""

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from darkroom.cli.operation import FOUND, DryRun, Json, installation, plain, print_json
from darkroom.ops import rebuild as rebuilding
from darkroom.ops import verify as verification
from darkroom.ops.rebuild import Step
from darkroom.ops.verify import Verdict

SHOWN = 20


def verify(
    decode: Annotated[bool, typer.Option("--decode", help="Also read and decode every rendition (slow).")] = False,
    as_json: Json = False,
) -> None:
    """Check I2 (gapless streams), I3 (asset = fold), I4 (one end) and I10 (renditions exist) over the whole store.

    Exit code 0: nothing is wrong. 1: something is. 2: it could not run.
    """
    with installation() as found, _progress("ranges of assets") as progress:
        task = progress.add_task("verifying", total=None)
        verdict = verification.verify(
            found,
            decode=decode,
            on_progress=lambda part, _: progress.update(task, total=part.of, completed=part.number),
        )
    if as_json:
        print_json(verdict.as_json())
    else:
        _show(Console(), verdict)
    if not verdict.clean:
        raise typer.Exit(FOUND)


def rebuild(
    asset: Annotated[list[str] | None, typer.Option(help="Only this asset; can be given several times.")] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Write every document of assets anew that is not the fold of its stream; the streams are the truth.

    Exit code 0: all are right, or have been made right. 1: some are wrong (with --dry-run), or cannot be mended.
    2: it could not run.
    """
    console = Console()
    wrong = []
    with installation() as found, _progress("ranges of assets") as progress:
        task = progress.add_task("comparing", total=None)
        for one in rebuilding.rebuild(
            found,
            asset_ids=asset,
            dry_run=dry_run,
            on_progress=lambda part: progress.update(task, total=part.of, completed=part.number),
        ):
            wrong.append(one)
            if not as_json:
                console.print(plain(f"{one.asset_id}: {one.step} {one.why}"), highlight=False)
                for name, (stored, folded) in one.fields.items():
                    console.print(plain(f"    {name}: {stored!r} -> {folded!r}"), highlight=False, soft_wrap=True)
    if as_json:
        print_json({"dry_run": dry_run, "assets": [one.as_json() for one in wrong]})
    elif not wrong:
        console.print("Every document is the fold of its stream.")
    if any(dry_run or one.step is Step.REMAINS for one in wrong):
        raise typer.Exit(FOUND)


def _progress(what: str) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(what))
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True)


def _show(console: Console, verdict: Verdict) -> None:
    decoded = f", {verdict.decoded} of them decoded" if verdict.decoded else ""
    console.print(
        f"{verdict.assets} assets, {verdict.events} events, {verdict.renditions} renditions{decoded}.", highlight=False
    )
    if verdict.clean:
        console.print("[green]I2, I3, I4 and I10 hold.[/]")
        return
    for invariant, count in sorted(verdict.counts.items()):
        console.print(f"[red]{invariant}: {count} violations[/]", highlight=False)
    for violation in verdict.examples[:SHOWN]:
        console.print(plain(f"  {violation.invariant} {violation.what}"), highlight=False, soft_wrap=True)
    if verdict.counts.total() > SHOWN:
        console.print(f"  … and {verdict.counts.total() - SHOWN} more (--json tells the first 100)")
    console.print(
        "I3: `darkroom rebuild --dry-run`, then `darkroom rebuild`. I10: `darkroom reconcile`. "
        "I2 and I4 are defects: keep the data and call the developers.",
        soft_wrap=True,
    )
