"""``darkroom reconcile --every``: the reconciler as a process that goes on, with a log, health and metrics."""

import os
from collections.abc import Callable, Mapping
from functools import partial

import structlog

from darkroom.cli.operation import FAILURES
from darkroom.metrics.keeping import ReconcilerMetrics
from darkroom.metrics.registry import exposition, new_registry
from darkroom.ops.findings import Kind
from darkroom.ops.installation import OpsSettings
from darkroom.ops.reconcile import Pass, Reconciler, Report
from darkroom.runtime import logging
from darkroom.runtime.health import health_server
from darkroom.runtime.leased import TurnLost
from darkroom.runtime.periodic import Periodic, PeriodicJobs
from darkroom.runtime.redaction import Redactor, secrets_in
from darkroom.runtime.settings import HealthSettings, LogSettings, load

log = structlog.get_logger()


class ReconcilerSettings(LogSettings, HealthSettings):
    """What a reconciler that goes on can be told, beside what all operations can."""


def go_on(reconciler: Reconciler, every: Mapping[Pass, float], *, run: Callable[[Pass], Report | None]) -> None:
    """Run the passes until told to stop, each ``every`` so many seconds, with metrics on the health port.

    Raises:
        SystemExit: a setting is wrong.
        StartRefused: the health port is taken.

    """
    settings = load(ReconcilerSettings)
    logging.configure(
        service="reconciler",
        level=settings.log_level,
        libraries=settings.log_libraries,
        redactor=Redactor(secrets_in(dict(load(OpsSettings)), os.environ)),
    )
    registry = new_registry()
    metrics = ReconcilerMetrics(
        registry, passes=tuple(Pass), kinds=tuple(Kind), last_end=lambda name: reconciler.last_end(Pass(name))
    )

    def once(name: Pass) -> None:
        report = run(name)
        metrics.passed(name, None if report is None else report.as_json())

    jobs = PeriodicJobs(
        [
            Periodic(
                name=name,
                every=seconds,
                run=partial(once, name),
                outages=(*FAILURES, TurnLost),
                on_outage=partial(metrics.broken_off, name),
            )
            for name, seconds in every.items()
        ],
        stop=reconciler.stop,
    )
    with health_server(
        host=settings.health_host,
        port=settings.health_port,
        live=dict,
        ready=jobs.ready,
        metrics=exposition(registry),
    ) as port:
        log.info("reconciler_started", every={str(name): seconds for name, seconds in every.items()}, health_port=port)
        jobs.run()
    log.info("reconciler_stopped")
