"""Lists, states, downloads and histories, as their owner reads them and nobody else."""

import json
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from pymongo.database import Database

from darkroom.assets import Asset, Change, Status, to_document
from darkroom.contracts.events import AssetExpired, AssetPurged, AssetTrashed
from darkroom.outbox import to_row
from support.events import NOW, failed, processing, ready, registered, step
from support.eventually import eventually

Api = Any
Db = Database[dict[str, Any]]
BYTES = b"\xff\xd8\xff\xe0"


def stored(db: Db, owner: str, *datas: Any, minutes: int = 0, **fields: Any) -> Asset:
    """An asset with a stream of these events after its registration, which was so many minutes after NOW."""
    first = registered(owner_id=owner, **fields)
    moment = NOW + timedelta(minutes=minutes)
    event = first.event.model_copy(update={"occurred_at": moment})
    changes = [Change(None, first.after.model_copy(update={"created_at": moment, "updated_at": moment}), event)]
    for data in datas:
        asset = changes[-1].after
        changes.append(step(asset, data(asset) if callable(data) else data))
    db.assets.insert_one(to_document(changes[-1].after))
    db.outbox_events.insert_many([to_row(change.event) for change in changes])
    return changes[-1].after


@pytest.fixture
def owner() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def get(api: Api, owner: str) -> Callable[..., httpx.Response]:
    def send(path: str, *, by: str = owner, headers: dict[str, str] | None = None, **query: Any) -> httpx.Response:
        answer: httpx.Response = api.http.get(path, params=query, headers={**api.headers(owner=by), **(headers or {})})
        return answer

    return send


Get = Callable[..., httpx.Response]


def names(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [asset["filename"] for asset in answer.json()["assets"]]


def test_a_list_is_newest_first_in_pages_without_gaps_or_repeats(get: Get, api_db: Db, owner: str) -> None:
    for n in range(10):
        # Three at each moment, so that a page may end between equal times.
        stored(api_db, owner, minutes=n // 3, filename=f"{n // 3}.jpg")
    stored(api_db, uuid.uuid4().hex, filename="anothers.jpg")
    found, cursor = [], None
    while True:
        page = get("/assets", limit=4, **({"cursor": cursor} if cursor else {}))
        found += page.json()["assets"]
        cursor = page.json()["next_cursor"]
        assert ("link" in page.headers) is (cursor is not None)
        if cursor is None:
            break
        assert page.links["next"]["url"].startswith("/assets?limit=4&cursor=")
        # New ones come in front and move nothing.
        stored(api_db, owner, minutes=60, filename="late.jpg")
    assert [one["filename"] for one in found] == ["3.jpg", *["2.jpg"] * 3, *["1.jpg"] * 3, *["0.jpg"] * 3]
    assert len({one["asset_id"] for one in found}) == 10


def test_a_list_is_filtered_by_state_and_reference(get: Get, api_db: Db, owner: str) -> None:
    stored(api_db, owner, filename="uploading.jpg", minutes=6, reference="order-1")
    stored(api_db, owner, processing(), filename="processing.jpg", minutes=5)
    stored(
        api_db, owner, processing(), ready, filename="ready.jpg", minutes=4, reference="order-1", metadata={"a": "b"}
    )
    stored(api_db, owner, processing(), failed(), filename="failed.jpg", minutes=3, reference="Café")
    stored(api_db, owner, AssetExpired(), filename="expired.jpg", minutes=2)
    stored(api_db, owner, processing(), ready, AssetTrashed(), filename="trashed.jpg", minutes=1)
    stored(
        api_db, owner, processing(), ready, AssetTrashed(), AssetPurged(), filename="purged.jpg", reference="order-1"
    )
    assert names(get("/assets")) == ["uploading.jpg", "processing.jpg", "ready.jpg", "failed.jpg", "expired.jpg"]
    assert names(get("/assets", status="TRASHED")) == ["trashed.jpg"]
    assert names(get("/assets", status=["PURGED", "READY"])) == ["ready.jpg", "purged.jpg"]
    assert names(get("/assets", reference="order-1")) == ["uploading.jpg", "ready.jpg"]
    assert names(get("/assets", reference="Cafe\u0301")) == ["failed.jpg"]
    assert names(get("/assets", reference="order-1", status="READY")) == ["ready.jpg"]
    assert names(get("/assets", reference="order")) == []
    assert names(get("/assets", by="somebody-else")) == []
    (one,) = get("/assets", status="READY").json()["assets"]
    assert (one["reference"], one["metadata"], one["renditions"][0]["name"]) == ("order-1", {"a": "b"}, "thumb")
    assert one["labels"] == {"tone": "warm"}
    assert "url" not in json.dumps(one)


def test_lists_use_an_index_and_sort_nothing_in_memory(get: Get, api_db: Db, owner: str) -> None:
    for n in range(30):
        stored(api_db, owner, reference=f"order-{n % 3}", minutes=n)
    api_db.command("profile", 2)
    try:
        assert len(names(get("/assets", limit=5))) == 5
        assert len(names(get("/assets", limit=5, reference="order-1"))) == 5
    finally:
        api_db.command("profile", 0)
    seen = list(api_db.system.profile.find({"command.find": "assets", "command.filter.owner_id": owner}).sort("ts", 1))
    assert [one["docsExamined"] for one in seen] == [6, 6]
    assert not any(one.get("hasSortStage") for one in seen)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"status": "Ready"}, "status"),
        ({"reference": ""}, "reference"),
        ({"reference": "x" * 129}, "reference"),
        ({"reference": "a\0b"}, "reference"),
        ({"cursor": ""}, "cursor"),
        ({"cursor": "x"}, "cursor"),
        ({"cursor": "é"}, "cursor"),
        ({"cursor": "99999999999999.5f0c8a4e-0000-0000-0000-000000000000"}, "cursor"),
        ({"cursor": "1.5f0c8a4e-0000-0000-0000-000000000000\n"}, "cursor"),
    ],
)
def test_a_wrong_question_is_422_and_names_the_parameter(get: Get, query: dict[str, str], field: str) -> None:
    answer = get("/assets", **query)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:darkroom:problem:invalid-request")
    assert field in answer.json()["errors"][0]["field"]


def test_a_download_is_saved_under_a_safe_name(api: Api, get: Get, api_db: Db, owner: str, aws_endpoint: str) -> None:
    made = api.register(owner=owner, size=len(BYTES), filename="naïve.html").json()
    put = httpx.put(made["upload"]["url"], headers=made["upload"]["headers"], content=BYTES)
    assert put.status_code == 200
    path = f"/assets/{made['asset_id']}/download"
    refused = get(path)
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:darkroom:problem:wrong-state")
    assert (refused.json()["asset_status"], refused.json()["status"]) == ("UPLOADING", 409)

    document = api_db.assets.find_one({"_id": made["asset_id"]}) or {}
    asset = Asset.model_validate({**document, "id": document["_id"]})
    asset = step(asset, processing()).after
    asset = step(asset, ready(asset)).after
    api_db.assets.replace_one({"_id": asset.id}, to_document(asset))
    got = get(path).json()
    assert (got["filename"], got["content_type"], got["size"]) == ("naïve.html.jpg", "image/jpeg", 4)
    saved = httpx.get(got["url"])
    assert (saved.status_code, saved.content, saved.headers["content-type"]) == (200, BYTES, "image/jpeg")
    expected = "attachment; filename=\"naive.html.jpg\"; filename*=UTF-8''na%C3%AFve.html.jpg"
    assert saved.headers["content-disposition"] == expected
    assert parse_qs(urlsplit(got["url"]).query)["X-Amz-Expires"] == ["300"]
    thumb = get(path, rendition="thumb").json()
    assert (thumb["filename"], thumb["size"]) == ("naïve.html-thumb.jpg", 10)
    assert f"/{asset.id}/thumb.jpg?" in thumb["url"]
    for unknown in ("nope", "", "../original"):
        assert get(path, rendition=unknown).status_code == 404
    assert get(path, by="somebody-else").status_code == 404


@pytest.mark.parametrize(
    ("datas", "status"),
    [
        ([processing()], Status.PROCESSING),
        ([processing(), failed()], Status.FAILED),
        ([AssetExpired()], Status.EXPIRED),
        ([processing(), ready, AssetTrashed()], Status.TRASHED),
        ([processing(), ready, AssetTrashed(), AssetPurged()], Status.PURGED),
    ],
)
def test_only_what_is_ready_is_given_out(get: Get, api_db: Db, owner: str, datas: list[Any], status: Status) -> None:
    asset = stored(api_db, owner, *datas)
    for rendition in ({}, {"rendition": "thumb"}):
        refused = get(f"/assets/{asset.id}/download", **rendition)
        assert (refused.status_code, refused.json()["asset_status"]) == (409, status)
    shown = get(f"/assets/{asset.id}").json()
    assert (shown["status"], shown["original"], shown["renditions"], shown["labels"]) == (status, None, [], {})


def test_the_history_is_the_stream(get: Get, api_db: Db, owner: str) -> None:
    asset = stored(api_db, owner, processing(), ready, AssetTrashed(), reference="order-1")
    history = get(f"/assets/{asset.id}/events").json()
    assert [event["sequence"] for event in history["events"]] == [1, 2, 3, 4]
    types = [event["type"] for event in history["events"]]
    assert types == ["AssetRegistered", "AssetProcessing", "AssetReady", "AssetTrashed"]
    rows = {row["sequence"]: row for row in api_db.outbox_events.find({"asset_id": asset.id})}
    for event in history["events"]:
        row = rows[event["sequence"]]
        assert (event["event_id"], event["data"]) == (row["_id"], row["data"])
    assert history["next_after"] is None
    page = get(f"/assets/{asset.id}/events", limit=3).json()
    assert ([event["sequence"] for event in page["events"]], page["next_after"]) == ([1, 2, 3], 3)
    page = get(f"/assets/{asset.id}/events", after=3).json()
    assert [event["sequence"] for event in page["events"]] == [4]
    for by, asset_id in (("somebody-else", asset.id), (owner, str(uuid.uuid4())), (owner, "x")):
        assert get(f"/assets/{asset_id}/events", by=by).status_code == 404
    assert get(f"/assets/{asset.id}/events", after=-1).status_code == 422


def test_what_is_known_is_not_sent_again(get: Get, api_db: Db, owner: str) -> None:
    asset = stored(api_db, owner, processing(), ready)
    for path in ("/assets", f"/assets/{asset.id}", f"/assets/{asset.id}/events"):
        tag = get(path).headers["etag"]
        for known in (tag, f'"x", {tag}', tag.removeprefix("W/"), "*"):
            answer = get(path, headers={"If-None-Match": known})
            assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
        for unknown in ('"x"', "", tag.strip('W/"')):
            assert get(path, headers={"If-None-Match": unknown}).status_code == 200
        assert get(path, headers={"If-None-Match": tag}, by="somebody-else").status_code in (200, 404)
    tags = {
        path: get(path).headers["etag"] for path in ("/assets", f"/assets/{asset.id}", f"/assets/{asset.id}/events")
    }
    trashed = step(asset, AssetTrashed())
    api_db.assets.replace_one({"_id": asset.id}, to_document(trashed.after))
    api_db.outbox_events.insert_one(to_row(trashed.event))
    for path, tag in tags.items():
        assert get(path, headers={"If-None-Match": tag}).status_code == 200


def test_not_modified_never_means_urls_that_have_ended(start_api: Callable[..., Api], api_db: Db, owner: str) -> None:
    api = start_api(DARKROOM_DOWNLOAD_URL_SECONDS="2")
    asset = stored(api_db, owner, processing(), ready)
    first = api.get(asset.id, owner=owner).headers["etag"]
    eventually(lambda: api.get(asset.id, owner=owner).headers["etag"] != first, deadline=3)
