"""``darkroom reconcile --every``: passes again and again, each at its own pace, with a log, health and metrics."""

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

import structlog

from darkroom.cli.operation import FAILURES
from darkroom.metrics.keeping import ReconcilerMetrics
from darkroom.metrics.registry import exposition, new_registry
from darkroom.ops.findings import Kind
from darkroom.ops.installation import OpsSettings
from darkroom.ops.reconcile import Pass, Report
from darkroom.runtime import logging
from darkroom.runtime.health import health_server
from darkroom.runtime.leased import TurnLost
from darkroom.runtime.redaction import Redactor, secrets_in
from darkroom.runtime.settings import HealthSettings, LogSettings, load

log = structlog.get_logger()


class RoundsSettings(LogSettings, HealthSettings):
    """What a reconciler that goes on can be told, beside what all operations can."""


class Rounds:
    """Runs each pass until told to stop. ``every`` is seconds from the end of a pass to its next beginning.

    A pass that takes hours keeps up no other, and a server that is away ends none of them: what was not done is still
    there in the next round, and until then the reconciler is not ready.
    """

    def __init__(
        self, every: Mapping[Pass, float], *, run: Callable[[Pass], Report | None], stop: threading.Event
    ) -> None:
        self.registry = new_registry()
        self._metrics = ReconcilerMetrics(self.registry, passes=Pass, kinds=Kind)
        self._stop = stop
        self._every = every
        self._run_pass = run
        self._failed: dict[Pass, str] = {}

    def run(self) -> None:
        """Until told to stop.

        Raises:
            Exception: a defect; the other passes end, too.

        """
        with ThreadPoolExecutor(len(self._every), thread_name_prefix="pass") as pool:
            running = [pool.submit(self._again_and_again, name) for name in self._every]
            ended, _ = wait(running, return_when=FIRST_EXCEPTION)
            self._stop.set()
        for one in ended:
            one.result()

    def ready(self) -> dict[str, object]:
        """Raises RuntimeError when the last run of a pass ended early."""
        if failed := dict(self._failed):
            told = ", ".join(f"{name}: {error}" for name, error in failed.items())
            raise RuntimeError(f"the last pass failed: {told}")
        return {}

    def _again_and_again(self, name: Pass) -> None:
        while not self._stop.is_set():
            try:
                report = self._run_pass(name)
            except (*FAILURES, TurnLost) as error:
                log.warning("pass_failed", name=str(name), error=type(error).__name__, reason=str(error)[:300])
                self._failed[name] = type(error).__name__
            else:
                self._failed.pop(name, None)
                self._metrics.passed(name, None if report is None else report.as_json())
            self._stop.wait(self._every[name])


def go_on(every: Mapping[Pass, float], *, run: Callable[[Pass], Report | None], stop: threading.Event) -> None:
    """Run the passes until told to stop, with metrics on the health port.

    Raises:
        SystemExit: a setting is wrong.
        StartRefused: the health port is taken.

    """
    settings = load(RoundsSettings)
    logging.configure(
        service="reconciler",
        level=settings.log_level,
        libraries=settings.log_libraries,
        redactor=Redactor(secrets_in(dict(load(OpsSettings)), os.environ)),
    )
    rounds = Rounds(every, run=run, stop=stop)
    with health_server(
        host=settings.health_host,
        port=settings.health_port,
        live=dict,
        ready=rounds.ready,
        metrics=exposition(rounds.registry),
    ) as port:
        log.info("reconciler_started", every={str(name): seconds for name, seconds in every.items()}, health_port=port)
        rounds.run()
    log.info("reconciler_stopped")
