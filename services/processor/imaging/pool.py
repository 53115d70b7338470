"""Decode in child processes, so that no picture can hurt the service."""

import logging
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from processor.imaging.child_process import Child, Died, TimedOut
from processor.imaging.failure import Cancelled, DecoderUnavailable, FailureCode, Rejected
from processor.imaging.rendition import Limits, Rendered, RenditionSpec

log = logging.getLogger(__name__)

# How soon a waiting call notices that it was cancelled or that the pool was closed.
_NOTICE_SECONDS = 0.2
# How soon a child that somebody else killed while it was idle is reaped and replaced.
_PATROL_SECONDS = 1.0
# An outside kill (the machine out of memory) says little about the picture; the second death on it does.
_DEATHS_ALLOWED = 1
# A child that dies before it took the picture says nothing about it.
_STARTS_ALLOWED = 3


class DecoderPool:
    """`size` warm child processes that render pictures, one at a time each.

    Each is a fresh interpreter (never a fork of this process, which may hold a Kafka client) with an empty environment,
    `memory_bytes` of address space, `cpu_seconds` of CPU and `wall_seconds` of time a picture, and is replaced after
    `jobs_per_child` pictures and whenever it died. Safe to use from many threads.
    """

    def __init__(
        self,
        *,
        size: int,
        memory_bytes: int = 1_536 * 2**20,
        cpu_seconds: int = 10,
        wall_seconds: float = 30.0,
        jobs_per_child: int = 500,
        start_seconds: float = 30.0,
        max_reply_bytes: int = 64 * 2**20,
        decoded: Callable[[float, bool], None] = lambda _seconds, _alive: None,
    ) -> None:
        """Start the children and wait for the first. Raises DecoderUnavailable when it does not come up.

        `decoded` is told, from many threads, how many seconds a child had a picture and whether it lived to give it
        back; it must be quick.
        """
        if size < 1 or jobs_per_child < 1 or cpu_seconds < 1 or wall_seconds <= 0:
            raise ValueError("size, jobs_per_child, cpu_seconds and wall_seconds must be positive")
        self._new_child: Callable[[], Child] = lambda: Child(
            memory_bytes=memory_bytes, cpu_seconds=cpu_seconds, max_reply_bytes=max_reply_bytes
        )
        self._wall_seconds = wall_seconds
        self._cpu_seconds = cpu_seconds
        self._jobs_per_child = jobs_per_child
        self._start_seconds = start_seconds
        self._closed = threading.Event()
        self._changed = threading.Condition()
        self._idle: deque[Child] = deque()
        self._busy: set[Child] = set()
        self._wanted: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._refused: str | None = None
        self._decoded = decoded
        # One thread starts all children and lives as long as the pool: Linux delivers the parent-death signal when the
        # *thread* that started a child ends.
        self._starter = threading.Thread(target=self._start_children, name="decoder-starter", daemon=True)
        self._starter.start()
        for _ in range(size):
            self._wanted.put(None)
        try:
            self._give_back(self._take_started(None), reuse=True)
        except BaseException:
            self.close()
            raise

    def render(
        self,
        data: bytes | Sequence[bytes],
        specs: Sequence[RenditionSpec],
        limits: Limits,
        *,
        cancelled: threading.Event | None = None,
    ) -> Rendered:
        """Render in the next free child; blocks until there is one. ``data`` is the file, perhaps in pieces.

        Raises Rejected when the picture is at fault, Cancelled soon after `cancelled` was set (the child is killed),
        and DecoderUnavailable when the pool is closed or no child starts.
        """
        deaths: list[str] = []
        while len(deaths) <= _DEATHS_ALLOWED:
            child = self._take_started(cancelled)
            alive, begun = False, time.monotonic()
            try:
                reply = child.render(
                    data, specs, limits, deadline=time.monotonic() + self._wall_seconds, check=self._check(cancelled)
                )
                alive = True
            except TimedOut:
                raise Rejected(
                    FailureCode.DECODE_TIMEOUT, f"not decoded within {self._wall_seconds:g} seconds"
                ) from None
            except Died as death:
                if death.signal == signal.SIGXCPU:
                    raise Rejected(
                        FailureCode.DECODE_TIMEOUT, f"not decoded within {self._cpu_seconds} seconds of CPU"
                    ) from None
                log.warning("decoder_child_died", extra={"cause": str(death), "pid": child.pid})
                deaths.append(str(death))
                continue
            finally:
                self._decoded(time.monotonic() - begun, alive)
                self._give_back(child, reuse=alive and child.jobs < self._jobs_per_child)
            if isinstance(reply, Rejected):
                raise reply
            return reply
        raise Rejected(FailureCode.DECODER_CRASHED, f"the decoder died twice: {'; '.join(deaths)}")

    def probe(self, *, cancelled: threading.Event | None = None) -> None:
        """See that a child is there or can be started. Raises DecoderUnavailable when not, Cancelled as `render`."""
        self._give_back(self._take_started(cancelled), reuse=True)

    def pids(self) -> tuple[int, ...]:
        """Process ids of the children that there are now."""
        with self._changed:
            return tuple(child.pid for child in (*self._idle, *self._busy))

    def use(self) -> tuple[int, int]:
        """How many children are idle, and how many are at work."""
        with self._changed:
            return len(self._idle), len(self._busy)

    def close(self) -> None:
        """End all children and wait for their ends; calls in `render` raise DecoderUnavailable. May be called twice."""
        self._closed.set()
        self._wanted.put(None)
        self._starter.join()
        with self._changed:
            idle, busy = [*self._idle], [*self._busy]
            self._idle.clear()
            self._changed.notify_all()
        for child in idle:
            child.end()
        for child in busy:
            child.kill()  # whoever uses it gives it back, and ends it by that

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_children(self) -> None:
        while not self._closed.is_set():
            try:
                self._wanted.get(timeout=_PATROL_SECONDS)
            except queue.Empty:
                self._replace_dead()
                continue
            if self._closed.is_set():
                return
            try:
                child = self._new_child()
            except Exception as error:
                # Out of processes or memory for now; and without this thread no child would ever be started again.
                log.exception("decoder_child_not_started")
                self._refused = str(error)
                self._closed.wait(_PATROL_SECONDS)
                self._wanted.put(None)
                continue
            with self._changed:
                self._refused = None
                self._idle.append(child)
                self._changed.notify()

    def _replace_dead(self) -> None:
        with self._changed:
            dead = [child for child in self._idle if child.has_ended()]
            for child in dead:
                self._idle.remove(child)
        for child in dead:
            child.end()
            self._wanted.put(None)

    def _take_started(self, cancelled: threading.Event | None) -> Child:
        """A child that is ready for a picture. What is taken must be given back."""
        failures: list[str] = []
        while len(failures) < _STARTS_ALLOWED:
            child = self._take(cancelled)
            try:
                child.await_start(deadline=time.monotonic() + self._start_seconds, check=self._check(cancelled))
            except (Died, TimedOut) as error:
                self._give_back(child, reuse=False)
                failures.append(str(error))
            except BaseException:
                self._give_back(child, reuse=False)
                raise
            else:
                return child
        raise DecoderUnavailable(f"decoder processes did not start: {'; '.join(failures)}")

    def _take(self, cancelled: threading.Event | None) -> Child:
        check = self._check(cancelled)
        while True:
            with self._changed:
                if not self._idle:
                    self._changed.wait(_NOTICE_SECONDS)
                check()
                if not self._idle:
                    if not self._busy and self._refused is not None:
                        raise DecoderUnavailable(f"no decoder process can be started: {self._refused}")
                    continue
                child = self._idle.popleft()
                self._busy.add(child)
            if not child.has_ended():
                return child
            self._give_back(child, reuse=False)

    def _give_back(self, child: Child, *, reuse: bool) -> None:
        if not reuse:
            child.end()
        with self._changed:
            self._busy.discard(child)
            if reuse and not self._closed.is_set():
                # The one used last is the one whose memory is still in the processor's caches.
                self._idle.appendleft(child)
                self._changed.notify()
                return
        if reuse:
            child.end()
        self._wanted.put(None)

    def _check(self, cancelled: threading.Event | None) -> Callable[[], None]:
        def check() -> None:
            if self._closed.is_set():
                raise DecoderUnavailable("the decoder pool is closed")
            if cancelled is not None and cancelled.is_set():
                raise Cancelled("the work was withdrawn")

        return check
