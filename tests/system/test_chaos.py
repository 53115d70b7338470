"""A short run of chaos, and the proxy that it puts in front of S3."""

import http.client
import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from darkroom.chaos.proxy import SLOW_DOWN, TRICKLE_SECONDS, FaultyProxy, Trouble

BODY = bytes(range(256)) * 400


@pytest.mark.timeout(420)
def test_a_short_run_has_no_violation(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "darkroom.cli", "chaos", "--assets", "40", "--minutes", "0.5", "--brokers", "1"]
    done = subprocess.run(
        [*command, "--seed", "11", "--json", str(out), "--data", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["violations"] == 0
    assert found["left_open"] == "nothing"
    assert len(found["faults"]) >= 6
    assert [
        one["invariant"] for one in found["invariants"] if one["looked_at"] == 0 and "I13" not in one["invariant"]
    ] == []
    assert found["events"]["AssetReady"]["seen"] + found["events"]["AssetFailed"]["seen"] == 40


class Upstream(BaseHTTPRequestHandler):
    """A store that has one object and remembers what was written."""

    protocol_version = "HTTP/1.1"
    written: list[bytes] = []  # noqa: RUF012 -- http.server makes a new handler for each connection

    def do_GET(self) -> None:
        self._answer(BODY)

    def do_HEAD(self) -> None:
        self._answer(b"", length=len(BODY))

    def do_PUT(self) -> None:
        self.written.append(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(b"")

    def _answer(self, data: bytes, *, length: int | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.send_header("X-Host", self.headers["Host"])
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        """Nothing to say."""


@pytest.fixture
def proxy() -> Iterator[FaultyProxy]:
    Upstream.written.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Upstream) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with FaultyProxy(f"http://127.0.0.1:{server.server_address[1]}", chance=random.Random(1)) as proxy:
            yield proxy
        server.shutdown()
        thread.join()


def test_without_trouble_everything_passes_as_it_is(proxy: FaultyProxy) -> None:
    with httpx.Client() as client:
        answer = client.get(proxy.url)
        assert answer.content == BODY
        assert answer.headers["X-Host"] == httpx.URL(proxy.url).netloc.decode()
        assert client.head(proxy.url).headers["Content-Length"] == str(len(BODY))
        assert client.put(proxy.url, content=b"abc").status_code == 200
        with proxy.trouble(Trouble.CUT, share=0.0):
            assert client.get(proxy.url).content == BODY
    assert Upstream.written == [b"abc"]
    assert proxy.hits == 0


def test_an_overloaded_store_refuses_before_it_writes(proxy: FaultyProxy) -> None:
    with httpx.Client() as client, proxy.trouble(Trouble.SLOW_DOWN, share=1.0):
        answer = client.put(proxy.url, content=b"abc")
    assert (answer.status_code, answer.content) == (503, SLOW_DOWN)
    assert Upstream.written == []
    assert proxy.hits == 1


def test_a_cut_read_ends_early_and_a_cut_write_has_happened(proxy: FaultyProxy) -> None:
    with httpx.Client() as client, proxy.trouble(Trouble.CUT, share=1.0):
        with pytest.raises(httpx.RemoteProtocolError):
            client.get(proxy.url)
        with pytest.raises(httpx.HTTPError):
            client.put(proxy.url, content=b"abc")
    assert Upstream.written == [b"abc"]


def test_a_slow_read_takes_its_time_and_is_whole(proxy: FaultyProxy) -> None:
    with httpx.Client() as client, proxy.trouble(Trouble.SLOW, share=1.0):
        answer = client.get(proxy.url)
        assert answer.content == BODY
        assert answer.elapsed.total_seconds() >= 0.9 * TRICKLE_SECONDS


def test_a_store_that_is_down_gives_no_answer() -> None:
    with (
        FaultyProxy("http://127.0.0.1:9", chance=random.Random(1)) as proxy,
        pytest.raises((httpx.HTTPError, http.client.HTTPException)),
    ):
        httpx.get(proxy.url)
