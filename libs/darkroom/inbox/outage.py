"""When a server that everybody needs is away: one worker asks for it, and all others wait for the answer."""

import random
import threading
from collections.abc import Callable

import structlog

log = structlog.get_logger()


class Outage(Exception):
    """A server that everybody needs does not answer: no record is to blame, so all work pauses until ``probe`` passes.

    ``probe`` raises while the server is out of reach.
    """

    def __init__(self, server: str, probe: Callable[[], object]) -> None:
        super().__init__(f"{server} does not answer")
        self.server = server
        self.probe = probe


class Breaker:
    """Open while a server is away. Thread-safe: it changes and tells of it under ``changed``."""

    def __init__(self, changed: threading.Condition, *, longest_pause: float) -> None:
        self._changed = changed
        self._longest_pause = longest_pause
        self.server: str | None = None
        """Whom all work waits for, if anybody."""

    def sit_out(self, outage: Outage, cancelled: threading.Event, *, stopping: Callable[[], bool]) -> None:
        """Hold all work until the server answers again, or until ``cancelled`` or ``stopping``.

        The first worker to notice probes for all; the others return at once and find the breaker open.
        """
        with self._changed:
            if self.server is not None:
                return
            self.server = outage.server
        tries = 0
        try:
            while not cancelled.is_set() and not stopping():
                try:
                    outage.probe()
                except Exception as error:  # noqa: BLE001 -- whatever a probe raises means "not yet"
                    tries += 1
                    log.info("outage_goes_on", server=outage.server, error=str(error))
                    cancelled.wait(full_jitter(tries, cap=self._longest_pause))
                else:
                    log.info("outage_over", server=outage.server)
                    return
        finally:
            with self._changed:
                self.server = None
                self._changed.notify_all()


def full_jitter(tries: int, *, first: float = 0.5, cap: float) -> float:
    """Seconds to wait after the ``tries``-th failure: anything up to a bound that doubles, so that herds spread."""
    return random.uniform(0.05, min(cap, first * 2 ** min(tries, 30)))  # noqa: S311 -- spreads load, guards nothing
