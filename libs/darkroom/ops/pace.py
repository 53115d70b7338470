"""Do things no faster than so many a second."""

import threading
import time


class Pace:
    """``wait`` returns at most ``rate`` times a second; 0 is no bound. A stop ends the waiting."""

    def __init__(self, rate: float, stop: threading.Event | None = None) -> None:
        self._between = 1 / rate if rate > 0 else 0.0
        self._stop = stop or threading.Event()
        self._next = time.monotonic()

    def wait(self) -> None:
        """Wait for the next turn."""
        now = time.monotonic()
        turn = max(self._next, now)
        self._next = turn + self._between
        if turn > now:
            self._stop.wait(turn - now)
