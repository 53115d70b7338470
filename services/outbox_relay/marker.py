"""Marks rows as published after the broker acknowledged them, in bulk and beside the sending."""

import queue
import threading
import time

import pymongo
import structlog
from pymongo.errors import PyMongoError

from darkroom.runtime.mongo import MAJORITY, Rows

log = structlog.get_logger()

BULK = 1000
"""Rows from which one update is sent without looking for more."""
UPDATE_SECONDS = 10.0
LANES = 2
"""Updates under way at a time: MongoDB works on each in one thread, and they are what bounds a relay."""


class Marker:
    """Marks what it is given and tries again until MongoDB takes it.

    Roughly in order of arrival. The order does not matter: whatever is not marked is published again after a crash,
    behind all that was published before.
    """

    def __init__(self, rows: Rows, *, pause: float = 0.5, lanes: int = LANES) -> None:
        # The next sweep reads a majority snapshot: a mark that is not in it would send its event again.
        self._rows = rows.with_options(write_concern=MAJORITY)
        self._pause = pause
        self._given: queue.Queue[list[str] | None] = queue.Queue()
        self._stop_asked = threading.Event()
        self._changed = threading.Condition()
        self._lanes = [
            threading.Thread(target=self._run, name=f"outbox-marker-{number}", daemon=True) for number in range(lanes)
        ]
        self._waiting = 0
        self.marked = 0

    @property
    def waiting(self) -> int:
        """Rows given and not yet marked."""
        return self._waiting

    def give(self, row_ids: list[str]) -> None:
        """Have these rows marked."""
        if row_ids:
            with self._changed:
                self._waiting += len(row_ids)
            self._given.put(row_ids)

    def wait(self, seconds: float, *, below: int = 1) -> bool:
        """Wait until fewer than ``below`` rows are waiting; false if that took longer than ``seconds``."""
        with self._changed:
            return self._changed.wait_for(lambda: self._waiting < below, seconds)

    def start(self) -> None:
        """Mark from now on."""
        for lane in self._lanes:
            lane.start()

    def stop(self) -> None:
        """End the threads; rows not marked are published again by whoever reads them next."""
        self._stop_asked.set()
        self._given.put(None)
        ends = time.monotonic() + 2 * self._pause + 1
        for lane in self._lanes:
            lane.join(max(0.0, ends - time.monotonic()))

    def _run(self) -> None:
        while (row_ids := self._next()) is not None:
            try:
                with pymongo.timeout(UPDATE_SECONDS):
                    self._rows.update_many(
                        # Marked once and for all: a row that another relay has marked keeps its time.
                        {"_id": {"$in": row_ids}, "published": False},
                        {"$set": {"published": True}, "$currentDate": {"published_at": True}},
                        hint="_id_",
                    )
            except PyMongoError as error:
                log.warning("mark_failed", rows=len(row_ids), error=str(error))
                self._stop_asked.wait(self._pause)
                if self._stop_asked.is_set():
                    return
                self._given.put(row_ids)
            else:
                with self._changed:
                    self._waiting -= len(row_ids)
                    self.marked += len(row_ids)
                    self._changed.notify_all()

    def _next(self) -> list[str] | None:
        row_ids = self._given.get()
        while row_ids is not None and len(row_ids) < BULK:
            try:
                more = self._given.get_nowait()
            except queue.Empty:
                return row_ids
            if more is None:
                self._given.put(None)
                return row_ids
            row_ids = row_ids + more
        if row_ids is None:
            # For the other lanes, which end as well.
            self._given.put(None)
        return row_ids
