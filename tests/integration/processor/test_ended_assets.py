"""An upload of an asset that has ended changes nothing."""

from typing import Any

import pytest

from darkroom.assets import to_document
from darkroom.contracts.events import AssetExpired, AssetPurged, AssetTrashed
from darkroom.inbox.consumer import Finished
from darkroom.outbox import to_row
from support.events import processing, ready, step

from .conftest import World


@pytest.mark.parametrize(
    ("datas", "status"),
    [
        ([AssetExpired()], "EXPIRED"),
        ([processing(), ready, AssetTrashed()], "TRASHED"),
        ([processing(), ready, AssetTrashed(), AssetPurged()], "PURGED"),
    ],
)
def test_an_upload_that_comes_too_late_is_ignored(world: World, datas: list[Any], status: str) -> None:
    asset = world.upload()
    for data in datas:
        change = step(asset, data(asset) if callable(data) else data)
        world.db.outbox_events.insert_one(to_row(change.event))
        asset = change.after
    world.db.assets.replace_one({"_id": asset.id}, to_document(asset))
    before = world.types(asset)
    delivery = world.delivery(asset)
    worker, decoder = world.with_decoder()
    assert worker(delivery) == Finished()
    assert (decoder.calls, world.types(asset)) == (0, before)
    assert world.row(delivery)["outcome"] == f"ignored: asset was {status}"
    assert world.keys(asset) == {"original.jpg"}
