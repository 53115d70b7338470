"""``darkroom reconcile``: what was lost between MongoDB, S3 and Kafka is found and mended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.console import Console

from darkroom.cli.operation import (
    FOUND,
    YEAR,
    DryRun,
    Json,
    a_second,
    between,
    fail,
    installation,
    plain,
    print_json,
)
from darkroom.cli.reconciler import go_on
from darkroom.ops import audit
from darkroom.ops.findings import MENDED, Finding, Patience
from darkroom.ops.reconcile import Pass, Reconciler, Report
from darkroom.runtime.mongo import ensure_indexes
from darkroom.runtime.shutdown import stop_on_signals
from darkroom.runtime.start import StartRefused

DEFAULT = Patience()


def reconcile(
    passes: Annotated[
        list[Pass] | None,
        typer.Option("--pass", help="Only this pass: unfinished (quick) or objects (the whole bucket)."),
    ] = None,
    every: Annotated[
        float | None,
        between(1, YEAR, "Go on until SIGTERM, with each pass every so many seconds."),
    ] = None,
    objects_every: Annotated[
        float | None,
        between(1, YEAR, "With --every: the pass over the whole bucket every so many seconds. Default: as it."),
    ] = None,
    unfinished_after: Annotated[
        float,
        between(0, YEAR, "Seconds that an asset may be under way before it counts as stuck."),
    ] = DEFAULT.unfinished,
    again_after: Annotated[
        float,
        between(0, YEAR, "Seconds until what was announced again is announced once more."),
    ] = DEFAULT.again,
    orphan_after: Annotated[
        float,
        between(0, YEAR, "Seconds that an object may be there without a record before it is tagged."),
    ] = DEFAULT.orphan,
    grace: Annotated[float, between(0, YEAR, "Seconds from an object's tag until it is removed.")] = DEFAULT.grace,
    rate: Annotated[float, a_second("requests and actions")] = 50.0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Find what was lost on the way and mend it: notifications, workers, renditions, records, objects.

    Only one process runs a pass at a time; a pass that was stopped goes on where it was.

    Exit code 0: nothing was found, or all is mended; or it was to go on and was told to stop. 1: something was found
    (--dry-run), or is left. 2: it could not run.
    """
    if objects_every is not None and every is None:
        fail("--objects-every goes with --every")
    if dry_run and every is not None:
        fail("--dry-run looks once; leave out --every")
    patience = Patience(unfinished=unfinished_after, again=again_after, orphan=orphan_after, grace=grace)
    names = tuple(passes or Pass)
    with installation() as found:
        if dry_run:
            left = _plan(Reconciler(installation=found, patience=patience, rate=rate), names, as_json=as_json)
        else:
            stop = stop_on_signals()
            ensure_indexes(found.db, audit.indexes())
            reconciler = Reconciler(installation=found, patience=patience, rate=rate, stop=stop)
            if every is None:
                left = _run(reconciler, names, as_json=as_json)
            else:
                pace = {Pass.UNFINISHED: every, Pass.OBJECTS: objects_every or every}
                _go_on(reconciler, {name: pace[name] for name in names}, as_json=as_json)
                left = False
    if left:
        raise typer.Exit(FOUND)


def _plan(reconciler: Reconciler, names: tuple[Pass, ...], *, as_json: bool) -> bool:
    plan = [finding for name in names for finding in reconciler.plan(name)]
    if as_json:
        print_json({"dry_run": True, "findings": [finding.as_json() for finding in plan]})
    else:
        for finding in plan:
            _say(finding, "would be mended" if finding.kind in MENDED else "can only be told")
        if not plan:
            Console().print("Nothing is lost.")
    return bool(plan)


def _go_on(reconciler: Reconciler, every: Mapping[Pass, float], *, as_json: bool) -> None:
    """Until told to stop. The log tells what is found; with ``as_json`` each pass also prints one document."""

    def run(name: Pass) -> Report | None:
        told = _Told()
        report = reconciler.run(name, on_finding=told.tell)
        if as_json:
            told.print_json({name: report})
        return report

    try:
        go_on(reconciler, every, run=run)
    except (StartRefused, SystemExit) as refusal:
        fail(str(refusal))


def _run(reconciler: Reconciler, names: tuple[Pass, ...], *, as_json: bool) -> bool:
    """Whether something is left."""
    told = _Told(say=not as_json)
    reports = {name: reconciler.run(name, on_finding=told.tell) for name in names}
    if as_json:
        told.print_json(reports)
    else:
        for name, report in reports.items():
            what = "another process is at it" if report is None else f"{report.looked_at} looked at"
            Console().print(f"{name}: {what}", highlight=False)
    return told.left


@dataclass
class _Told:
    """What was found. ``left``: something was not mended. ``say``: print each finding as it comes."""

    say: bool = False
    left: bool = False
    findings: list[dict[str, Any]] = field(default_factory=list)

    def tell(self, finding: Finding, problem: str | None) -> None:
        mended = problem is None and finding.kind in MENDED
        self.left = self.left or not mended
        self.findings.append(finding.as_json() | {"mended": mended, "problem": problem})
        if self.say:
            _say(finding, "mended" if mended else f"not mended: {problem}" if problem else "can only be told")

    def print_json(self, reports: Mapping[Pass, Report | None]) -> None:
        passes = {str(name): None if report is None else report.as_json() for name, report in reports.items()}
        print_json({"dry_run": False, "passes": passes, "findings": self.findings})


def _say(finding: Finding, what: str) -> None:
    Console().print(
        plain(f"{finding.kind} {finding.asset_id}: {finding.what}: {what}"), highlight=False, soft_wrap=True
    )
