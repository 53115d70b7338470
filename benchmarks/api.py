"""What the API adds to the database: POST /assets new and replayed, GET /assets/{id}, each over the bare operations.

    python benchmarks/api.py [--mongo URL] [--seconds S] [--concurrency N] [--json FILE]

One API process on a real mongod, asked over HTTP by one client process. "bare" are the same MongoDB operations by the
same driver, in the client's process, at the same concurrency, in turns of a second with the API, so that whatever else
the machine does meets both. For each: requests a second and the ratio of both; the CPU a request (of the API's process,
or of the one that asks MongoDB itself), and the ratio of requests a second and core, which is what does not depend on
what the two cores do beside; and the p99 at full load and at half of it. Figures compare only within one run. URLs are
signed and nothing is sent to S3: no AWS endpoint is needed. The API counts what an owner may register, by default.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pymongo import ReturnDocument

from darkroom.local.mongod import start_mongod
from darkroom.local.processes import Supervisor
from darkroom.runtime.mongo import TRANSACTION, connect, connect_async
from darkroom.runtime.tokens import mint

SECRET = "a-benchmark-secret-of-more-than-32-bytes"  # noqa: S105 -- of this run alone
WANTED = json.dumps({"filename": "a.jpg", "content_type": "image/jpeg", "size": 4}).encode()
KINDS = ("new", "replay", "get")
PRELOADED = 500
TURN_SECONDS = 1.0

Operation = Callable[[int], Awaitable[None]]


async def load(
    operation: Operation, *, concurrency: int, seconds: float, rate: float | None = None
) -> tuple[list[float], float]:
    """Run it over and over, as fast as it goes or ``rate`` times a second: the latencies, and how long it took in all.

    Latencies count from when each was due.
    """
    took: list[float] = []
    began = time.perf_counter()
    ends = began + seconds
    started = 0

    async def worker(lane: int) -> None:
        nonlocal started
        while (now := time.perf_counter()) < ends:
            due = now
            if rate is not None:
                due = began + started / rate
                started += 1
                await asyncio.sleep(max(0.0, due - now))
            await operation(lane)
            took.append(time.perf_counter() - due)

    await asyncio.gather(*(worker(lane) for lane in range(concurrency)))
    return took, time.perf_counter() - began


class Lanes:
    """Keep-alive connections, one a lane, and no more HTTP than these answers need."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self._token = mint(SECRET, owner="bench")
        self._registered = 0
        self._open: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    def next_owner(self) -> None:
        """Count a registration, and be somebody else before there are as many as one owner may have a minute."""
        if self._registered % PRELOADED == 0:
            self._token = mint(SECRET, owner=f"bench-{self._registered}")
        self._registered += 1

    async def ask(self, lane: int, method: str, path: str, *, key: str = "", body: bytes = b"") -> bytes:
        if lane not in self._open:
            self._open[lane] = await asyncio.open_connection(self._address.hostname, self._address.port)
        reader, writer = self._open[lane]
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._address.netloc}\r\nAuthorization: Bearer {self._token}\r\n"
        if body:
            head += f"Idempotency-Key: {key}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"\r\n" + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer)
        assert answer.split(b" ", 2)[1] in (b"200", b"201"), answer
        assert length is not None
        return await reader.readexactly(int(length[1]))

    def close(self) -> None:
        for _, writer in self._open.values():
            writer.close()


async def api_operations(lanes: Lanes) -> dict[str, Operation]:
    keys = [uuid.uuid4().hex for _ in range(PRELOADED)]
    ids = [json.loads(await lanes.ask(0, "POST", "/assets", key=key, body=WANTED))["asset_id"] for key in keys]
    numbers = iter(range(10**9))

    async def new(lane: int) -> None:
        lanes.next_owner()
        await lanes.ask(lane, "POST", "/assets", key=uuid.uuid4().hex, body=WANTED)

    async def replay(lane: int) -> None:
        await lanes.ask(lane, "POST", "/assets", key=keys[next(numbers) % PRELOADED], body=WANTED)

    async def get(lane: int) -> None:
        await lanes.ask(lane, "GET", f"/assets/{ids[next(numbers) % PRELOADED]}")

    return {"new": new, "replay": replay, "get": get}


async def bare_operations(client: Any, database: str) -> dict[str, Operation]:
    """What MongoDB is asked for in each case: a look at the key and the transaction; a look at the key; one by id."""
    assets, outbox = client[database].assets, client[database].outbox_events
    known = [document async for document in assets.find({"owner_id": "bench"}).limit(PRELOADED)]
    row = await outbox.find_one({"asset_id": known[0]["_id"]})
    numbers = iter(range(10**9))

    async def new(_lane: int) -> None:
        asset_id, key = str(uuid.uuid4()), {"owner_id": "bench", "idempotency_key": uuid.uuid4().hex}
        document = {**{name: value for name, value in known[0].items() if name not in key}, "_id": asset_id}
        await assets.find_one(key)

        async def body(session: Any) -> None:
            await assets.find_one_and_update(
                key,
                {"$setOnInsert": document},
                upsert=True,
                return_document=ReturnDocument.AFTER,
                session=session,
            )
            await outbox.insert_one({**row, "_id": str(uuid.uuid4()), "asset_id": asset_id}, session=session)

        async with client.start_session() as session:
            await session.with_transaction(body, **TRANSACTION)

    async def replay(_lane: int) -> None:
        one = known[next(numbers) % len(known)]
        await assets.find_one({"owner_id": "bench", "idempotency_key": one["idempotency_key"]})

    async def get(_lane: int) -> None:
        await assets.find_one({"_id": known[next(numbers) % len(known)]["_id"], "owner_id": "bench"})

    return {"new": new, "replay": replay, "get": get}


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Measured:
    """One operation in turns with its rival. ``pid``: whose CPU counts."""

    operation: Operation
    pid: int
    took: list[float] = field(default_factory=list)
    took_at_half: list[float] = field(default_factory=list)
    seconds: float = 0.0
    cpu: float = 0.0

    async def turn(self, concurrency: int) -> None:
        used = cpu_seconds(self.pid)
        took, seconds = await load(self.operation, concurrency=concurrency, seconds=TURN_SECONDS)
        self.cpu += cpu_seconds(self.pid) - used
        self.took += took
        self.seconds += seconds

    async def turn_at_half(self, concurrency: int) -> None:
        rate = len(self.took) / self.seconds / 2
        self.took_at_half += (await load(self.operation, concurrency=concurrency, seconds=TURN_SECONDS, rate=rate))[0]

    def result(self) -> dict[str, float]:
        return {
            "per_s": len(self.took) / self.seconds,
            "p50_ms": statistics.median(self.took) * 1e3,
            "p99_ms": p99(self.took) * 1e3,
            "cpu_ms": self.cpu / len(self.took) * 1e3,
            "per_core_s": len(self.took) / self.cpu,
            "half_p99_ms": p99(self.took_at_half) * 1e3,
        }


def p99(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.99)]


Results = dict[str, dict[str, dict[str, float]]]


async def measure(url: str, pid: int, mongo: str, database: str, given: argparse.Namespace) -> Results:
    results: Results = {"api": {}, "bare": {}}
    async with connect_async(mongo) as client:
        with contextlib.closing(Lanes(url)) as lanes:
            api = await api_operations(lanes)
            bare = await bare_operations(client, database)
            # New ones last: they are of other owners then.
            for kind in reversed(KINDS):
                rivals = {"api": Measured(api[kind], pid), "bare": Measured(bare[kind], os.getpid())}
                for one in rivals.values():
                    await load(one.operation, concurrency=given.concurrency, seconds=TURN_SECONDS)
                for _ in range(given.seconds):
                    for one in rivals.values():
                        await one.turn(given.concurrency)
                for _ in range(given.seconds):
                    for one in rivals.values():
                        await one.turn_at_half(given.concurrency)
                for name, one in rivals.items():
                    results[name][kind] = one.result()
    return results


@contextlib.contextmanager
def running_api(mongo: str, database: str, log: Path) -> Iterator[tuple[str, int]]:
    environment = {
        **os.environ,
        "AWS_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "DARKROOM_MONGO_URL": mongo,
        "DARKROOM_MONGO_DATABASE": database,
        "DARKROOM_BUCKET": "bench",
        "DARKROOM_JWT_SECRET": SECRET,
        "DARKROOM_HTTP_PORT": "0",
    }
    with log.open("wb") as stderr:
        process = subprocess.Popen([sys.executable, "-m", "asset_api"], env=environment, stderr=stderr)
    try:
        ends = time.monotonic() + 120
        while not (port := re.search(r'"port": (\d+)', log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < ends, "the API did not start"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port[1]}", process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def run(mongo: str, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    database = f"bench_{uuid.uuid4().hex[:8]}"
    try:
        with running_api(mongo, database, folder / "api.log") as (url, pid):
            measured = asyncio.run(measure(url, pid, mongo, database, given))
    finally:
        with connect(mongo) as client:
            client.drop_database(database)
    return {
        "concurrency": given.concurrency,
        "cores": os.cpu_count(),
        **measured,
        "ratio": {kind: measured["api"][kind]["per_s"] / measured["bare"][kind]["per_s"] for kind in KINDS},
        "ratio_per_core": {
            kind: measured["api"][kind]["per_core_s"] / measured["bare"][kind]["per_core_s"] for kind in KINDS
        },
    }


def table(result: dict[str, Any]) -> str:
    heads = (
        f"{'API/s':>8}{'bare/s':>8}{'ratio':>7}{'API ms CPU':>12}{'bare':>7}{'ratio':>7}"
        f"{'p99 full':>10}{'p99 half':>10}{'bare':>8}"
    )
    lines = [f"{'':8}{heads}"]
    for kind in KINDS:
        api, bare = result["api"][kind], result["bare"][kind]
        lines.append(
            f"{kind:8}{api['per_s']:8.0f}{bare['per_s']:8.0f}{result['ratio'][kind]:7.2f}{api['cpu_ms']:12.2f}"
            f"{bare['cpu_ms']:7.2f}{result['ratio_per_core'][kind]:7.2f}{api['p99_ms']:10.1f}{api['half_p99_ms']:10.1f}"
            f"{bare['half_p99_ms']:8.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mongo")
    parser.add_argument("--seconds", type=int, default=8, help="for each of both, at full load and at half of it")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, Supervisor(Path(name) / "logs") as supervisor:
        mongo = given.mongo or start_mongod(supervisor, Path(name) / "mongo").url
        result = run(mongo, Path(name), given)
    print(table(result))
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
