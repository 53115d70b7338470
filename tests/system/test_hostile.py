"""A whole processor among bombs, and while its decoding processes are killed: good pictures come through, it lives on.

Small in `make test`; `make hostile` does both at full size.
"""

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from darkroom.assets import fold, to_document
from darkroom.outbox import from_row
from processor.settings import MIB, Settings
from support import pictures
from support.eventually import eventually
from system.conftest import World

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into processes through /proc"),
    pytest.mark.timeout(900),
]

CHILD_CEILING = Settings.model_fields["decode_memory_bytes"].default
SERVICE_CEILING = 512 * MIB
TERMINAL = {"AssetReady", "AssetFailed"}


def children(pid: int) -> list[int]:
    return [
        int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()
    ]


def peak(pid: int) -> int:
    """The most memory that the process ever held, in bytes; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def watched(pid: int) -> Iterator[dict[int, int]]:
    """The highest peak of the process and of every child it has meanwhile, by process id."""
    peaks: dict[int, int] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            for each in (pid, *children(pid)):
                peaks[each] = max(peaks.get(each, 0), peak(each))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peaks
    finally:
        over.set()
        watcher.join()


def send_all(world: World, files: list[bytes]) -> list[str]:
    """Upload them, several at a time; returns the assets' ids in the same order."""

    def send(data: bytes) -> str:
        return world.uploader.send(filename="a.jpg", content_type="image/jpeg", data=data).asset_id

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(send, files))


def wait_for_ends(world: World, asset_ids: list[str], *, seconds: float) -> None:
    query = {"_id": {"$in": asset_ids}, "status": {"$in": ["READY", "FAILED"]}}
    eventually(
        lambda: world.db.assets.count_documents(query) == len(asset_ids), what="an end of every asset", deadline=seconds
    )


def assert_one_end_each(world: World, asset_ids: list[str]) -> None:
    for asset_id in asset_ids:
        stream = [from_row(row) for row in world.rows(asset_id)]
        assert [event.sequence for event in stream] == [1, 2, 3]
        assert [event.type in TERMINAL for event in stream] == [False, False, True]
        assert world.db.assets.find_one({"_id": asset_id}) == to_document(fold(stream))


def outcome(world: World, asset_id: str) -> str:
    document = world.db.assets.find_one({"_id": asset_id})
    assert document is not None
    return str(document["failure"]["code"] if document["status"] == "FAILED" else document["status"])


def test_bombs_among_good_pictures_fail_alone(world: World, pytestconfig: pytest.Config) -> None:
    good, bombs = (200, 20) if pytestconfig.getoption("--full") else (20, 4)
    photos = [pictures.photo_jpeg(1600 + at, 1200) for at in range(4)]
    scans = [pictures.many_scans_jpeg(scans=5_000), pictures.many_scans_jpeg(scans=300)]
    pixels = [
        pictures.pixel_bomb(12_000),
        pictures.png(13_000, 13_000),
        pictures.text_bomb(),
        pictures.pixel_bomb(30_000),
    ]
    files = [(photos[at % 4], {"READY"}) for at in range(good)]
    files += [(scans[at % 2], {"decode_timeout"}) for at in range(bombs)]
    files += [(pixels[at % 4], {"too_many_pixels", "decompression_bomb"}) for at in range(bombs)]
    # Pictures of as many pixels as are allowed, which do take their memory.
    files += [(pictures.pixel_bomb(9_900), {"READY"})] * (bombs // 2)
    random.Random(11).shuffle(files)
    pid = world.processor.pid
    with watched(pid) as peaks:
        asset_ids = send_all(world, [data for data, _ in files])
        wait_for_ends(world, asset_ids, seconds=600)
    for asset_id, (_, expected) in zip(asset_ids, files, strict=True):
        assert outcome(world, asset_id) in expected
    assert_one_end_each(world, asset_ids)
    assert (world.processor.running, world.processor.pid) == (True, pid)
    own = peaks.pop(pid)
    # Shown with -s.
    print(f"{len(files)} files; peak of the service {own // MIB} MiB, of a child {max(peaks.values()) // MIB} MiB")  # noqa: T201
    assert own < SERVICE_CEILING
    assert max(peaks.values()) < CHILD_CEILING


def test_decoding_processes_killed_at_random_lose_and_double_nothing(world: World, pytestconfig: pytest.Config) -> None:
    kills = 100 if pytestconfig.getoption("--full") else 12
    photo = pictures.photo_jpeg(2400, 1800)
    pid = world.processor.pid
    rng = random.Random(pid)
    asset_ids: list[str] = []
    killed: list[int] = []
    # How long children take to start and to do eight pictures, here and now: kills keep to that pace, or else no child
    # would ever come to do a picture.
    for child in children(pid):
        os.kill(child, signal.SIGKILL)
    began = time.monotonic()
    asset_ids += send_all(world, [photo] * 8)
    wait_for_ends(world, asset_ids, seconds=300)
    pace = time.monotonic() - began
    with ThreadPoolExecutor(1) as threads:
        done = threading.Event()

        def kill() -> None:
            while len(killed) < kills and not done.wait(rng.uniform(0.0, pace / 2)):
                if alive := [child for child in children(pid) if not is_zombie(child)]:
                    victim = rng.choice(alive)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(victim, signal.SIGKILL)
                        killed.append(victim)

        killer = threads.submit(kill)
        try:
            while len(killed) < kills:
                asset_ids += send_all(world, [photo] * 8)
                wait_for_ends(world, asset_ids, seconds=300)
        finally:
            done.set()
        killer.result(timeout=30)
    ends = [outcome(world, asset_id) for asset_id in asset_ids]
    print(f"{len(killed)} kills, {len(ends)} assets, {ends.count('READY')} READY, others: {set(ends) - {'READY'}}")  # noqa: T201
    # Killed twice on the same picture, it is taken for the picture's fault: permanent, by the rule.
    assert set(ends) <= {"READY", "decoder_crashed"}
    assert ends.count("READY") > len(ends) // 2
    assert_one_end_each(world, asset_ids)
    assert (world.processor.running, world.processor.pid) == (True, pid)
    eventually(lambda: not any(map(is_zombie, {*killed, *children(pid)})), what="no zombie", deadline=10)
    assert not set(killed) & set(children(pid))
