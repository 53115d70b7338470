"""A change stream that wakes the relay when something was appended. A hint only: what the relay reads is the truth."""

import threading
from typing import Any

import structlog
from pymongo.errors import PyMongoError

from darkroom.runtime.mongo import Rows

log = structlog.get_logger()

# Only inserts, and nothing of them: what was appended is read from the collection.
PIPELINE: list[dict[str, Any]] = [{"$match": {"operationType": "insert"}}, {"$project": {"_id": 1}}]
AWAIT_MS = 500


class Hints(threading.Thread):
    """Sets ``wake`` whenever rows were inserted, and whenever the stream was opened, since some may have been missed.

    A stream that is lost (failover, history gone) is opened again at the present; nothing is resumed, because the
    reading that follows finds everything anyway.
    """

    def __init__(self, rows: Rows, *, wake: threading.Event, pause: float = 1.0) -> None:
        super().__init__(name="outbox-hints", daemon=True)
        self._rows = rows
        self._wake = wake
        self._pause = pause
        self._wanted = threading.Event()
        self._stop_asked = threading.Event()

    def want(self, wanted: bool) -> None:
        """Open the stream, or close it while there is a backlog and hints only cost."""
        if wanted:
            self._wanted.set()
        else:
            self._wanted.clear()

    def run(self) -> None:
        """Watch while wanted, until told to stop."""
        while self._wanted.wait() and not self._stop_asked.is_set():
            try:
                self._watch()
            except PyMongoError as error:
                log.warning("hints_lost", error=str(error))
                self._stop_asked.wait(self._pause)

    def stop(self) -> None:
        """End the thread, which takes as long as the server keeps an empty answer back."""
        self._stop_asked.set()
        self._wanted.set()
        if self.is_alive():
            self.join(2 * AWAIT_MS / 1000)

    def _watch(self) -> None:
        with self._rows.watch(PIPELINE, max_await_time_ms=AWAIT_MS) as stream:
            self._wake.set()
            while self._wanted.is_set() and not self._stop_asked.is_set():
                if stream.try_next() is not None:
                    self._wake.set()
