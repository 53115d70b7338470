"""What the benchmarks share: servers, processes to look at, and waiting."""

import contextlib
import os
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from darkroom.local.servers import start_servers

DEADLINE = 600.0


@dataclass(frozen=True)
class Rate:
    """Events a second, and microseconds of the publisher's own CPU time for each."""

    per_second: float
    cpu_us: float


@contextlib.contextmanager
def servers(mongo: str | None, kafka: str | None) -> Iterator[tuple[str, str]]:
    """MongoDB's URL and Kafka's bootstrap servers: those given, the others started in a temporary folder."""
    if mongo and kafka:
        yield mongo, kafka
        return
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        start_servers(Path(folder), mongo_url=mongo, kafka_bootstrap=kafka) as started,
    ):
        yield started.mongo_url, started.kafka_bootstrap


def pause(pid: int, *, stopped: bool) -> None:
    """Stand the process still, or let it go on."""
    os.kill(pid, signal.SIGSTOP if stopped else signal.SIGCONT)


def cpu_seconds(pid: int) -> float:
    """What another process has used so far."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def own_cpu_seconds() -> float:
    """What this process has used so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident_mib(pid: int) -> float:
    """How much memory a process holds."""
    return int(_stat(pid)[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def wait(done: Callable[[], bool], *, every: float = 0.05, what: str = "the events") -> None:
    """Until it is done, or ten minutes have passed."""
    ends = time.monotonic() + DEADLINE
    while not done():
        if time.monotonic() > ends:
            raise SystemExit(f"{what}: not done in {DEADLINE:g} s")
        time.sleep(every)


def percentiles(taken: list[float]) -> dict[str, float]:
    """Median and 99th percentile."""
    ordered = sorted(taken)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[len(ordered) * 99 // 100]}


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
