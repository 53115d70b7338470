"""What is promised about an upload is enforced by S3, not by us."""

import base64
import hashlib
import http.client
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from pymongo.database import Database

from darkroom.assets import from_document, to_document
from support.events import processing, ready, step
from support.eventually import eventually

Api = Any
BYTES = b"\xff\xd8\xff\xe0"
DIGEST = base64.b64encode(hashlib.sha256(BYTES).digest()).decode()


def put(url: str, headers: dict[str, str], body: bytes) -> int:
    """Send exactly these headers and this body, as an attacker would."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc, timeout=10)
    try:
        connection.putrequest("PUT", f"{address.path}?{address.query}", skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        return connection.getresponse().status
    finally:
        connection.close()


def upload(api: Api, **fields: Any) -> dict[str, Any]:
    answer = api.register(size=len(BYTES), **fields)
    assert answer.status_code == 201, answer.text
    signed: dict[str, Any] = answer.json()["upload"]
    assert signed["method"] == "PUT"
    return signed


def test_the_signed_upload_works_once(api: Api) -> None:
    signed = upload(api, checksum_sha256=DIGEST)
    assert put(signed["url"], signed["headers"], BYTES) == 200
    assert put(signed["url"], signed["headers"], BYTES) == 412


@pytest.mark.parametrize(
    ("changed", "body"),
    [
        ({"Content-Length": "5"}, BYTES + b"x"),
        ({"Content-Length": "3"}, BYTES[:3]),
        ({"Content-Type": "text/html"}, BYTES),
        ({"If-None-Match": None}, BYTES),
        ({"If-None-Match": '"x"'}, BYTES),
        ({"Content-Type": None}, BYTES),
        ({"x-amz-checksum-sha256": None}, BYTES),
        ({"x-amz-checksum-sha256": base64.b64encode(b"0" * 32).decode()}, BYTES),
        ({}, b"evil"),
    ],
    ids=lambda value: str(value),
)
def test_every_signed_constraint_bites(api: Api, changed: dict[str, str | None], body: bytes) -> None:
    signed = upload(api, checksum_sha256=DIGEST)
    headers = {name: value for name, value in (signed["headers"] | changed).items() if value is not None}
    assert put(signed["url"], headers, body) in (400, 403)
    assert put(signed["url"], signed["headers"], BYTES) == 200


def test_the_public_endpoint_is_signed_and_its_url_ends_when_it_says(
    start_api: Callable[..., Api], aws_endpoint: str
) -> None:
    public = aws_endpoint.replace("127.0.0.1", "localhost")
    api = start_api(DARKROOM_S3_PUBLIC_ENDPOINT_URL=public, DARKROOM_UPLOAD_URL_SECONDS="2")
    assert f"connect-src 'self' {public};" in api.http.get("/").headers["content-security-policy"]
    signed = upload(api)
    assert signed["url"].startswith(public + "/")
    assert put(signed["url"], signed["headers"], BYTES) == 200
    # 412 (it is written) until the signature itself has ended.
    eventually(lambda: put(signed["url"], signed["headers"], BYTES) == 403, deadline=8)


def test_reading_follows_the_assets_state(api: Api, api_db: Database[dict[str, Any]]) -> None:
    key = uuid.uuid4().hex
    asset_id = api.register(key=key, size=len(BYTES)).json()["asset_id"]
    assert api.register(key=key, size=len(BYTES)).json()["upload"] is not None
    asset = from_document(api_db.assets.find_one({"_id": asset_id}) or {})

    def store(data: Any) -> None:
        nonlocal asset
        asset = step(asset, data).after
        api_db.assets.replace_one({"_id": asset_id}, to_document(asset))

    store(processing())
    got = api.get(asset_id).json()
    assert (got["status"], got["version"], got["original"], got["renditions"]) == ("PROCESSING", 2, None, [])
    replay = api.register(key=key, size=len(BYTES))
    assert (replay.status_code, replay.json()["upload"]) == (200, None)

    store(ready(asset))
    got = api.get(asset_id).json()
    assert got["status"] == "READY"
    assert {name: got["original"][name] for name in ("width", "height", "format", "size")} == {
        "width": 40,
        "height": 30,
        "format": "jpeg",
        "size": 4,
    }
    assert got["labels"] == {"tone": "warm"}
    (thumb,) = got["renditions"]
    assert (thumb["name"], thumb["width"], thumb["height"], thumb["content_type"]) == ("thumb", 40, 30, "image/jpeg")
    assert api.register(key=key, size=len(BYTES)).json()["upload"] is None


def test_an_original_is_read_as_an_attachment_of_our_type(api: Api, api_db: Database[dict[str, Any]]) -> None:
    answer = api.register(size=len(BYTES), filename="naïve.jpg").json()
    assert put(answer["upload"]["url"], answer["upload"]["headers"], BYTES) == 200
    asset = from_document(api_db.assets.find_one({"_id": answer["asset_id"]}) or {})
    asset = step(asset, processing()).after
    api_db.assets.replace_one({"_id": asset.id}, to_document(step(asset, ready(asset)).after))
    got = httpx.get(api.get(asset.id).json()["original"]["url"])
    assert (got.status_code, got.content, got.headers["content-type"]) == (200, BYTES, "image/jpeg")
    assert got.headers["content-disposition"] == "attachment; filename=\"naive.jpg\"; filename*=UTF-8''na%C3%AFve.jpg"


def test_anothers_asset_does_not_exist(api: Api) -> None:
    asset_id = api.register(owner="owner-1").json()["asset_id"]
    assert api.get(asset_id, owner="owner-1").status_code == 200
    for answer in (api.get(asset_id, owner="owner-2"), api.get(str(uuid.uuid4())), api.get("x")):
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:darkroom:problem:not-found")
