"""When a server that everybody needs is away: one worker asks for it, and all others wait for the answer."""

import random
import threading
from collections.abc import Callable

import structlog
from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

log = structlog.get_logger()

NO_SERVICE = frozenset({13, 18, 14031, 6, 7, 89, 91, 133, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436})
"""MongoDB's codes for a server that serves nobody now, whatever is asked: no permission, no space on its disk, and what
the specification of retryable reads calls transient."""
LONGEST_TOLD = 1_000
"""Characters."""


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


def unreachable(error: Exception) -> bool:
    """Whether MongoDB was out of reach, changing or closed to us, rather than refusing just what it was asked."""
    return isinstance(error, PyMongoError) and (
        isinstance(error, ConnectionFailure)
        or error.timeout
        or error.has_error_label("TransientTransactionError")
        or error.has_error_label("RetryableWriteError")
        or (isinstance(error, OperationFailure) and error.code in NO_SERVICE)
    )


def told(defect: Exception) -> str:
    """The defect in a line that every store takes: a lone surrogate, as from a record's JSON, is no UTF-8."""
    return f"{type(defect).__name__}: {defect}"[:LONGEST_TOLD].encode(errors="backslashreplace").decode()
