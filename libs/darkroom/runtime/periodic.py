"""Jobs that are run again and again, each at its own pace, through outages, until they are told to stop."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import structlog

log = structlog.get_logger()


def _nothing() -> None:
    """For a job whose failures nobody counts."""


@dataclass(frozen=True, kw_only=True)
class Periodic:
    """A job. ``every`` is seconds from the end of one run to the beginning of the next; the first is at once.

    ``outages`` are what a server that is away raises out of a run: the next run tries again. ``on_outage`` is told.
    """

    name: str
    every: float
    run: Callable[[], None]
    outages: tuple[type[Exception], ...]
    on_outage: Callable[[], None] = field(default=_nothing)


class PeriodicJobs:
    """Runs jobs side by side, so that one which takes hours keeps up no other."""

    def __init__(self, jobs: Sequence[Periodic], *, stop: threading.Event) -> None:
        self._jobs = jobs
        self._stop = stop
        self._away: dict[str, str] = {}

    def run(self) -> None:
        """Until told to stop.

        Raises:
            Exception: a defect in a job; the others end, too.

        """
        with ThreadPoolExecutor(len(self._jobs), thread_name_prefix="periodic") as pool:
            running = [pool.submit(self._again_and_again, job) for job in self._jobs]
            ended, _ = wait(running, return_when=FIRST_EXCEPTION)
            self._stop.set()
        for one in ended:
            one.result()

    def ready(self) -> dict[str, object]:
        """For a probe. Raises RuntimeError while the last run of a job was ended by an outage."""
        if away := dict(self._away):
            told = ", ".join(f"{name}: {error}" for name, error in sorted(away.items()))
            raise RuntimeError(f"the last run failed: {told}")
        return {}

    def _again_and_again(self, job: Periodic) -> None:
        while not self._stop.is_set():
            try:
                job.run()
            except job.outages as error:
                # What was not done is still to be done in the next run.
                log.warning("run_failed", name=job.name, error=type(error).__name__, reason=str(error)[:300])
                self._away[job.name] = type(error).__name__
                job.on_outage()
            else:
                self._away.pop(job.name, None)
            self._stop.wait(job.every)
