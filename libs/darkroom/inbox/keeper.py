"""Keeps leases alive while their events are worked on, and calls the work off when one is lost."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pymongo
import structlog
from pymongo.errors import PyMongoError

from darkroom.inbox.inbox import Inbox
from darkroom.inbox.leases import Lease, LeaseLost

log = structlog.get_logger()


CLOSE_SECONDS = 1.0
"""For a renewal that is under way when the keeper is closed; a process that ends has no more time than that."""


@dataclass(eq=False)
class _Held:
    lease: Lease
    lost: threading.Event
    renew_at: float = field(default=0.0)
    known: Mapping[str, Any] = field(default_factory=structlog.contextvars.get_contextvars)
    """What the holder's own lines say of the event: the keeper's thread has none of it."""

    def ids(self) -> dict[str, Any]:
        return {**self.known, "event_id": self.lease.event_id}


class LeaseKeeper:
    """One thread that renews every held lease at a third of its length.

    While MongoDB cannot be reached the lease is neither renewed nor given up: nobody else can reach it either, and the
    final write decides.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._every = inbox.lease_seconds / 3
        self._held: set[_Held] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)
        self._thread.start()

    @contextmanager
    def hold(self, lease: Lease, *, lost: threading.Event) -> Iterator[None]:
        """Renew ``lease`` while the block runs; ``lost`` is set when somebody else took the event over."""
        held = _Held(lease, lost, time.monotonic() + self._every)
        # Nobody is woken: the thread never sleeps past the moment at which a lease taken meanwhile is due.
        with self._changed:
            self._held.add(held)
        try:
            yield
        finally:
            with self._changed:
                self._held.discard(held)

    def close(self) -> None:
        """End the thread; leases still held run out by themselves. A renewal that hangs is not waited for."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while (held := self._next_due()) is not None:
            try:
                # One call that hangs must not let all other leases run out.
                with pymongo.timeout(max(0.5, self._every)):
                    self._inbox.renew(held.lease)
            except LeaseLost:
                with self._changed:
                    still_held = held in self._held
                    self._held.discard(held)
                # A lease that was completed a moment ago is not lost.
                if still_held:
                    self._inbox.observer.lease_lost()
                    log.warning("lease_lost", **held.ids() | {"fence": held.lease.fence})
                    held.lost.set()
            except PyMongoError as error:
                log.warning("lease_renewal_failed", **held.ids(), error=str(error))
                held.renew_at = time.monotonic() + min(1.0, self._every)
            except Exception:
                # Without this thread every lease of the process would run out, however alive its workers are.
                log.exception("lease_renewal_failed", **held.ids())
                held.renew_at = time.monotonic() + min(1.0, self._every)
            else:
                held.renew_at = time.monotonic() + self._every

    def _next_due(self) -> _Held | None:
        with self._changed:
            while not self._closed:
                first = min(self._held, key=lambda held: held.renew_at, default=None)
                delay = self._every if first is None else first.renew_at - time.monotonic()
                if first is not None and delay <= 0:
                    return first
                self._changed.wait(delay)
        return None
