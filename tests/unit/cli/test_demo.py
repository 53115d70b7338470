"""What the demo writes of a file that was refused on its way."""

from pathlib import Path

import httpx

from darkroom.cli.client import Uploader
from darkroom.cli.demo import _send_one

REGISTERED = {
    "asset_id": "8d0f0a0e-0000-4000-8000-000000000001",
    "upload": {"method": "PUT", "url": "http://s3/put", "headers": {}},
}


def outcome(tmp_path: Path, api: httpx.Response, s3: httpx.Response) -> tuple[str | None, str]:
    """Asset id and status, when the servers answer so."""
    uploader = Uploader("http://api", "token")
    uploader._api = httpx.Client(base_url="http://api", transport=httpx.MockTransport(lambda _: api))
    uploader._s3 = httpx.Client(transport=httpx.MockTransport(lambda _: s3))
    file = tmp_path / "a.jpg"
    file.write_bytes(b"bytes")
    one = _send_one(file, uploader, None)  # type: ignore[arg-type]  # nothing is waited for
    return one.asset_id, one.status


def test_what_the_api_refuses_is_no_asset(tmp_path: Path) -> None:
    assert outcome(tmp_path, httpx.Response(422, json={"type": "t"}), httpx.Response(200)) == (None, "REFUSED")


def test_what_s3_refuses_is_an_asset_that_did_not_end(tmp_path: Path) -> None:
    # With an asset_id and no end, the demo exits with 1.
    told = outcome(tmp_path, httpx.Response(201, json=REGISTERED), httpx.Response(403, text="no"))
    assert told == (REGISTERED["asset_id"], "UPLOADING")
