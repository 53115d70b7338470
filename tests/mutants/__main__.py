"""``python -m mutants``: try every mutant, print a table, and exit with 1 unless all are killed."""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from darkroom.local.servers import start_servers
from mutants.catalogue import Mutant, load
from mutants.trial import Copy, Outcome, Verdict

# Fixed, so that a report in a file reads like one on a screen.
WIDTH = 160


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; gives the exit code."""
    parser = argparse.ArgumentParser(prog="mutants", description="Remove each protection and see that a test notices.")
    parser.add_argument("--only", action="append", metavar="NAME", help="mutants whose names contain NAME; repeatable")
    parser.add_argument("--list", action="store_true", help="say which mutants there are, and run nothing")
    parser.add_argument("--output", action="store_true", help="show what pytest said of mutants that were not killed")
    parser.add_argument("--no-baseline", action="store_true", help="do not see first that the tests pass as they are")
    asked = parser.parse_args(arguments)
    console = Console(width=WIDTH, soft_wrap=False)
    chosen = [m for m in load() if asked.only is None or any(name in m.name for name in asked.only)]
    if not chosen:
        console.print(f"no mutant's name contains {' or '.join(asked.only)}")
        return 1
    if asked.list:
        console.print(listing(chosen))
        return 0
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="darkroom-mutants-") as folder,
        start_servers(Path(folder) / "servers", mongo_parameters={"enableTestCommands": "1"}) as servers,
    ):
        copy = Copy(Path(folder), environment=servers.process_environment())
        copy.check()
        if not asked.no_baseline:
            tests = sorted({test for mutant in chosen for test in mutant.tests})
            code, output = copy.pytest(tests, seconds=1800)
            if code != 0:
                console.print(output, markup=False, highlight=False)
                console.print("these tests fail without any mutant, so they would say nothing about one")
                return 1
            console.print(f"without mutants their tests pass ({time.monotonic() - began:.0f} s)", highlight=False)
        outcomes = []
        # One after the other: a server's fail points are there for one test at a time.
        for mutant in chosen:
            outcome = copy.try_out(mutant)
            outcomes.append((mutant, outcome))
            console.print(f"{mutant.name}: {outcome.verdict} {outcome.by}", markup=False, highlight=False)
            if asked.output and outcome.verdict is not Verdict.KILLED:
                console.print(outcome.output, markup=False, highlight=False)
    console.print(report(outcomes))
    killed = sum(outcome.verdict is Verdict.KILLED for _, outcome in outcomes)
    console.print(f"{killed} of {len(outcomes)} killed in {time.monotonic() - began:.0f} s", highlight=False)
    return 0 if killed == len(outcomes) else 1


def listing(mutants: Sequence[Mutant]) -> Table:
    """What each mutant removes."""
    table = Table("mutant", "breaks", "what it does", "why that matters")
    for mutant in mutants:
        table.add_row(mutant.name, mutant.invariant, mutant.title, mutant.why)
    return table


def report(outcomes: Sequence[tuple[Mutant, Outcome]]) -> Table:
    """What became of each mutant."""
    table = Table("mutant", "breaks", "verdict", "by", "s")
    for mutant, outcome in outcomes:
        killed = outcome.verdict is Verdict.KILLED
        by = outcome.by.rpartition("/")[2]
        table.add_row(
            mutant.name,
            mutant.invariant,
            f"[{'green' if killed else 'red'}]{outcome.verdict}[/]",
            by.replace("[", r"\["),
            f"{outcome.seconds:.0f}",
        )
    return table


if __name__ == "__main__":
    raise SystemExit(main())
