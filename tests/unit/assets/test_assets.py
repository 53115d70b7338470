"""An asset is the fold of its stream."""

from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import pytest

from darkroom.assets import (
    Asset,
    IllegalTransition,
    Status,
    apply,
    change,
    fold,
    from_document,
    guard,
    to_document,
    update,
)
from darkroom.contracts.events import (
    AssetExpired,
    AssetPurged,
    AssetRedriven,
    AssetRestored,
    AssetTrashed,
    EventData,
)
from support.events import NOW, failed, new_id, processing, ready, registered, step


def walk(*datas: Any) -> list[Asset]:
    """The asset after each event, from registration on; an item may be made from the asset before it."""
    asset = registered().after
    states = [asset]
    for data in datas:
        asset = step(asset, data(asset) if callable(data) else data).after
        states.append(asset)
    return states


def states() -> dict[Status, Asset]:
    by_status = {asset.status: asset for asset in walk(processing(), ready, AssetTrashed(), AssetPurged())}
    by_status |= {walk(processing(), failed())[-1].status: walk(processing(), failed())[-1]}
    return by_status | {Status.EXPIRED: walk(AssetExpired())[-1]}


def redriven(asset: Asset) -> AssetRedriven:
    upload = asset.upload.event_id if asset.upload is not None else new_id()
    return AssetRedriven(upload_event_id=upload, by="operator", reason="the outage is over")


ALLOWED = {
    (Status.UPLOADING, "AssetProcessing"): Status.PROCESSING,
    (Status.UPLOADING, "AssetExpired"): Status.EXPIRED,
    (Status.PROCESSING, "AssetReady"): Status.READY,
    (Status.PROCESSING, "AssetFailed"): Status.FAILED,
    (Status.READY, "AssetTrashed"): Status.TRASHED,
    (Status.FAILED, "AssetTrashed"): Status.TRASHED,
    (Status.TRASHED, "AssetRestored"): Status.READY,
    (Status.TRASHED, "AssetPurged"): Status.PURGED,
    (Status.READY, "AssetRedriven"): Status.PROCESSING,
    (Status.FAILED, "AssetRedriven"): Status.PROCESSING,
}


@pytest.mark.parametrize(("status", "name"), list(product(Status, sorted({name for _, name in ALLOWED}))))
def test_each_event_follows_exactly_the_states_it_may(status: Status, name: str) -> None:
    asset = states()[status]
    data: EventData = {
        "AssetProcessing": processing(),
        "AssetExpired": AssetExpired(),
        "AssetReady": ready(asset),
        "AssetFailed": failed(),
        "AssetTrashed": AssetTrashed(),
        "AssetRestored": AssetRestored(),
        "AssetPurged": AssetPurged(),
        "AssetRedriven": redriven(asset),
    }[name]
    if (status, name) in ALLOWED:
        assert step(asset, data).after.status is ALLOWED[status, name]
    else:
        with pytest.raises(IllegalTransition, match=f"{name} cannot follow {status}"):
            step(asset, data)


def test_a_failed_asset_comes_back_failed_from_the_trash() -> None:
    assert walk(processing(), failed(), AssetTrashed(), AssetRestored())[-1].status is Status.FAILED


@pytest.mark.parametrize("end", [ready, lambda _: failed()])
def test_a_redriven_asset_is_as_it_was_when_processing_began(end: Callable[[Asset], EventData]) -> None:
    begun, _, again = walk(processing(), end, redriven)[1:]
    assert again == begun.model_copy(update={"version": 4})
    assert step(again, ready(again)).after.status is Status.READY


def test_only_the_upload_that_was_processed_can_be_redriven() -> None:
    asset = walk(processing(), failed())[-1]
    with pytest.raises(IllegalTransition, match="AssetRedriven cannot follow FAILED"):
        step(asset, AssetRedriven(upload_event_id=new_id(), by="operator", reason="why not"))


def test_the_fold_of_a_stream_is_the_state() -> None:
    first = registered()
    second = step(first.after, processing())
    third = step(second.after, ready(second.after))
    asset = fold([first.event, second.event, third.event])
    assert asset == third.after
    assert (asset.version, asset.renditions[0].name, asset.labels) == (3, "thumb", {"tone": "warm"})
    assert asset.correlation_id == "request-1"


def test_a_stream_has_no_gap_and_no_stranger() -> None:
    first = registered()
    second = step(first.after, processing())
    third = step(second.after, failed())
    with pytest.raises(IllegalTransition, match="cannot follow version 1"):
        fold([first.event, third.event])
    with pytest.raises(IllegalTransition, match="cannot follow version 2"):
        fold([first.event, second.event, second.event])
    with pytest.raises(IllegalTransition, match=second.after.id):
        apply(registered().after, second.event)
    with pytest.raises(IllegalTransition, match="begins with AssetRegistered"):
        fold([second.event])
    with pytest.raises(IllegalTransition, match="empty"):
        fold([])


def test_the_first_event_needs_asset_and_owner() -> None:
    with pytest.raises(ValueError, match="asset_id and owner_id"):
        change(None, registered().event.data, occurred_at=NOW, asset_id=new_id())


def test_an_event_is_cut_to_what_mongodb_keeps() -> None:
    asset = registered().after
    made = change(asset, processing(), occurred_at=NOW.replace(microsecond=123_999))
    assert made.event.occurred_at.microsecond == 123_000


def test_documents_are_read_back_and_name_no_empty_field() -> None:
    for asset in states().values():
        document = to_document(asset)
        assert from_document(document) == asset
        assert document["_id"] == asset.id
        assert None not in document.values()
        assert all(type(value) is not Status for value in document.values())


def applied(document: dict[str, Any], operators: dict[str, Any]) -> dict[str, Any]:
    """What MongoDB makes of the document."""
    kept = {name: value for name, value in document.items() if name not in operators.get("$unset", {})}
    return {**kept, **operators["$set"]}


def test_an_update_leads_from_one_document_to_the_next_and_keeps_what_it_does_not_know() -> None:
    steps = walk(processing(), ready, redriven, ready, AssetTrashed(), AssetRestored(), AssetTrashed(), AssetPurged())
    for before, after in pairwise(steps):
        stranger = {"field_of_a_later_release": 1}
        assert applied(to_document(before) | stranger, update(before, after)) == to_document(after) | stranger


def test_an_update_is_guarded_by_version_and_names_the_shard_key() -> None:
    asset = registered().after
    assert guard(asset) == {
        "_id": asset.id,
        "owner_id": asset.owner_id,
        "idempotency_key": asset.idempotency_key,
        "version": 1,
    }
