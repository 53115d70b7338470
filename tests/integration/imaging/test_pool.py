"""The pool with real child processes, and what becomes of hostile pictures and of children that are killed."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import PIL
import pytest

import darkroom
import processor
from processor.imaging.failure import Cancelled, DecoderUnavailable, FailureCode, Rejected
from processor.imaging.pool import DecoderPool
from processor.imaging.render import render
from processor.imaging.rendition import Limits, OutputFormat, default_specs
from support import pictures

# The decoder's own time limits are tried out here, so the ceiling on scans is lifted.
SPECS, LIMITS = default_specs(), Limits(max_scans=100_000)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel offers this on Linux only")


@pytest.fixture
def pool() -> Iterator[DecoderPool]:
    with DecoderPool(size=1) as made:
        yield made


@pytest.fixture(scope="module")
def slow() -> bytes:
    """A picture that keeps a decoder busy for seconds."""
    return pictures.many_scans_jpeg(scans=20_000)


def eventually(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "did not come true in time"
        os.sched_yield()


def exists(pid: int) -> bool:
    """Whether there is such a process, be it a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def cpu_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])


def code_of(pool: DecoderPool, data: bytes, limits: Limits = LIMITS) -> FailureCode:
    with pytest.raises(Rejected) as caught:
        pool.render(data, SPECS, limits)
    return caught.value.code


def test_a_child_gives_what_the_function_gives(pool: DecoderPool) -> None:
    for data in pictures.all_formats(1500, 700).values():
        assert pool.render(data, SPECS, LIMITS) == render(data, SPECS, LIMITS)


def test_a_rejection_comes_back_as_such_and_the_child_lives_on(pool: DecoderPool) -> None:
    before = pool.pids()
    assert code_of(pool, b"") is FailureCode.EMPTY_OBJECT
    assert code_of(pool, b"%PDF-1.7") is FailureCode.UNSUPPORTED_FORMAT
    assert code_of(pool, pictures.jpeg()[:-50]) is FailureCode.CORRUPT_OR_TRUNCATED
    assert code_of(pool, pictures.pixel_bomb()) is FailureCode.TOO_MANY_PIXELS
    assert pool.pids() == before


def test_more_cpu_than_allowed(slow: bytes) -> None:
    with DecoderPool(size=1, cpu_seconds=1) as pool:
        assert code_of(pool, slow) is FailureCode.DECODE_TIMEOUT
        assert pool.render(pictures.jpeg(), SPECS, LIMITS).width == 64


def test_more_time_than_allowed(slow: bytes) -> None:
    with DecoderPool(size=1, wall_seconds=0.3) as pool:
        began = time.monotonic()
        assert code_of(pool, slow) is FailureCode.DECODE_TIMEOUT
        assert time.monotonic() - began < 2
        assert pool.render(pictures.jpeg(), SPECS, LIMITS).width == 64


@LINUX
def test_more_memory_than_allowed_fails_the_picture_only() -> None:
    generous = Limits(max_pixels=10**9, max_decode_bytes=2**40)
    with DecoderPool(size=1, memory_bytes=192 * 2**20) as pool:
        assert code_of(pool, pictures.pixel_bomb(20_000), generous) is FailureCode.TOO_MANY_PIXELS
        assert pool.render(pictures.jpeg(), SPECS, LIMITS).width == 64


def kill_when_busy(pool: DecoderPool, times: int, done: threading.Event, victims: list[int]) -> None:
    """Kill children that are at work, `times` of them."""
    while len(victims) < times and not done.is_set():
        for pid in pool.pids():
            try:
                # More than start-up takes: it is in the middle of the picture.
                busy = pid not in victims and cpu_ticks(pid) > 40
            except FileNotFoundError:
                continue
            if busy:
                os.kill(pid, signal.SIGKILL)
                victims.append(pid)


@LINUX
@pytest.mark.parametrize("kills", [1, 2])
def test_killed_once_it_is_tried_again_and_killed_twice_the_picture_failed(kills: int) -> None:
    victims: list[int] = []
    done = threading.Event()
    hard = pictures.many_scans_jpeg(scans=300)
    with DecoderPool(size=1, cpu_seconds=60, wall_seconds=60) as pool:
        killer = threading.Thread(target=kill_when_busy, args=(pool, kills, done, victims))
        killer.start()
        try:
            if kills == 1:
                assert pool.render(hard, SPECS, LIMITS).width == 4000
            else:
                assert code_of(pool, hard) is FailureCode.DECODER_CRASHED
        finally:
            done.set()
            killer.join()
        assert len(victims) == kills
        assert pool.render(pictures.jpeg(), SPECS, LIMITS).width == 64
        assert not any(map(exists, victims)), "a zombie is left"


@LINUX
def test_an_idle_child_that_was_killed_is_reaped_and_replaced(pool: DecoderPool) -> None:
    (victim,) = pool.pids()
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: bool(pool.pids()) and victim not in pool.pids() and not exists(victim))
    assert pool.render(pictures.jpeg(), SPECS, LIMITS).width == 64


@LINUX
def test_random_kills_lose_and_double_nothing() -> None:
    data = pictures.photo_jpeg(1600, 1200)
    expected = render(data, SPECS, LIMITS)
    rng = random.Random(4)
    done = threading.Event()

    def kill_now_and_then(pool: DecoderPool) -> int:
        kills = 0
        while kills < 40 and not done.wait(rng.uniform(0.0, 0.06)):
            for pid in rng.sample(pool.pids(), k=min(1, len(pool.pids()))):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
        return kills

    def one(pool: DecoderPool) -> None:
        while True:
            try:
                assert pool.render(data, SPECS, LIMITS) == expected
            except (Rejected, DecoderUnavailable) as reason:
                # Killed twice, or three times while starting: here the caller tries again.
                if getattr(reason, "code", FailureCode.DECODER_CRASHED) is not FailureCode.DECODER_CRASHED:
                    raise
            else:
                return

    with DecoderPool(size=2) as pool, ThreadPoolExecutor(3) as threads:
        killer = threads.submit(kill_now_and_then, pool)
        work = [threads.submit(one, pool) for _ in range(30)]
        for job in work:
            job.result(timeout=60)
        done.set()
        assert killer.result(timeout=10) > 3
        everyone = pool.pids()
    assert not any(map(exists, everyone))


@LINUX
def test_cancelled_in_the_middle_the_child_is_killed(slow: bytes, pool: DecoderPool) -> None:
    (before,) = pool.pids()
    cancelled = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(pool.render, slow, SPECS, LIMITS, cancelled=cancelled)
        eventually(lambda: cpu_ticks(before) > 30)
        cancelled.set()
        with pytest.raises(Cancelled):
            job.result(timeout=2)
    assert not exists(before)
    assert pool.render(pictures.jpeg(), SPECS, LIMITS).width == 64


@LINUX
def test_cancelled_while_it_waits_for_a_free_child(slow: bytes, pool: DecoderPool) -> None:
    first, second = threading.Event(), threading.Event()
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(pool.render, slow, SPECS, LIMITS, cancelled=first)
        eventually(lambda: cpu_ticks(pool.pids()[0]) > 30)
        waiting = threads.submit(pool.render, pictures.jpeg(), SPECS, LIMITS, cancelled=second)
        second.set()
        try:
            with pytest.raises(Cancelled):
                waiting.result(timeout=5)
            assert not running.done()
        finally:
            first.set()
        with pytest.raises(Cancelled):
            running.result(timeout=5)


def test_children_are_replaced_after_so_many_pictures() -> None:
    with DecoderPool(size=1, jobs_per_child=2) as pool:
        served = []
        for _ in range(6):
            eventually(lambda: len(pool.pids()) == 1)
            served.append(pool.pids()[0])
            pool.render(pictures.jpeg(), SPECS, LIMITS)
    assert len(set(served)) == 3
    assert not any(map(exists, served))


def test_many_threads_share_few_children() -> None:
    files = list(pictures.all_formats(400, 300).values())
    with DecoderPool(size=2) as pool, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda at: pool.render(files[at % len(files)], SPECS, LIMITS), range(60)))
    assert [result.format for result in results[:5]] == ["jpeg", "png", "webp", "gif", "avif"]


@LINUX
def test_closing_ends_the_children_and_the_work_in_them(slow: bytes) -> None:
    pool = DecoderPool(size=2)
    with ThreadPoolExecutor(1) as threads:
        eventually(lambda: len(pool.pids()) == 2)
        pids = pool.pids()
        job = threads.submit(pool.render, slow, SPECS, LIMITS)
        eventually(lambda: any(cpu_ticks(pid) > 30 for pid in pids))
        pool.close()
        with pytest.raises(DecoderUnavailable):
            job.result(timeout=5)
    pool.close()
    assert not any(map(exists, pids))
    with pytest.raises(DecoderUnavailable):
        pool.render(pictures.jpeg(), SPECS, LIMITS)


class Held(threading.Event):
    """Never set, but whoever asks may have to wait for the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.hold, self.asked, self.go_on = threading.Event(), threading.Event(), threading.Event()

    def is_set(self) -> bool:
        if self.hold.is_set():
            self.asked.set()
            self.go_on.wait(30)
        return False


@LINUX
def test_closing_takes_no_pipe_from_whoever_uses_it(slow: bytes) -> None:
    pool, cancelled = DecoderPool(size=1), Held()
    with ThreadPoolExecutor(1) as threads:
        (pid,) = pool.pids()
        job = threads.submit(pool.render, slow, SPECS, LIMITS, cancelled=cancelled)
        eventually(lambda: cpu_ticks(pid) > 30)
        cancelled.hold.set()
        assert cancelled.asked.wait(10)
        pool.close()
        cancelled.go_on.set()
        with pytest.raises(DecoderUnavailable):
            job.result(timeout=10)


def test_children_that_cannot_start_are_said_so() -> None:
    with pytest.raises(DecoderUnavailable, match="did not start"):
        DecoderPool(size=1, start_seconds=0.001)


def test_while_no_child_can_be_started_work_and_probe_say_so(
    monkeypatch: pytest.MonkeyPatch, pool: DecoderPool
) -> None:
    pool.probe()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        (pid,) = pool.pids()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(DecoderUnavailable, match="no decoder process can be started"):
            pool.render(pictures.jpeg(), SPECS, LIMITS)
        with pytest.raises(DecoderUnavailable, match="/nowhere/python"):
            pool.probe()

    def recovered() -> bool:
        with contextlib.suppress(DecoderUnavailable):
            pool.probe()
            return True
        return False

    eventually(recovered)
    assert pool.render(pictures.jpeg(), SPECS, LIMITS).renditions


def test_a_probe_can_be_called_off(slow: bytes, pool: DecoderPool) -> None:
    end, called_off = threading.Event(), threading.Event()
    called_off.set()
    with ThreadPoolExecutor(1) as threads:
        busy = threads.submit(pool.render, slow, SPECS, LIMITS, cancelled=end)
        eventually(lambda: bool(pool._busy))
        with pytest.raises(Cancelled):
            pool.probe(cancelled=called_off)
        end.set()
        with pytest.raises(Cancelled):
            busy.result(10)


@LINUX
def test_a_child_has_no_secrets_no_core_dumps_and_only_its_pipes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-inherit")
    with (tmp_path / "open").open("w") as ours, DecoderPool(size=1) as pool:
        os.set_inheritable(ours.fileno(), True)
        pool.render(pictures.jpeg(), SPECS, LIMITS)
        child = Path(f"/proc/{pool.pids()[0]}")
        try:
            environment = (child / "environ").read_bytes()
            files = sorted(str(entry.readlink()) for entry in (child / "fd").iterdir())
        except PermissionError:
            pytest.skip("only root may look into a process that dumps no core")
        limits = (child / "limits").read_text()
        status = (child / "status").read_text()
    assert b"do-not-inherit" not in environment
    assert {name.split(":")[0] for name in files} == {"/dev/null", "pipe"}
    for name, value in (("Max core file size", "0"), ("Max file size", "0"), ("Max address space", str(1_536 * 2**20))):
        (line,) = (line for line in limits.splitlines() if line.startswith(name + " "))
        assert line.removeprefix(name).split()[:2] == [value, value]
    assert "NoNewPrivs:\t1" in status
    assert "CapEff:\t0000000000000000" in status
    (line,) = (line for line in limits.splitlines() if line.startswith("Max open files "))
    assert line.removeprefix("Max open files ").split()[:2] == ["0", "0"]


HOSTILE = """
import os, resource, socket, subprocess, sys
from processor.imaging.decoder_child import shut_in

def attempt(name, what):
    try:
        what()
    except Exception as error:
        print(name, type(error).__name__)
    else:
        print(name, "worked")

def reuse_a_closed_descriptor():
    os.close(0)
    socket.socket()

shut_in()
attempt("internet", lambda: socket.create_connection(("127.0.0.1", 9)))
attempt("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
attempt("unix", lambda: socket.socket(socket.AF_UNIX))
attempt("pair", socket.socketpair)
attempt("file", lambda: open("/etc/passwd"))
attempt("parent", lambda: open(f"/proc/{os.getppid()}/environ"))
attempt("program", lambda: subprocess.run(["true"], check=True))
attempt("raise", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
attempt("closed", reuse_a_closed_descriptor)
"""


@LINUX
def test_a_child_that_was_taken_over_reaches_neither_network_nor_files_nor_programs() -> None:
    shown = subprocess.run([sys.executable, "-c", HOSTILE], capture_output=True, text=True, check=True, timeout=60)
    results = dict(line.split() for line in shown.stdout.splitlines())
    assert len(results) == 9
    assert set(results.values()) <= {"OSError", "PermissionError", "ValueError"}, results


PARENT = """
import signal, sys, threading
from processor.imaging.pool import DecoderPool
from processor.imaging.rendition import Limits, default_specs
pool = DecoderPool(size=2)
# Whoever is started from a shell's background job inherits that SIGINT is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
data = sys.stdin.buffer.read()
threading.Thread(target=pool.render, args=(data, default_specs(), Limits(max_scans=100_000)), daemon=True).start()
while len(pool.pids()) < 2:
    pass
print(*pool.pids(), flush=True)
threading.Event().wait()
"""


@LINUX
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_end_when_the_parent_dies_in_any_way(slow: bytes, how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with parent:
        try:
            assert parent.stdin is not None
            assert parent.stdout is not None
            parent.stdin.write(slow)
            parent.stdin.close()
            pids = [int(word) for word in parent.stdout.readline().split()]
            assert len(pids) == 2
            eventually(lambda: any(cpu_ticks(pid) > 30 for pid in pids))
            parent.send_signal(how)
            parent.wait(timeout=10)
        finally:
            parent.kill()  # or leaving the block would wait for it for ever
    eventually(lambda: not any(map(runs, pids)), seconds=3)


def test_a_child_imports_pillow_and_this_package_only() -> None:
    program = (
        "import sys; import processor.imaging.decoder_child; "
        "print(*sorted({name.split('.')[0] for name in sys.modules} - sys.stdlib_module_names))"
    )
    roots = [str(Path(next(iter(package.__path__))).parent) for package in (processor, darkroom, PIL)]
    shown = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": os.pathsep.join(roots)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.split() == ["PIL", "__main__", "darkroom", "processor"]


def test_a_picture_may_come_in_pieces(pool: DecoderPool) -> None:
    data = pictures.jpeg(3000, 2000)
    for size in (7, 16 * 2**10, 2**20):
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert pool.render(pieces, SPECS, LIMITS) == render(data, SPECS, LIMITS)


def test_heic_is_decoded_in_a_child_too(pool: DecoderPool) -> None:
    data = pictures.heic(pictures.quarters(600, 300))
    assert pool.render(data, SPECS, LIMITS) == render(data, SPECS, LIMITS)


@pytest.mark.parametrize("output", OutputFormat)
def test_nothing_has_to_be_loaded_after_a_child_shut_itself_in(pool: DecoderPool, output: OutputFormat) -> None:
    exif = pictures.oriented_exif(6, gps=True)
    profile = pictures.swapped_profile()
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    variants: list[tuple[str, str, dict[str, object]]] = [
        ("CMYK", "JPEG", {"exif": exif, "icc_profile": profile, "progressive": True}),
        ("RGB", "JPEG", {"xmp": xmp, "icc_profile": profile}),
        ("RGBA", "PNG", {"exif": exif, "icc_profile": profile}),
        ("P", "PNG", {}),
        ("1", "PNG", {}),
        ("RGBA", "WEBP", {"exif": exif, "icc_profile": profile, "xmp": xmp, "lossless": True}),
        ("P", "GIF", {"comment": b"\xe4"}),
        ("RGBA", "AVIF", {"exif": exif, "icc_profile": profile, "xmp": xmp}),
    ]
    files = [pictures.encoded(pictures.quarters(mode=mode), form, **options) for mode, form, options in variants]
    files += [pictures.grey16_ramp(transparent=0), pictures.heic(pictures.quarters(mode="RGBA"), exif=exif)]
    specs = default_specs(output)
    for data in files:
        assert pool.render(data, specs, LIMITS) == render(data, specs, LIMITS)
