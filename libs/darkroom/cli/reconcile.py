"""``darkroom reconcile``: what was lost between MongoDB, S3 and Kafka is found and mended."""

from typing import Annotated, Any

import structlog
import typer
from rich.console import Console

from darkroom.cli.operation import FOUND, DryRun, Json, fail, installation, print_json
from darkroom.metrics.keeping import ReconcilerMetrics
from darkroom.metrics.registry import exposition, new_registry
from darkroom.ops import audit
from darkroom.ops.findings import MENDED, Finding, Kind, Patience
from darkroom.ops.reconcile import Pass, Reconciler, Report
from darkroom.runtime import logging
from darkroom.runtime.health import health_server
from darkroom.runtime.mongo import ensure_indexes
from darkroom.runtime.settings import HealthSettings, load
from darkroom.runtime.shutdown import stop_on_signals
from darkroom.runtime.start import StartRefused

log = structlog.get_logger()

DEFAULT = Patience()


def reconcile(
    passes: Annotated[
        list[Pass] | None,
        typer.Option("--pass", help="Only this pass: unfinished (quick) or objects (the whole bucket)."),
    ] = None,
    every: Annotated[float | None, typer.Option(min=1, help="Go on, with a run every so many seconds.")] = None,
    unfinished_after: Annotated[
        float, typer.Option(min=0, help="Seconds that an asset may be under way before it counts as stuck.")
    ] = DEFAULT.unfinished,
    again_after: Annotated[
        float, typer.Option(min=0, help="Seconds until what was announced again is announced once more.")
    ] = DEFAULT.again,
    orphan_after: Annotated[
        float, typer.Option(min=0, help="Seconds that an object may be there without a record before it is tagged.")
    ] = DEFAULT.orphan,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds from an object's tag until it is removed.")
    ] = DEFAULT.grace,
    rate: Annotated[
        float, typer.Option(min=0, help="At most so many requests and actions a second; 0: no bound.")
    ] = 50.0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Find what was lost on the way and mend it: notifications, workers, renditions, records, objects.

    Only one process runs a pass at a time; a pass that was stopped goes on where it was.

    Exit code 0: nothing was found, or all is mended. 1: something was found (--dry-run), or is left. 2: it could not
    run.
    """
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
                left, _ = _run(reconciler, names, as_json=as_json)
            else:
                left = _again_and_again(reconciler, names, every, as_json=as_json)
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


def _again_and_again(reconciler: Reconciler, names: tuple[Pass, ...], every: float, *, as_json: bool) -> bool:
    """Until told to stop, with metrics on the health port."""
    logging.configure(service="reconciler")
    registry, given = new_registry(), load(HealthSettings)
    metrics = ReconcilerMetrics(registry, passes=Pass, kinds=Kind)
    try:
        with health_server(
            host=given.health_host, port=given.health_port, live=dict, ready=dict, metrics=exposition(registry)
        ) as port:
            log.info("reconciler_started", every=every, health_port=port)
            while True:
                left, reports = _run(reconciler, names, as_json=as_json)
                for name, report in reports.items():
                    metrics.passed(name, None if report is None else report.as_json())
                if reconciler.stop.wait(every):
                    return left
    except StartRefused as refusal:
        fail(str(refusal))


def _run(reconciler: Reconciler, names: tuple[Pass, ...], *, as_json: bool) -> tuple[bool, dict[Pass, Report | None]]:
    """Whether something is left, and each pass's report."""
    told: list[dict[str, Any]] = []
    left = False

    def tell(finding: Finding, problem: str | None) -> None:
        nonlocal left
        mended = problem is None and finding.kind in MENDED
        left = left or not mended
        told.append(finding.as_json() | {"mended": mended, "problem": problem})
        if not as_json:
            _say(finding, "mended" if mended else f"not mended: {problem}" if problem else "can only be told")

    reports: dict[Pass, Report | None] = {name: reconciler.run(name, on_finding=tell) for name in names}
    if as_json:
        passes = {str(name): None if report is None else report.as_json() for name, report in reports.items()}
        print_json({"dry_run": False, "passes": passes, "findings": told})
    else:
        for name, report in reports.items():
            what = "another process is at it" if report is None else f"{report.looked_at} looked at"
            Console().print(f"{name}: {what}", highlight=False)
    return left, reports


def _say(finding: Finding, what: str) -> None:
    Console().print(f"{finding.kind} {finding.asset_id}: {finding.what}: {what}", highlight=False, soft_wrap=True)
