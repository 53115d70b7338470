"""Server-Sent Events as a client sees them, from real processes."""

import asyncio
import contextlib
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pymongo.database import Database

from darkroom.runtime.mongo import connect_async
from darkroom.runtime.tokens import mint
from support.eventually import eventually
from support.live_stage import Key, assert_once_and_in_order, become, commit, life, live_through
from support.sockets import read_all
from support.sse_client import EventSource, Received

Api = Any
Db = Database[dict[str, Any]]
LISTENERS = int(os.environ.get("DARKROOM_TEST_LISTENERS", "30"))
ASSETS = int(os.environ.get("DARKROOM_TEST_ASSETS", "40"))


def owner() -> str:
    return f"owner-{uuid.uuid4().hex[:8]}"


async def take(source: EventSource, count: int, *, seconds: float = 20) -> list[Received]:
    """The next so many events."""
    received: list[Received] = []
    async with asyncio.timeout(seconds):
        async for one in source.events():
            received.append(one)
            if len(received) == count:
                break
    return received


async def until_end(source: EventSource, *, seconds: float = 20) -> list[Received]:
    async with asyncio.timeout(seconds):
        return [one async for one in source.events()]


def keys(received: list[Received]) -> list[Key]:
    return [(one.data["asset_id"], one.data["sequence"]) for one in received if one.event == "message"]


def play(scene: Callable[[Any], Any], mongo_url: str) -> None:
    async def run() -> None:
        async with connect_async(mongo_url) as client:
            await scene(client)

    asyncio.run(run())


def test_an_assets_stream_tells_its_past_and_then_its_present(api: Api, api_db: Db, mongo_url: str) -> None:
    who = owner()
    first, second, third = life(who)

    async def scene(client: Any) -> None:
        await commit(client, api_db.name, first)
        await commit(client, api_db.name, second)
        url = f"{api.url}/assets/{first.after.id}/stream"
        async with EventSource(url, api.headers(owner=who)) as source:
            assert source.status == 200
            assert source.headers["content-type"].startswith("text/event-stream")
            assert source.headers["cache-control"] == "no-store"
            assert source.headers["x-accel-buffering"] == "no"
            assert keys(await take(source, 2)) == [(first.after.id, 1), (first.after.id, 2)]
            await commit(client, api_db.name, third)
            (ready,) = await take(source, 1)
            assert (ready.id, ready.data["type"]) == ("3", "AssetReady")
            assert ready.data["data"]["renditions"][0]["name"] == "thumb"
            assert source.retry == 1000
        async with EventSource(url, api.headers(owner=who), last_id="1") as source:
            assert keys(await take(source, 2)) == [(first.after.id, 2), (first.after.id, 3)]

    play(scene, mongo_url)


@pytest.mark.parametrize("last_id", ["3", "4294967295", "9999999999", "99999999999", "-1", "1.0", "²"])
def test_an_asset_id_of_what_never_happened_is_heard_from_the_beginning(
    api: Api, api_db: Db, mongo_url: str, last_id: str
) -> None:
    who = owner()
    first, second, third = life(who)

    async def scene(client: Any) -> None:
        await commit(client, api_db.name, first)
        await commit(client, api_db.name, second)
        url = f"{api.url}/assets/{first.after.id}/stream"
        async with EventSource(url, api.headers(owner=who), last_id=last_id) as source:
            assert keys(await take(source, 2)) == [(first.after.id, 1), (first.after.id, 2)]
            await commit(client, api_db.name, third)
            assert keys(await take(source, 1)) == [(first.after.id, 3)]

    play(scene, mongo_url)


def test_who_has_heard_all_of_an_asset_hears_what_is_new(api: Api, api_db: Db, mongo_url: str) -> None:
    who = owner()
    first, second, third = life(who)

    async def scene(client: Any) -> None:
        await commit(client, api_db.name, first)
        await commit(client, api_db.name, second)
        url = f"{api.url}/assets/{first.after.id}/stream"
        async with EventSource(url, api.headers(owner=who), last_id="2") as source:
            await commit(client, api_db.name, third)
            assert keys(await take(source, 1)) == [(first.after.id, 3)]

    play(scene, mongo_url)


def test_another_owners_streams_are_not_there(api: Api, api_db: Db, mongo_url: str) -> None:
    who, other = owner(), owner()

    async def scene(client: Any) -> None:
        asset = await live_through(client, api_db.name, other)
        for asset_id in (asset.id, str(uuid.uuid4()), "nonsense"):
            async with EventSource(f"{api.url}/assets/{asset_id}/stream", api.headers(owner=who)) as source:
                assert source.status == 404
                assert (await source.body())["type"] == "urn:darkroom:problem:not-found"
        async with EventSource(f"{api.url}/assets/stream", {}) as source:
            assert source.status == 401
        async with EventSource(f"{api.url}/assets/stream", api.headers(owner=who)) as source:
            await live_through(client, api_db.name, other)
            mine = await live_through(client, api_db.name, who)
            assert {asset_id for asset_id, _ in keys(await take(source, 3))} == {mine.id}

    play(scene, mongo_url)


def test_an_id_is_there_before_the_first_event(
    api: Api, start_api: Callable[..., Api], api_db: Db, mongo_url: str
) -> None:
    """Whoever is cut off before anything happened goes on from there, at another process too."""
    one = start_api(DARKROOM_STREAM_HEARTBEAT_SECONDS="0.2")
    who = owner()

    async def scene(client: Any) -> None:
        async with EventSource(f"{one.url}/assets/stream", one.headers(owner=who)) as source:
            hearing = asyncio.create_task(take(source, 1))
            await become(lambda: source.comments >= 2)
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
            last = source.last_id
        assert last
        asset = await live_through(client, api_db.name, who)
        for place in (api, one):
            async with EventSource(f"{place.url}/assets/stream", one.headers(owner=who), last_id=last) as source:
                assert keys(await take(source, 3)) == [(asset.id, 1), (asset.id, 2), (asset.id, 3)]

    play(scene, mongo_url)


@pytest.mark.parametrize("last_id", ["nonsense", "1.1.0", "4294967295.1.0", "99999999999999.1.1", "-1.2.3"])
def test_an_id_that_leads_nowhere_is_reset(api: Api, api_db: Db, mongo_url: str, last_id: str) -> None:
    who = owner()

    async def scene(client: Any) -> None:
        async with EventSource(f"{api.url}/assets/stream", api.headers(owner=who), last_id=last_id) as source:
            (reset,) = await take(source, 1)
            assert (reset.event, reset.data) == ("reset", {"reason": "history_lost"})
            asset = await live_through(client, api_db.name, who)
            assert keys(await take(source, 3)) == [(asset.id, 1), (asset.id, 2), (asset.id, 3)]

    play(scene, mongo_url)


def test_a_stream_ends_with_its_token(api: Api, mongo_url: str) -> None:
    token = mint("integration-test-secret-of-more-than-32-bytes", owner=owner(), seconds=-8)  # 10 s of leeway

    async def scene(_client: Any) -> None:
        began = time.monotonic()
        async with EventSource(f"{api.url}/assets/stream", {"Authorization": f"Bearer {token}"}) as source:
            assert source.status == 200
            (last,) = await until_end(source)
        assert (last.event, last.data) == ("reconnect", {"reason": "token_expired"})
        assert time.monotonic() - began < 5

    play(scene, mongo_url)


def test_a_process_that_ends_ends_its_streams_at_once(start_api: Callable[..., Api], mongo_url: str) -> None:
    api = start_api()
    who = owner()

    async def scene(_client: Any) -> None:
        async with EventSource(f"{api.url}/assets/stream", api.headers(owner=who)) as source:
            assert source.status == 200
            began = time.monotonic()
            api.process.send_signal(signal.SIGTERM)
            (last,) = await until_end(source)
            assert (last.event, last.data) == ("reconnect", {"reason": "shutdown"})
            assert await asyncio.to_thread(api.process.wait, 10) == 0
            assert time.monotonic() - began < 3

    play(scene, mongo_url)


def test_who_does_not_read_is_cut_off_and_loses_nothing(
    start_api: Callable[..., Api], api_db: Db, mongo_url: str
) -> None:
    api = start_api(DARKROOM_STREAM_QUEUE="20")
    who = owner()

    async def scene(client: Any) -> None:
        address = urlsplit(api.url)
        with socket.socket() as idle:
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle.connect((address.hostname, address.port))
            head = f"GET /assets/stream HTTP/1.0\r\nAuthorization: {api.headers(owner=who)['Authorization']}\r\n\r\n"
            idle.sendall(head.encode())
            begun = await asyncio.to_thread(idle.recv, 1024)
            assert b"200" in begun
            expected: set[Key] = set()
            while not any(event["event"] == "listener_too_slow" for event in api.events()):
                assert len(expected) < 20_000, "nobody was cut off"
                made = [life(who) for _ in range(100)]
                for changes in zip(*made, strict=True):
                    await commit(client, api_db.name, *changes)
                expected |= {(one.event.asset_id, one.event.sequence or 0) for changes in made for one in changes}
            idle.settimeout(20)
            text = begun + await asyncio.to_thread(read_all, idle)
        source = EventSource(f"{api.url}/assets/stream", api.headers(owner=who))
        source._reader = asyncio.StreamReader()
        source._reader.feed_data(text.partition(b"\r\n\r\n")[2])
        source._reader.feed_eof()
        received = await until_end(source)
        assert (received[-1].event, received[-1].data) == ("reconnect", {"reason": "slow"})
        heard = keys(received)
        # As often as it takes: a catch-up of many events may outrun its listener as well.
        while len(heard) < len(expected):
            async with EventSource(
                f"{api.url}/assets/stream", api.headers(owner=who), last_id=source.last_id
            ) as source:
                async with asyncio.timeout(30):
                    async for one in source.events():
                        heard += keys([one])
                        if len(heard) >= len(expected):
                            break
        assert_once_and_in_order(heard, expected)

    play(scene, mongo_url)


def test_many_listeners_hear_all_that_runs(start_api: Callable[..., Api], mongo_db: Db, mongo_url: str) -> None:
    """Two waves: what the first one needed of memory is enough for the second."""
    api = start_api(DARKROOM_MONGO_DATABASE=mongo_db.name)  # so that all change streams on it are this process's
    owners = [owner() for _ in range(4)]

    async def wave(client: Any, sources: list[tuple[str, EventSource]]) -> None:
        share = ASSETS // len(owners)

        async def writer(number: int) -> None:
            for _ in range(number, ASSETS, 16):
                await live_through(client, mongo_db.name, owners[_ % len(owners)])

        hearing = [asyncio.create_task(take(source, 3 * share, seconds=120)) for _, source in sources]
        await asyncio.gather(*(writer(number) for number in range(16)))
        for (who, _), heard in zip(sources, await asyncio.gather(*hearing), strict=True):
            got = keys(heard)
            assert len(got) == 3 * share, who
            assert len(set(got)) == len(got)
            for asset_id in {asset_id for asset_id, _ in got}:
                assert [sequence for one, sequence in got if one == asset_id] == [1, 2, 3]

    async def scene(client: Any) -> None:
        async with contextlib.AsyncExitStack() as open_ones:
            sources = []
            for number in range(LISTENERS):
                who = owners[number % len(owners)]
                source = EventSource(f"{api.url}/assets/stream", api.headers(owner=who))
                sources.append((who, await open_ones.enter_async_context(source)))
                assert source.status == 200
            before = resident(api)
            began = time.monotonic()
            await wave(client, sources)
            first = resident(api)
            await wave(client, sources)
            second = resident(api)
            streams = change_streams(mongo_db)
        print(  # noqa: T201 -- with -s and larger numbers this is the measurement
            f"{LISTENERS} listeners, {2 * ASSETS} assets in {time.monotonic() - began:.1f} s; "
            f"resident {before / 1e6:.0f} → {first / 1e6:.0f} → {second / 1e6:.0f} MB; {streams} change stream"
        )
        assert streams == 1
        assert second - first < 12e6

    play(scene, mongo_url)
    eventually(lambda: api.http.get("/healthz").status_code == 200)


def resident(api: Api) -> float:
    """Bytes of memory that the process has."""
    pages = int(Path(f"/proc/{api.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def change_streams(db: Db) -> int:
    """Change streams that processes of the API have open on this database, whether waiting or at rest."""
    pipeline = [{"$currentOp": {"allUsers": True, "idleCursors": True}}]
    with db.client.admin.aggregate(pipeline) as found:
        cursors = {
            one["cursor"]["cursorId"]
            for one in found
            if one.get("appName") == "darkroom-asset-api-live"
            and one.get("ns", "").startswith(f"{db.name}.")
            and "$changeStream" in str(one["cursor"].get("originatingCommand", {}))
        }
    return len(cursors)
