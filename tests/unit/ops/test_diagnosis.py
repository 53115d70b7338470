"""What an asset waits for is one cause, and a command where one helps."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from darkroom.assets import Asset, Change, change, to_document
from darkroom.contracts.events import AssetTrashed
from darkroom.ops.diagnosis import diagnose
from darkroom.ops.integrity import Kept, Listed
from darkroom.ops.letters import Letter, Source
from darkroom.ops.story import Entry, Facts, Record, story
from darkroom.outbox import to_row
from support import events
from support.events import NOW

LATER = NOW + timedelta(hours=1)


def stream(*datas: Any) -> list[Change]:
    made = [events.registered()]
    cause = events.uploaded(made[0].after).id
    for data in datas:
        before = made[-1].after
        given = data(before) if callable(data) else data
        made.append(change(before, given, occurred_at=NOW, causation_id=cause))
    return made


def begun(asset: Asset) -> Any:
    return events.processing(events.uploaded(asset).id)


def facts(*datas: Any, **known: Any) -> Facts:
    """An asset after these events, uploaded, everything published and every rendition in its place."""
    changes = stream(*datas)
    asset = changes[-1].after
    rows = [to_row(one.event) | {"published": True, "published_at": NOW} for one in changes]
    objects = {rendition.object_key: Listed(rendition.size, NOW) for rendition in asset.renditions}
    objects[asset.object_key] = Listed(asset.size, NOW)
    given: dict[str, Any] = {
        "asset": asset,
        "uploads": {events.uploaded(asset).id: NOW},
        "original_there": True,
        "searched": True,
        "queued": 0,
        "processors": 1,
        "relay": "relay-1",
        **known,
    }
    return Facts(asset.id, LATER, Kept(asset.id, to_document(asset), rows, objects), **given)


def uploading(**known: Any) -> Facts:
    return facts(**known)


def processing(**row: Any) -> Facts:
    found = facts(begun)
    if row:
        assert found.asset is not None
        assert found.asset.upload is not None
        found.inbox = {found.asset.upload.event_id: {"state": "PROCESSING", "attempts": 2, **row}}
    return found


def failed(code: str, state: str) -> Facts:
    found = facts(begun, events.failed(code))
    assert found.asset is not None
    assert found.asset.upload is not None
    found.inbox = {found.asset.upload.event_id: {"state": state, "attempts": 5}}
    return found


def on_kafka(found: Facts, *, committed: bool) -> Facts:
    (event_id,) = found.uploads
    return replace(found, records=[Record(3, 17, event_id, NOW, committed)])


def letter(source: Source, *, redriven: bool = False) -> list[Letter]:
    return [Letter(source, "1", "the reason", at=NOW, redriven=redriven)]


def unpublished(found: Facts, **fields: Any) -> Facts:
    rows = [dict(row) for row in found.kept.rows]
    rows[-1] = (
        {name: value for name, value in rows[-1].items() if name != "published_at"} | {"published": False} | fields
    )
    return replace(found, kept=replace(found.kept, rows=rows))


def without(found: Facts, *, ending: str) -> Facts:
    objects = {key: listed for key, listed in found.kept.objects.items() if not key.endswith(ending)}
    return replace(found, kept=replace(found.kept, objects=objects), original_there=not ending.startswith("original"))


HELD = {"lease_owner": "w", "lease_until": LATER + timedelta(seconds=9)}
RUN_OUT = {"lease_owner": "w", "lease_until": LATER - timedelta(seconds=9)}
RESTING = {"not_before": LATER + timedelta(seconds=9), "last_error": "S3 said 500"}
READY = (begun, events.ready)

CASES: list[tuple[str, Callable[[], Facts], str | None]] = [
    ("not_uploaded", lambda: uploading(uploads={}), None),
    ("notified", lambda: uploading(queued=3), None),
    ("notified", lambda: replace(uploading(), now=NOW + timedelta(seconds=5)), None),
    ("lost_notification", uploading, "reconcile"),
    ("not_found", lambda: uploading(searched=False), "reconcile"),
    ("notification_dead", lambda: uploading(letters=letter(Source.SQS)), "--source sqs"),
    ("announcement_dead", lambda: uploading(letters=letter(Source.KAFKA)), "--source kafka"),
    ("lost_notification", lambda: uploading(letters=letter(Source.KAFKA, redriven=True)), "reconcile"),
    ("queued", lambda: on_kafka(uploading(), committed=False), None),
    ("no_processor", lambda: on_kafka(uploading(processors=0), committed=False), "start processors"),
    ("passed_over", lambda: on_kafka(uploading(), committed=True), "reconcile"),
    ("worked_on", lambda: processing(**HELD), None),
    ("backing_off", lambda: processing(**RESTING), None),
    ("stuck", lambda: processing(**RUN_OUT), "reconcile"),
    ("stuck", processing, "reconcile"),
    ("queued", lambda: on_kafka(processing(**RUN_OUT), committed=False), None),
    ("no_processor", lambda: replace(processing(**RUN_OUT), processors=0), "start processors"),
    ("inconsistent", lambda: processing(state="COMPLETED"), None),
    ("ready", lambda: facts(*READY), None),
    ("trashed", lambda: facts(*READY, AssetTrashed()), None),
    ("failed", lambda: failed("corrupt_or_truncated", "COMPLETED"), None),
    ("dead", lambda: failed("retries_exhausted", "DEAD"), "--source inbox"),
    ("parked", lambda: unpublished(facts(*READY), parked_at=NOW, last_error="too large"), "--source outbox"),
    ("publishing", lambda: unpublished(facts(*READY)), None),
    ("no_relay", lambda: unpublished(facts(*READY, relay=None)), "start relays"),
    ("lost_rendition", lambda: without(facts(*READY), ending="thumb.jpg"), "reconcile"),
    ("original_gone", lambda: without(without(facts(*READY), ending="thumb.jpg"), ending="original.jpg"), None),
    ("violated", lambda: replace(facts(*READY), kept=replace(facts(*READY).kept, rows=())), None),
    ("no_document", lambda: replace(facts(), asset=None, kept=replace(facts().kept, asset=None)), "rebuild"),
    ("orphan", lambda: replace(facts(), asset=None, kept=replace(facts().kept, asset=None, rows=())), "reconcile"),
    ("unknown", lambda: replace(facts(), asset=None, kept=Kept("a", None)), None),
]


@pytest.mark.parametrize(("cause", "made", "mend"), CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)])
def test_the_cause_is_named_with_what_helps(cause: str, made: Callable[[], Facts], mend: str | None) -> None:
    found = diagnose(made())
    assert found.cause == cause, found.sentence
    assert (found.mend is None) == (mend is None)
    assert mend is None or mend in str(found.mend)


def test_the_story_is_in_the_order_of_time() -> None:
    found = on_kafka(facts(*READY, letters=letter(Source.SQS)), committed=True)
    found.versions = [Entry(NOW - timedelta(seconds=2), "s3", "stored")]
    found.operations = [{"action": "redrive", "by": "me", "reason": "why", "begun_at": LATER}]
    told = story(found)
    assert [entry.at for entry in told] == sorted(entry.at for entry in told)
    assert {entry.where for entry in told} == {"s3", "outbox", "kafka", "sqs", "operations"}
    assert told[0].what == "stored"
    assert told[-1].what == "redrive by me: why (begun and not ended)"


def test_the_trace_is_the_assets_own_or_its_clients_and_then_the_bridges_is_told_too() -> None:
    known = uploading()
    assert known.asset is not None
    own = known.asset.id.replace("-", "")
    assert known.traces == {"trace": own}
    theirs = "4bf92f3577b34da6a3ce929d0e0e4736"
    known.asset = known.asset.model_copy(update={"traceparent": f"00-{theirs}-00f067aa0ba902b7-01"})
    assert known.traces == {"trace": theirs, "bridge": own}
    known.asset = None
    assert known.traces == {}
