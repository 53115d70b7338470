"""Start, watch and end processes, so that none outlives the process that started it.

`Supervisor.start` runs a program in a session of its own (Ctrl-C in the terminal does not reach it, so that it is
ended in order), with its output in a log file, and returns once it is ready. However the starting process ends, also
by SIGKILL, the watchdog (`darkroom.local.reaper`) ends every process group that was started here.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from darkroom.local import reaper
from darkroom.local.errors import PieceMissingError, ServerDiedError, ServerNotReadyError

Ready = Callable[[], bool]

_READY_POLL_SECONDS = 0.05
_TAIL_LINES = 20
_TAIL_BYTES = 64 * 1024

# The shell waits for one line before it becomes the program. Were this process killed between starting a child and
# telling the watchdog of it, the child would read the end of the pipe instead, and end.
_GATE = 'read -r go && exec "$@" </dev/null'


class SupervisedProcess:
    """One program under a `Supervisor`. It can be stopped, killed, paused and started again with the same arguments."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log_path: Path,
        watchdog: "_Watchdog",
        env: Mapping[str, str] | None,
        cwd: Path | None,
        ready: Ready | None,
        deadline: float,
        grace: float,
    ) -> None:
        self.name = name
        self.argv = tuple(argv)
        self.log_path = log_path
        self._watchdog = watchdog
        self._env = env
        self._cwd = cwd
        self._ready = ready
        self._deadline = deadline
        self._grace = grace
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._group_exists = False  # once it has ended, its id may be another's: never signal it again

    @property
    def pid(self) -> int:
        """The process id of the latest start; also the id of its process group."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the program runs (a paused one does)."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    def log(self) -> str:
        """What it has written since its latest start."""
        with self.log_path.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def log_tail(self) -> str:
        """The last lines that it has written since its latest start."""
        with self.log_path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])

    def start(self, *, deadline: float | None = None) -> None:
        """Start the program and return once it is ready.

        `deadline` is in seconds, by default what `Supervisor.start` was given. Raises ServerDiedError when the program
        ends first, ServerNotReadyError when the deadline passes first (the program is then killed), PieceMissingError
        when there is no such program.
        """
        if self.running:
            raise RuntimeError(f"{self.name} already runs with pid {self.pid}")
        self.kill()  # what a crashed leader left of its group
        path = None if self._env is None else self._env.get("PATH")
        if shutil.which(self.argv[0], path=path) is None:
            raise PieceMissingError(f"{self.name}: there is no program {self.argv[0]!r} that can be run.")
        self._spawn()
        try:
            self._wait_until_ready(self._deadline if deadline is None else deadline)
        except BaseException:  # also KeyboardInterrupt: nothing half started stays behind
            self.kill()
            raise

    def stop(self, *, grace: float | None = None) -> None:
        """SIGTERM, then SIGKILL to the whole group after `grace` seconds. Does nothing when it does not run."""
        if self._process is not None and self.running:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # a paused process handles SIGTERM only once it runs again
            with contextlib.suppress(subprocess.TimeoutExpired):  # kill() below is the answer to that
                self._process.wait(self._grace if grace is None else grace)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the whole group, as a crash would end it. Does nothing when it does not run."""
        if self._process is None or not self._group_exists:
            return
        self._signal(signal.SIGKILL)  # also when the leader has ended: its children may not have
        self._process.wait()
        self._group_exists = False
        self._watchdog.ended(self._process.pid)

    def pause(self) -> None:
        """SIGSTOP to the whole group: it keeps its connections and does nothing, as in a long garbage collection."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT to the whole group."""
        self._signal(signal.SIGCONT)

    def restart(self, *, grace: float | None = None, deadline: float | None = None) -> None:
        """Stop it when it runs, and start it again with the same arguments, ports and data."""
        self.stop(grace=grace)
        self.start(deadline=deadline)

    def _spawn(self) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            process = subprocess.Popen(
                ["/bin/sh", "-c", _GATE, self.name, *self.argv],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=self._env,
                cwd=self._cwd,
            )
        self._process, self._group_exists = process, True
        gate = process.stdin
        assert gate is not None  # noqa: S101 - stdin=PIPE above; for the type checker
        self._watchdog.started(process.pid)
        with contextlib.suppress(BrokenPipeError), gate:  # a shell that died shows as ServerDiedError
            gate.write(b"go\n")

    def _wait_until_ready(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        reason = "it did not say why"
        while True:
            ready = False
            try:
                ready = self._ready is None or self._ready()
            except Exception as error:  # noqa: BLE001 - any error means "not yet"; the last one is told at the deadline
                reason = f"{type(error).__name__}: {error}"
            if not self.running:
                raise ServerDiedError(
                    f"{self.name} ended with exit code {self.exit_code} before it was ready. "
                    f"Its log is {self.log_path}; the last lines:\n{self.log_tail()}",
                    log_tail=self.log_tail(),
                    log_path=self.log_path,
                )
            if ready:
                return
            if time.monotonic() > deadline:
                raise ServerNotReadyError(
                    f"{self.name} was not ready after {seconds:g} s ({reason}). "
                    f"Its log is {self.log_path}; the last lines:\n{self.log_tail()}"
                )
            time.sleep(_READY_POLL_SECONDS)

    def _signal(self, number: signal.Signals) -> None:
        if not self._group_exists:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
            os.killpg(self.pid, number)


class Supervisor:
    """Starts programs and ends them all, in parallel, when the `with` block or this process ends.

    Logs are `<log_dir>/<name>.log`. `hold` are file descriptors that the watchdog keeps open until everything has
    ended (a lock, so that nobody takes a data folder while servers still write to it).
    """

    def __init__(self, log_dir: Path, *, hold: Sequence[int] = ()) -> None:
        self.log_dir = log_dir
        log_dir.mkdir(parents=True, exist_ok=True)
        self._watchdog = _Watchdog(log_dir / "watchdog.log", hold=hold)
        self._processes: list[SupervisedProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        ready: Ready | None = None,
        deadline: float = 30.0,
        grace: float = 10.0,
    ) -> SupervisedProcess:
        """Start a program and return once `ready` says True.

        `env` is its whole environment (None: this process's). `deadline` (until ready) and `grace` (from SIGTERM to
        SIGKILL) are in seconds. Errors: see `SupervisedProcess.start`.
        """
        process = self.prepare(name, argv, env=env, cwd=cwd, ready=ready, deadline=deadline, grace=grace)
        process.start()
        return process

    def prepare(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        ready: Ready | None = None,
        deadline: float = 30.0,
        grace: float = 10.0,
    ) -> SupervisedProcess:
        """As `start`, without starting it yet."""
        process = SupervisedProcess(
            name,
            argv,
            log_path=self.log_dir / f"{name}.log",
            watchdog=self._watchdog,
            env=env,
            cwd=cwd,
            ready=ready,
            deadline=deadline,
            grace=grace,
        )
        self._processes.append(process)
        return process

    @property
    def processes(self) -> tuple[SupervisedProcess, ...]:
        """Everything that was started or prepared, in that order."""
        return tuple(self._processes)

    def stop(self) -> None:
        """End everything; can be called again."""
        try:
            in_parallel([process.stop for process in self._processes])
        finally:
            self._watchdog.close()


class _Watchdog:
    """The parent's end of the watchdog's pipe."""

    def __init__(self, log_path: Path, *, hold: Sequence[int]) -> None:
        self._lock = threading.Lock()
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", reaper.__file__, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=tuple(hold),
            )

    def started(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def ended(self, group: int) -> None:
        # Once closed there is nothing to take back: the watchdog has ended every group that was left.
        if self._process.returncode is None:
            self._tell(f"-{group}\n")

    def close(self) -> None:
        with self._lock:
            if self._process.returncode is None:
                self._pipe.close()
                self._process.wait()

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process.stdin is not None  # noqa: S101 - stdin=PIPE above; for the type checker
        return self._process.stdin

    def _tell(self, line: str) -> None:
        with self._lock:
            self._pipe.write(line.encode())
            self._pipe.flush()


def in_parallel(calls: Sequence[Callable[[], object]]) -> None:
    """Make all calls at once and wait for all; then raise the first error in the order given, if any."""
    if not calls:
        return
    with ThreadPoolExecutor(max_workers=len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
    for future in futures:
        future.result()


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """While inside, SIGTERM (SystemExit) and SIGINT (KeyboardInterrupt) end the main thread's `with` blocks in order.

    SIGINT is taken back from a shell that starts background jobs with it ignored: whoever sends it means it.
    """

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, leave),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
