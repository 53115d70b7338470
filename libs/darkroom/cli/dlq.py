"""``darkroom dlq``: what came to rest and waits for a person, of all four kinds."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from darkroom.cli.operation import (
    FOUND,
    YEAR,
    DryRun,
    Json,
    a_second,
    age,
    between,
    fail,
    installation,
    plain,
    print_json,
)
from darkroom.ops import letters as boxes
from darkroom.ops.letters import Filter, Letter, Redriven, Source

app = typer.Typer(help="Letters that came to rest: list them, look at one, put them back.", no_args_is_help=True)

Sources = Annotated[list[Source] | None, typer.Option("--source", help="Only of this source; several times for more.")]
Assets = Annotated[list[str] | None, typer.Option("--asset", help="Only of this asset; several times for more.")]
Reason = Annotated[str, typer.Option("--reason-has", help="Only those with this text in their reason.")]
OlderThan = Annotated[float, between(0, YEAR, "Only those older than so many seconds.", "--older-than")]
Limit = Annotated[int | None, between(1, 1_000_000, "At most so many of each source.", "--limit")]
NO_QUEUE = "DARKROOM_QUEUE_URL is not set, so SQS's dead letters are not looked at."


@app.command("list")
def list_letters(
    source: Sources = None,
    asset: Assets = None,
    reason_has: Reason = "",
    older_than: OlderThan = 0.0,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """List dead letters. Exit code 0: there are none. 1: there are. 2: it could not run."""
    wanted = _filter(source, asset=asset, reason=reason_has, older_than=older_than)
    with installation() as found:
        letters = boxes.find(found, wanted, limit=limit)
        now = found.now()
        queueless = found.queue is None and Source.SQS in wanted.sources
    if as_json:
        print_json([letter.as_json() for letter in letters])
    else:
        if queueless:
            Console(stderr=True).print(NO_QUEUE)
        table = Table("source", "id", "age", "asset", "reason", box=None)
        for column in table.columns:
            column.overflow = "fold"  # an id that is cut is of no use to `dlq show`
        for letter in letters:
            seconds = None if letter.at is None else (now - letter.at).total_seconds()
            note = " (put back)" if letter.redriven else ""
            told = (letter.source, letter.id, age(seconds), letter.asset_id or "-", letter.reason + note)
            table.add_row(*map(plain, told))
        Console().print(table if letters else "No letter lies anywhere.")
    if any(not letter.redriven for letter in letters):
        raise typer.Exit(FOUND)


@app.command()
def show(
    letter_id: Annotated[str, typer.Argument(help="The id that `dlq list` tells.")],
    source: Sources = None,
    as_json: Json = False,
) -> None:
    """Print all that is known of a letter. Exit code 0: printed. 1: there is no such letter. 2: it could not run."""
    with installation() as found:
        letters = boxes.find(found, _filter(source, ids=[letter_id]))
    told = [letter.as_json(whole=True) for letter in letters]
    if as_json:
        print_json(told)
    for letter in [] if as_json else told:
        Console().print_json(data=letter, default=str, ensure_ascii=True)
    if not letters:
        Console(stderr=True).print(f"No letter has the id {plain(letter_id)}.", highlight=False)
        raise typer.Exit(FOUND)


@app.command()
def redrive(
    letter_id: Annotated[list[str] | None, typer.Argument(help="Ids that `dlq list` tells.")] = None,
    why: Annotated[str, typer.Option(help="Why now: it is kept with the action, and in AssetRedriven.")] = "",
    source: Sources = None,
    asset: Assets = None,
    reason_has: Reason = "",
    older_than: OlderThan = 0.0,
    limit: Limit = None,
    every: Annotated[bool, typer.Option("--all", help="All of the sources; needed if nothing else is named.")] = False,
    again: Annotated[bool, typer.Option(help="Kafka's letters also if they were put back before.")] = False,
    rate: Annotated[float, a_second("")] = 50.0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Put letters back where they came from, and record who did it and why.

    Exit code 0: all are back (or would be). 1: some could not be put back, or are not there. 2: it could not run.
    """
    wanted = _filter(source, ids=letter_id, asset=asset, reason=reason_has, older_than=older_than)
    if not every and not wanted.names_some:
        fail("nothing is named. Give ids, --asset, --reason-has or --older-than; or --all for every letter.")
    if every and letter_id:
        fail("ids are named, and --all is for every letter; leave one of them out.")
    if not why and not dry_run:
        fail("--why is missing: say what was mended, so that the next one who looks knows.")
    results: list[Redriven] = []
    with installation() as found:
        for one in boxes.redrive_all(
            found, wanted, reason=why, dry_run=dry_run, again=again, limit=limit, rate=0.0 if dry_run else rate
        ):
            results.append(one)
            if not as_json:
                _say(one, dry_run=dry_run)
    if as_json:
        done = [one.letter.as_json() | {"problem": one.problem} for one in results]
        print_json({"dry_run": dry_run, "letters": done})
    elif not results:
        Console().print("No such letter lies anywhere.")
    # With --limit some that are named may wait for the next time.
    missing = sorted(set(letter_id or ()) - {one.letter.id for one in results}) if limit is None else []
    for one_id in missing:
        Console(stderr=True).print(
            f"No letter to put back has the id {plain(one_id)}. One of Kafka's that was put back before needs --again.",
            highlight=False,
            soft_wrap=True,
        )
    if missing or any(one.problem for one in results):
        raise typer.Exit(FOUND)


def _say(one: Redriven, *, dry_run: bool) -> None:
    what = f"not put back: {one.problem}" if one.problem else "would be put back" if dry_run else "put back"
    Console().print(plain(f"{_named(one.letter)}: {what}"), highlight=False, soft_wrap=True)


def _named(letter: Letter) -> str:
    return f"{letter.source} {letter.id}" + (f" of asset {letter.asset_id}" if letter.asset_id else "")


def _filter(
    sources: list[Source] | None,
    *,
    ids: list[str] | None = None,
    asset: list[str] | None = None,
    reason: str = "",
    older_than: float = 0.0,
) -> Filter:
    return Filter(tuple(sources or Source), tuple(ids or ()), tuple(asset or ()), reason, older_than)
