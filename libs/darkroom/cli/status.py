"""``darkroom status``: how everything is, on one page."""

from typing import Annotated

import typer
from rich.console import Console, Group
from rich.table import Table

from darkroom.cli.operation import FOUND, YEAR, Json, age, between, installation, plain, print_json
from darkroom.ops import status as looking
from darkroom.ops.status import Problem, Snapshot, Waiting

LATE = 60.0


def status(
    late: Annotated[float, between(0, YEAR, "Seconds of waiting from which on it is a problem.")] = LATE,
    as_json: Json = False,
) -> None:
    """Show services, lag, leases, shards, what waits and for how long, and all dead letters.

    Exit code 0: nothing to look at. 1: there are problems, each with what to do. 2: it could not run.
    """
    with installation() as found:
        snapshot = looking.look(found, late=late)
    problems = list(looking.problems(snapshot, late=late))
    if as_json:
        print_json(snapshot.as_json(late=late))
    else:
        Console().print(_page(snapshot))
        _show(Console(), problems)
    if problems:
        raise typer.Exit(FOUND)


def _page(snapshot: Snapshot) -> Group:
    facts = Table(box=None, show_header=False)
    for service in snapshot.services:
        facts.add_row(plain(service.url), "ready" if service.problem is None else f"[red]{plain(service.problem)}[/]")
    facts.add_row("processors in the group", "?" if snapshot.processors is None else str(snapshot.processors))
    facts.add_row("records not finished (lag)", f"{snapshot.lag} over {len(snapshot.partitions)} partitions")
    facts.add_row("leases held", _waiting(snapshot.leases_held))
    facts.add_row("leases run out", _waiting(snapshot.leases_run_out))
    facts.add_row("waiting for their next attempt", str(snapshot.backing_off))
    for name, waiting in snapshot.under_way.items():
        facts.add_row(f"assets {name}", _waiting(waiting))
    facts.add_row("events unpublished", _waiting(snapshot.unpublished))
    for relay, shards in sorted(snapshot.relays.items()):
        facts.add_row(plain(f"relay {relay}"), f"{shards} shards")
    facts.add_row("shards without a relay", str(snapshot.shards_without_relay))
    facts.add_row("messages in the SQS queue", "?" if snapshot.queued is None else str(snapshot.queued))
    for source, depth in sorted(snapshot.letters.items()):
        facts.add_row(f"dead letters: {source}", "?" if depth is None else str(depth))
    for name, job in sorted(snapshot.jobs.items()):
        facts.add_row(f"job {name}", "running" if job["running"] else f"last ended {job.get('at', 'never')}")
    lagging = [one for one in snapshot.partitions if one.lag]
    if not lagging:
        return Group(facts)
    lag = Table("partition", "end", "committed", "lag", box=None)
    for one in lagging:
        lag.add_row(*map(str, (one.number, one.end, one.committed, one.lag)))
    return Group(facts, lag)


def _waiting(waiting: Waiting) -> str:
    return str(waiting.count) + (f", the oldest for {age(waiting.oldest)}" if waiting.count else "")


def _show(console: Console, problems: list[Problem]) -> None:
    if not problems:
        console.print("[green]Nothing to look at.[/]")
    for problem in problems:
        console.print(f"[red]•[/] {plain(problem.what)}\n    → {plain(problem.mend)}", highlight=False, soft_wrap=True)
