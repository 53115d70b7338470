"""The picture of an asset's life is the state machine's."""

import re

from darkroom.assets import Asset, IllegalTransition, Status, apply
from darkroom.contracts.events import (
    AssetExpired,
    AssetFailed,
    AssetProcessing,
    AssetPurged,
    AssetReady,
    AssetRedriven,
    AssetRestored,
    AssetTrashed,
    EventData,
    Failure,
)
from support.events import new_id, processing, ready, registered
from support.markdown import ROOT, Page

PICTURE = dict(Page(ROOT / "docs" / "architecture.md").blocks_of("mermaid"))
ARROW = re.compile(r"^\s*(\S+) --> ([A-Z]+): (\w+)$", re.MULTILINE)


def drawn() -> set[tuple[str, str, str]]:
    """From, to and event of every arrow."""
    return set(ARROW.findall(PICTURE["stateDiagram-v2"]))


def possible() -> set[tuple[str, str, str]]:
    """The same of everything that ``apply`` allows, tried from every status."""
    first = registered()
    arrows = {("[*]", str(first.after.status), str(first.event.type))}
    upload = new_id()
    datas: list[EventData] = [
        processing(upload),
        ready(first.after),
        AssetFailed(failure=Failure(code="c", message="m")),
        AssetExpired(),
        AssetTrashed(),
        AssetRestored(),
        AssetPurged(),
        AssetRedriven(upload_event_id=upload, by="b", reason="r"),
    ]
    assert {type(data) for data in datas} >= {AssetProcessing, AssetReady}
    for status in Status:
        for before in (Status.READY, Status.FAILED):
            asset = _in(first.after, status, before, upload)
            for data in datas:
                event = first.event.model_copy(update={"sequence": asset.version + 1, "data": data})
                try:
                    arrows.add((str(status), str(apply(asset, event).status), str(event.type)))
                except IllegalTransition:
                    continue
    return arrows


def _in(asset: Asset, status: Status, before: Status, upload: str) -> Asset:
    trashed = {"status_before_trash": before} if status is Status.TRASHED else {}
    return Asset.model_validate({**asset.model_dump(), "status": status, "upload": {"event_id": upload}, **trashed})


def test_the_picture_has_the_arrows_that_are_possible_and_no_other() -> None:
    assert drawn() == possible()
