"""Into the trash and out of it, over the running API."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest
from pymongo.database import Database

from darkroom.assets import fold, from_document, to_document
from darkroom.contracts.events import AssetExpired, AssetPurged, AssetTrashed
from darkroom.outbox import from_row, to_row
from support.events import failed, processing, ready, registered, step

Api = Any
Db = Database[dict[str, Any]]


def stored(db: Db, owner: str, *datas: Any) -> str:
    """The id of an asset with a stream of these events after its registration."""
    changes = [registered(owner_id=owner)]
    for data in datas:
        asset = changes[-1].after
        changes.append(step(asset, data(asset) if callable(data) else data))
    db.assets.insert_one(to_document(changes[-1].after))
    db.outbox_events.insert_many([to_row(change.event) for change in changes])
    return changes[-1].after.id


def types(db: Db, asset_id: str) -> list[str]:
    """The types of the asset's stream, after checking it: gapless, and its fold is the asset (I2, I3)."""
    stream = [from_row(row) for row in db.outbox_events.find({"asset_id": asset_id}).sort("sequence", 1)]
    assert [event.sequence for event in stream] == list(range(1, len(stream) + 1))
    assert db.assets.find_one({"_id": asset_id}) == to_document(fold(stream))
    return [event.type.value.removeprefix("Asset") for event in stream]


@pytest.fixture
def owner() -> str:
    return uuid.uuid4().hex


def move(
    api: Api, asset_id: str, owner: str, *, restore: bool = False, headers: dict[str, str] | None = None
) -> httpx.Response:
    sent = {**api.headers(owner=owner), **(headers or {})}
    answer: httpx.Response = (
        api.http.post(f"/assets/{asset_id}/restore", headers=sent)
        if restore
        else api.http.delete(f"/assets/{asset_id}", headers=sent)
    )
    return answer


@pytest.mark.parametrize(("end", "status"), [(ready, "READY"), (lambda _: failed(), "FAILED")])
def test_trash_and_restore_are_events_and_can_be_repeated(
    api: Api, api_db: Db, owner: str, end: Callable[..., Any], status: str
) -> None:
    asset_id = stored(api_db, owner, processing(), end)
    for _ in range(2):
        trashed = move(api, asset_id, owner, headers={"X-Request-ID": "trash-it"})
        assert (trashed.status_code, trashed.json()["status"], trashed.json()["version"]) == (200, "TRASHED", 4)
        assert trashed.json()["renditions"] == []
    assert api.http.get(f"/assets/{asset_id}/download", headers=api.headers(owner=owner)).status_code == 409
    for _ in range(2):
        restored = move(api, asset_id, owner, restore=True)
        assert (restored.status_code, restored.json()["status"], restored.json()["version"]) == (200, status, 5)
    assert types(api_db, asset_id)[3:] == ["Trashed", "Restored"]
    rows = list(api_db.outbox_events.find({"asset_id": asset_id}).sort("sequence", 1))
    assert rows[3]["correlation_id"] == "trash-it"
    assert [row["published"] for row in rows[3:]] == [False, False]


@pytest.mark.parametrize(
    ("datas", "status", "trash", "restore"),
    [
        ([], "UPLOADING", 409, 409),
        ([processing()], "PROCESSING", 409, 409),
        ([AssetExpired()], "EXPIRED", 409, 409),
        ([processing(), ready, AssetTrashed(), AssetPurged()], "PURGED", 200, 409),
    ],
)
def test_other_states_do_not_change(
    api: Api, api_db: Db, owner: str, datas: list[Any], status: str, trash: int, restore: int
) -> None:
    asset_id = stored(api_db, owner, *datas)
    for answer, expected in (
        (move(api, asset_id, owner), trash),
        (move(api, asset_id, owner, restore=True), restore),
    ):
        assert answer.status_code == expected
        if expected == 409:
            assert (answer.json()["type"], answer.json()["asset_status"]) == (
                "urn:darkroom:problem:wrong-state",
                status,
            )
            assert ("retry-after" in answer.headers) is (status == "PROCESSING")
        else:
            assert answer.json()["status"] == status
    assert len(types(api_db, asset_id)) == len(datas) + 1


def test_anothers_asset_is_not_there_to_be_trashed(api: Api, api_db: Db, owner: str) -> None:
    asset_id = stored(api_db, owner, processing(), ready)
    for wrong, by in ((asset_id, "somebody-else"), (str(uuid.uuid4()), owner), ("x", owner)):
        for restore in (False, True):
            assert move(api, wrong, by, restore=restore).status_code == 404
    assert types(api_db, asset_id)[-1] == "Ready"
    only_reads = api.headers(owner=owner, scopes=["assets:read"])
    assert api.http.delete(f"/assets/{asset_id}", headers=only_reads).status_code == 403
    assert api.http.post(f"/assets/{asset_id}/restore", headers=only_reads).status_code == 403


def test_many_at_once_make_one_step_each(api: Api, other_api: Api, api_db: Db, owner: str) -> None:
    asset_id = stored(api_db, owner, processing(), ready)

    async def all_at_once() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=30) as client:
            return await asyncio.gather(
                *(
                    client.request(
                        "DELETE" if n % 4 < 2 else "POST",
                        f"{(api, other_api)[n % 2].url}/assets/{asset_id}{'' if n % 4 < 2 else '/restore'}",
                        headers=api.headers(owner=owner),
                    )
                    for n in range(24)
                )
            )

    answers = Counter(answer.status_code for answer in asyncio.run(all_at_once()))
    # 503 is for who lost again and again; then nothing was done.
    assert set(answers) <= {200, 503}
    steps = types(api_db, asset_id)[3:]
    assert steps == ["Trashed", "Restored"] * (len(steps) // 2) + ["Trashed"] * (len(steps) % 2)


def test_an_upload_that_expired_gives_the_same_answer_to_its_key(api: Api, api_db: Db) -> None:
    key = uuid.uuid4().hex
    made = api.register(key=key).json()
    asset = from_document(api_db.assets.find_one({"_id": made["asset_id"]}) or {})
    # A day later; no sweep has been yet.
    day = timedelta(hours=25)
    api_db.assets.update_one({"_id": asset.id}, {"$set": {"created_at": asset.created_at - day}})
    late = api.register(key=key)
    assert (late.status_code, late.json()["status"], late.json()["upload"]) == (200, "UPLOADING", None)
    api_db.assets.replace_one({"_id": asset.id}, to_document(step(asset, AssetExpired()).after))
    again = api.register(key=key)
    assert (again.status_code, again.json()["asset_id"], again.json()["status"]) == (200, asset.id, "EXPIRED")
    assert (again.json()["upload"], again.headers["idempotency-replayed"]) == (None, "true")
    assert api.register(key=key, size=5).status_code == 422
