"""What the sandbox costs beside the bare decoder, how slots scale, what they hold in memory, and what others take.

    python benchmarks/imaging.py [--rounds N] [--corpus DIR] [--whole N] [--json FILE]

- CPU of the sandbox (this process and its children) and of a bare Pillow loop (imaging_bare.py) on the same pictures,
  in turns; the ratio bare / sandbox is the median of the rounds' ratios.
- Pictures a second with one and with two slots, and the peak memory of a child.
- With --whole N: CPU of a whole processor, as a process on real servers, over N uploads a turn, in turns with the bare
  loop; the ratio likewise.
- pyvips and thumbor on the same pictures and boxes, each in an environment of its own in the cache folder, skipped with
  the reason where they do not install. With --corpus also the outcomes of pyvips and of the sandbox beside its table.

Figures compare only within one run on one machine; CPU seconds also grow when others use the machine's caches.
"""

import argparse
import contextlib
import csv
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from darkroom.cli.client import Uploader
from darkroom.cli.photo import dusk
from darkroom.local.jars import cache_folder
from darkroom.local.ports import free_ports
from darkroom.local.stack import start_stack
from processor.imaging.failure import Rejected
from processor.imaging.pool import DecoderPool
from processor.imaging.rendition import Limits, default_specs

HERE = Path(__file__).parent
PYVIPS = ["pyvips==3.2.0", "pyvips-binary==8.18.7"]
THUMBOR = ["thumbor==7.8.0"]
TICKS = os.sysconf("SC_CLK_TCK")
MIB = 2**20


def twelve_megapixels() -> dict[str, bytes]:
    return {f"photo{seed}.jpg": dusk(4000, 3000, seed=seed, grain=0.3) for seed in range(3)}


def mixed() -> dict[str, bytes]:
    """What a day brings: photos large and small, screenshots, animations, print files."""
    large = Image.open(BytesIO(dusk(3000, 2000, grain=0.2)))
    small = large.resize((1600, 1067))
    clear = small.convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(small.size))

    def file(image: Image.Image, form: str, **options: Any) -> bytes:
        into = BytesIO()
        image.save(into, form, **options)
        return into.getvalue()

    tiny = small.resize((320, 213))
    return {
        "large.jpg": dusk(4000, 3000, grain=0.3),
        "progressive.jpg": file(large, "JPEG", progressive=True, quality=88),
        "cmyk.jpg": file(small.convert("CMYK"), "JPEG", quality=88),
        "small.jpg": file(tiny, "JPEG", quality=85),
        "photo.png": file(small, "PNG"),
        "clear.png": file(clear, "PNG"),
        "palette.png": file(small.quantize(64), "PNG"),
        "photo.webp": file(large, "WEBP", quality=82),
        "clear.webp": file(clear, "WEBP", quality=82),
        "anim.gif": file(tiny, "GIF", save_all=True, append_images=[tiny.rotate(90 * at) for at in range(1, 4)]),
        "photo.avif": file(small, "AVIF", quality=70),
    }


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / TICKS


def children(pid: int) -> list[int]:
    return [
        int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()
    ]


def peak_of(pid: int) -> int:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def through(pool: DecoderPool, files: Sequence[bytes], rounds: int, threads: int) -> dict[str, float]:
    """CPU and wall seconds a picture, of this process and the pool's children together."""
    specs, limits = default_specs(), Limits()
    work = [data for _ in range(rounds) for data in files]
    before = own_cpu() + sum(map(cpu_of, pool.pids()))
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as executor:
        list(executor.map(lambda data: pool.render(data, specs, limits), work))
    wall = time.perf_counter() - began
    cpu = own_cpu() + sum(map(cpu_of, pool.pids())) - before
    return {"cpu": cpu / len(work), "wall": wall / len(work)}


def wait_for_children(pool: DecoderPool, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(pool.pids()) < count:
        assert time.monotonic() < deadline, "the children did not start"
        os.sched_yield()


def measured(command: Sequence[str | Path]) -> dict[str, Any]:
    shown = subprocess.run(command, capture_output=True, check=True, text=True)
    return dict(json.loads(shown.stdout.splitlines()[-1]))


def against_bare(folder: Path, rounds: int, turns: int = 5) -> dict[str, Any]:
    paths = sorted(folder.iterdir())
    files = [path.read_bytes() for path in paths]
    ratios, bare_cpu, sandbox_cpu = [], [], []
    with DecoderPool(size=1, jobs_per_child=10**6) as pool:
        through(pool, files, 1, 1)
        for _ in range(turns):
            bare = measured([sys.executable, HERE / "imaging_bare.py", str(rounds), *paths])
            sandbox = through(pool, files, rounds, 1)
            ratios.append(bare["cpu"] / sandbox["cpu"])
            bare_cpu.append(bare["cpu"])
            sandbox_cpu.append(sandbox["cpu"])
        (child,) = pool.pids()
        peak = peak_of(child)
    return {
        "bare_cpu_ms": round(statistics.median(bare_cpu) * 1e3, 1),
        "sandbox_cpu_ms": round(statistics.median(sandbox_cpu) * 1e3, 1),
        "bare_by_sandbox": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "bare_peak_mib": bare["peak"] // MIB,
        "child_peak_mib": peak // MIB,
    }


def slots(folder: Path, rounds: int, turns: int = 5) -> dict[str, Any]:
    files = [path.read_bytes() for path in sorted(folder.iterdir())]
    speeds: dict[int, list[float]] = {1: [], 2: []}
    with DecoderPool(size=1, jobs_per_child=10**6) as one, DecoderPool(size=2, jobs_per_child=10**6) as two:
        wait_for_children(two, 2)
        for pool, count in ((one, 1), (two, 2)):
            through(pool, files, 1, count)
        for _ in range(turns):
            for pool, count in ((one, 1), (two, 2)):
                speeds[count].append(1 / through(pool, files, rounds * count, count + 1)["wall"])
    return {
        "one_per_second": round(statistics.median(speeds[1]), 2),
        "two_per_second": round(statistics.median(speeds[2]), 2),
        "two_by_one": round(statistics.median(b / a for a, b in zip(speeds[1], speeds[2], strict=True)), 3),
        "load_average": round(os.getloadavg()[0], 1),
    }


def whole(count: int, folder: Path, rounds: int, turns: int = 5) -> dict[str, Any]:
    """CPU of the processor's process and its children over ``count`` uploads a turn: Kafka, MongoDB and S3 are in it.

    The bare loop has its turns in between, beside the same servers.
    """
    paths = sorted(folder.iterdir())
    files = [path.read_bytes() for path in paths]
    ratios, bare_cpu, whole_cpu, speeds = [], [], [], []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place, start_stack(Path(place)) as stack:
        uploader = Uploader(stack.api_url, stack.token("bench"))
        pid = stack.services["processor"][0].pid

        def send(at: int) -> str:
            return uploader.send(filename="a.jpg", content_type="image/jpeg", data=files[at % len(files)]).asset_id

        def until_ready(asset_ids: Sequence[str]) -> None:
            for asset_id in asset_ids:
                deadline = time.monotonic() + 300
                while (status := uploader.get(asset_id)["status"]) != "READY":
                    assert status != "FAILED", asset_id
                    assert time.monotonic() < deadline, asset_id
                    time.sleep(0.1)

        def used() -> float:
            return cpu_of(pid) + sum(map(cpu_of, children(pid)))

        until_ready([send(at) for at in range(6)])
        for _ in range(turns):
            bare = measured([sys.executable, HERE / "imaging_bare.py", str(rounds), *paths])["cpu"]
            before, began = used(), time.perf_counter()
            with ThreadPoolExecutor(4) as threads:
                until_ready(list(threads.map(send, range(count))))
            speeds.append(count / (time.perf_counter() - began))
            bare_cpu.append(bare)
            whole_cpu.append((used() - before) / count)
            ratios.append(bare / whole_cpu[-1])
        uploader.close()
    return {
        "uploads_a_turn": count,
        "bare_cpu_ms": round(statistics.median(bare_cpu) * 1e3, 1),
        "cpu_ms": round(statistics.median(whole_cpu) * 1e3, 1),
        "per_second": round(statistics.median(speeds), 2),
        "bare_by_whole": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def environment(name: str, packages: Sequence[str]) -> Path:
    """The interpreter of a virtual environment with the packages, made once. Raises RuntimeError with the reason."""
    folder = cache_folder() / "bench" / f"{name}-{packages[-1].partition('==')[2]}"
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        installed = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *packages], capture_output=True, text=True, check=False
        )
        if installed.returncode:
            raise RuntimeError(f"{' '.join(packages)} did not install: {installed.stderr.strip().splitlines()[-1]}")
        (folder / ".ready").touch()
    return python


@contextlib.contextmanager
def thumbor(python: Path, folder: Path) -> Iterator[tuple[str, int]]:
    """A running thumbor that reads `folder`: its address and its process id."""
    (port,) = free_ports(1)
    settings = folder.parent / "thumbor.conf"
    settings.write_text(
        f"LOADER = 'thumbor.loaders.file_loader'\nFILE_LOADER_ROOT_PATH = {str(folder)!r}\n"
        "STORAGE = 'thumbor.storages.no_storage'\nALLOW_UNSAFE_URL = True\nQUALITY = 82\nAUTO_WEBP = False\n"
        "MAX_WIDTH = 0\nMAX_HEIGHT = 0\n"
    )
    command = [str(python), "-m", "thumbor.server", "-i", "127.0.0.1", "-p", str(port), "-c", str(settings)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 30
            while True:
                with contextlib.suppress(httpx.TransportError):
                    httpx.get(f"http://127.0.0.1:{port}/healthcheck")
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("thumbor did not start")
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()


def by_thumbor(folder: Path, rounds: int) -> dict[str, Any]:
    with thumbor(environment("thumbor", THUMBOR), folder) as (url, pid), httpx.Client(timeout=60) as client:
        names = [path.name for path in sorted(folder.iterdir())]
        refused = set()

        def ask() -> None:
            for name in names:
                for side in (1024, 256):
                    answer = client.get(f"{url}/unsafe/fit-in/{side}x{side}/filters:format(jpeg)/{name}")
                    if answer.status_code != 200:
                        refused.add(f"{name}: {answer.status_code}")

        ask()
        before = cpu_of(pid)
        for _ in range(rounds):
            ask()
        cpu = (cpu_of(pid) - before) / (rounds * len(names))
        return {"cpu_ms": round(cpu * 1e3, 1), "peak_mib": peak_of(pid) // MIB, "refused": sorted(refused)}


def by_vips(folder: Path, rounds: int) -> dict[str, Any]:
    python = environment("pyvips", PYVIPS)
    found = measured([python, HERE / "imaging_vips.py", "measure", str(rounds), *sorted(folder.iterdir())])
    return {"cpu_ms": round(found["cpu"] * 1e3, 1), "peak_mib": found["peak"] // MIB}


def outcomes(corpus: Path) -> dict[str, Any]:
    """Files of the collection on which each differs from the table, by name."""
    with (corpus / "MANIFEST.tsv").open(encoding="utf-8", newline="") as file:
        expected = {
            row["file"]: row["expected"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        }
    paths = [corpus / name for name in expected]
    vips = measured([environment("pyvips", PYVIPS), HERE / "imaging_vips.py", "outcomes", *paths])
    ours = {}
    with DecoderPool(size=1) as pool:
        for path in paths:
            try:
                made = pool.render(path.read_bytes(), default_specs(), Limits())
                ours[path.name] = f"READY {made.width}x{made.height}"
            except Rejected as reason:
                ours[path.name] = f"FAILED {reason}"
    differs = {}
    for who, found in (("sandbox", ours), ("pyvips", vips)):
        # READY with the right size or FAILED; why it failed is each library's own words.
        right = {
            name: re.findall(r"READY \d+x\d+", text) + (["FAILED"] if "FAILED" in text else [])
            for name, text in expected.items()
        }
        differs[who] = {
            name: text for name, text in found.items() if not any(text.startswith(one) for one in right[name])
        }
    return {"files": len(expected), "wrong": differs}


def attempt(what: str, step: Any) -> Any:
    try:
        return step()
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        print(f"{what}: skipped ({error})", file=sys.stderr)
        return {"skipped": str(error)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--whole", type=int, default=0)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rounds: int = arguments.rounds
    result: dict[str, Any] = {"cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as base:
        for name, files in (("12_megapixels", twelve_megapixels()), ("mixed", mixed())):
            folder = Path(base) / name
            folder.mkdir()
            for file, data in files.items():
                (folder / file).write_bytes(data)
            result[name] = {
                "sandbox": against_bare(folder, rounds),
                "slots": slots(folder, rounds),
                "pyvips": attempt("pyvips", lambda: by_vips(folder, rounds)),  # noqa: B023 - called at once
                "thumbor": attempt("thumbor", lambda: by_thumbor(folder, rounds)),  # noqa: B023 - called at once
            }
            if arguments.whole and name == "12_megapixels":
                result["whole_processor"] = whole(arguments.whole, folder, rounds)
        if arguments.corpus:
            result["corpus"] = attempt("corpus", lambda: outcomes(arguments.corpus))
    print(json.dumps(result, indent=2))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
