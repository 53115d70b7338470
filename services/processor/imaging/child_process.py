"""The pool's end of one child process."""

import contextlib
import fcntl
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import PIL

import darkroom
import processor
from processor.imaging import wire
from processor.imaging.failure import Rejected
from processor.imaging.rendition import Limits, Rendered, RenditionSpec

_NOTICE_SECONDS = 0.05
# Less than any system's IOV_MAX.
_PIECES_AT_ONCE = 64

# Isolated from the environment and the current folder, and without the site module (a third of the start-up time): the
# two source roots that are needed come as arguments.
_PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:4]
from processor.imaging.decoder_child import main
sys.exit(main(sys.argv[4:]))
"""


class Died(Exception):
    """The process ended, failed, or stopped making sense."""

    def __init__(self, message: str, *, signal: int | None = None) -> None:
        super().__init__(message)
        self.signal = signal
        """What killed it, as far as it was a signal."""


class TimedOut(Exception):
    """The deadline passed."""


class Child:
    """One decoding process and its two pipes. Used by one thread at a time, except `kill` and `has_ended`."""

    def __init__(self, *, memory_bytes: int, cpu_seconds: int, max_reply_bytes: int) -> None:
        """Start the process; returns at once. Raises OSError when the machine refuses."""
        roots = [str(Path(next(iter(package.__path__))).parent) for package in (processor, darkroom, PIL)]
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM, *roots]
        self._process = subprocess.Popen(
            [*command, str(os.getpid()), str(memory_bytes), str(cpu_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            env=_environment(),
            # Ctrl-C in a terminal goes to the whole group; the service decides when its children end.
            start_new_session=True,
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise OSError("the child process has no pipes")
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        for descriptor in (self._to, self._from):
            os.set_blocking(descriptor, False)
            _widen(descriptor)
        self._max_reply_bytes = max_reply_bytes
        self._started = False
        self.jobs = 0
        """Pictures it was given so far."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def await_start(self, *, deadline: float, check: Callable[[], None]) -> None:
        """Wait until it is ready for a first job. Raises Died, TimedOut, or what `check` raises."""
        if not self._started:
            self._talk([], deadline=deadline, check=check)
            self._started = True

    def render(
        self,
        data: bytes | Sequence[bytes],
        specs: Sequence[RenditionSpec],
        limits: Limits,
        *,
        deadline: float,
        check: Callable[[], None],
    ) -> Rendered | Rejected:
        """Give it one picture and wait for the answer. Raises Died, TimedOut, or what `check` raises."""
        self.jobs += 1
        head, payload = self._talk(wire.job(data, specs, limits), deadline=deadline, check=check)
        try:
            reply = wire.read_reply(head, payload)
        except wire.Malformed as error:
            raise Died(str(error)) from error
        if isinstance(reply, str):
            raise Died(reply)
        return reply

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill it and wait for its end. From any thread.

        Its pipes stay open for whoever uses it, and tell of the end: closed, their numbers may soon be other files'.
        """
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Kill it, wait for its end and close the pipes. Any number of times, by whoever has it."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _talk(self, message: list[bytes], *, deadline: float, check: Callable[[], None]) -> tuple[bytes, bytes]:
        """Write all of `message` and read one reply, whichever side is ready first."""
        unsent = [memoryview(piece) for piece in message if piece]
        received = bytearray()
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        if unsent:
            poll.register(self._to, select.POLLOUT)
        while True:
            check()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimedOut("no answer before the deadline")
            for descriptor, _event in poll.poll(min(remaining, _NOTICE_SECONDS) * 1_000):
                if descriptor == self._from:
                    received += self._receive()
                elif not self._send(unsent):
                    poll.unregister(self._to)
            if (reply := self._complete(received)) is not None:
                return reply

    def _send(self, unsent: list[memoryview]) -> bool:
        """Write as much as the pipe takes; False when there is nothing more to write."""
        try:
            written = os.writev(self._to, unsent[:_PIECES_AT_ONCE])
        except BlockingIOError:
            return True
        except BrokenPipeError:
            # The end of its output says how it ended.
            return False
        while unsent and written >= len(unsent[0]):
            written -= len(unsent.pop(0))
        if written:
            unsent[0] = unsent[0][written:]
        return bool(unsent)

    def _receive(self) -> bytes:
        try:
            received = os.read(self._from, wire.PIECE_BYTES)
        except BlockingIOError:
            return b""
        if not received:
            raise self._death()
        return received

    def _complete(self, received: bytearray) -> tuple[bytes, bytes] | None:
        if len(received) < wire.PREFIX.size:
            return None
        head_length, payload_length = wire.PREFIX.unpack_from(received)
        if head_length > wire.MAX_HEAD_BYTES or payload_length > self._max_reply_bytes:
            raise Died(f"announced an answer of {head_length} + {payload_length} bytes")
        start = wire.PREFIX.size + head_length
        if len(received) < start + payload_length:
            return None
        return bytes(received[wire.PREFIX.size : start]), bytes(memoryview(received)[start : start + payload_length])

    def _death(self) -> Died:
        # Its output ended, so it is at its end or no use any more; in the second case the pool kills it.
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return Died("closed its output")
        if code < 0:
            return Died(f"killed by signal {-code}", signal=-code)
        return Died(f"ended with exit code {code}")


def _widen(pipe: int) -> None:
    """Let the pipe hold a megabyte: a picture crosses in a few writes instead of fifty. Linux only, and not needed."""
    if sys.platform == "linux":
        # Refused when the user already has many such pipes.
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, wire.PIECE_BYTES)


def _environment() -> dict[str, str]:
    """Nothing of the service's environment, where its secrets are, but what the loader needs to find its libraries."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "LC_ALL": "C.UTF-8"}
