"""One asset for one key of one owner."""

import asyncio
import json
import uuid

import pytest

from asset_api.registration import KeyReused, Registered, register
from asset_api.requests import parse_upload
from darkroom.assets import Asset, Change
from support.events import NOW


class Memory:
    """The store's promise, kept in a dictionary."""

    def __init__(self) -> None:
        self.assets: dict[tuple[str, str], Asset] = {}
        self.changes: list[Change] = []
        self.slow_reader = False

    async def by_key(self, *, owner_id: str, idempotency_key: str) -> Asset | None:
        return None if self.slow_reader else self.assets.get((owner_id, idempotency_key))

    async def register(self, candidate: Change) -> Asset:
        asset = self.assets.setdefault((candidate.after.owner_id, candidate.after.idempotency_key), candidate.after)
        if asset is candidate.after:
            self.changes.append(candidate)
        return asset


def go(store: Memory, *, owner_id: str = "o", key: str = "k", filename: str = "a.jpg") -> Registered:
    body = json.dumps({"filename": filename, "content_type": "image/png", "size": 5}).encode()
    return asyncio.run(
        register(
            parse_upload(body, max_upload_bytes=10),
            owner_id=owner_id,
            idempotency_key=key,
            correlation_id="request-1",
            store=store,
            clock=lambda: NOW,
            new_id=uuid.uuid4,
        )
    )


def test_the_first_request_makes_an_asset_and_its_event() -> None:
    store = Memory()
    made = go(store)
    assert made.created
    (change,) = store.changes
    assert change.after == made.asset
    assert (change.event.sequence, change.event.correlation_id) == (1, "request-1")
    assert made.asset.object_key == f"assets/{made.asset.id}/original.png"


@pytest.mark.parametrize("slow_reader", [False, True])
def test_an_equal_request_gives_the_same_asset_also_when_it_lost_a_race(*, slow_reader: bool) -> None:
    store = Memory()
    first = go(store)
    store.slow_reader = slow_reader
    assert go(store) == Registered(first.asset, created=False)
    assert len(store.changes) == 1


@pytest.mark.parametrize("slow_reader", [False, True])
def test_another_request_with_the_key_is_refused(*, slow_reader: bool) -> None:
    store = Memory()
    go(store)
    store.slow_reader = slow_reader
    with pytest.raises(KeyReused):
        go(store, filename="b.jpg")
    assert len(store.changes) == 1


def test_a_key_belongs_to_its_owner_and_knows_case() -> None:
    store = Memory()
    ids = {go(store).asset.id, go(store, owner_id="p").asset.id, go(store, key="K").asset.id}
    assert len(ids) == 3
