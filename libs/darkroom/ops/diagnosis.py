"""What an asset waits for, in one sentence, and the command that helps. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from darkroom.assets import Asset, Status
from darkroom.inbox.leases import DEAD, PROCESSING
from darkroom.ops.findings import free
from darkroom.ops.letters import Letter, Source
from darkroom.ops.story import Facts
from darkroom.outbox import shard_of


@dataclass(frozen=True)
class Diagnosis:
    """``waits`` is false when nothing is to come by itself or by anybody. ``mend`` is a command, if one helps."""

    cause: str
    sentence: str
    mend: str | None = None
    waits: bool = True

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return dict(vars(self))


def diagnose(facts: Facts) -> Diagnosis:
    """The one cause, of those that stand in the way the first."""
    for judge in (_no_asset, _broken, _parked, _by_status, _unpublished, _over):
        if (found := judge(facts)) is not None:
            return found
    raise AssertionError("the last one always has an answer")


def _no_asset(facts: Facts) -> Diagnosis | None:
    if facts.asset is not None:
        return None
    if facts.kept.rows:
        return Diagnosis(
            "no_document", "Its document is gone; its stream is there.", f"darkroom rebuild --asset {facts.asset_id}"
        )
    if facts.kept.objects:
        return Diagnosis(
            "orphan",
            "Nobody registered it, and it has objects: they are tagged, and removed after a grace time.",
            "darkroom reconcile --pass objects --dry-run",
        )
    return Diagnosis("unknown", "Nobody registered an asset of this id.", waits=False)


def _broken(facts: Facts) -> Diagnosis | None:
    lost = [what for what in facts.violations if what.startswith("I10")]
    wrong = [what for what in facts.violations if not what.startswith("I10")]
    if wrong:
        mend = f"darkroom rebuild --asset {facts.asset_id} --dry-run" if wrong[0].startswith("I3") else None
        return Diagnosis("violated", f"An invariant does not hold: {wrong[0]}", mend)
    if lost and not facts.original_there:
        return Diagnosis("original_gone", f"It cannot be rendered again, for its original is gone: {lost[0]}")
    if lost:
        return Diagnosis("lost_rendition", f"A rendition is lost: {lost[0]}", "darkroom reconcile --pass objects")
    return None


def _by_status(facts: Facts) -> Diagnosis | None:
    asset = facts.asset
    judges: dict[Status, Callable[[Facts, Asset], Diagnosis | None]] = {
        Status.UPLOADING: _uploading,
        Status.PROCESSING: _processing,
    }
    return None if asset is None or asset.status not in judges else judges[asset.status](facts, asset)


def _uploading(facts: Facts, asset: Asset) -> Diagnosis | None:
    if not facts.uploads:
        return Diagnosis("not_uploaded", f"It waits for the client to upload {asset.object_key}.")
    for source, cause in ((Source.SQS, "notification_dead"), (Source.KAFKA, "announcement_dead")):
        if (letter := _letter(facts, source)) is not None:
            where = "SQS's dead-letter queue" if source is Source.SQS else "Kafka's dead-letter topic"
            sentence = f"It is uploaded, and what announced it lies in {where}: {letter.reason}."
            return Diagnosis(cause, sentence, f"darkroom dlq redrive --source {source} --asset {asset.id} --why …")
    event_id, uploaded_at = max(facts.uploads.items(), key=lambda upload: upload[1])
    row = facts.inbox.get(event_id)
    if row is not None and not free(row, facts.now):
        return _worked_on(facts, row)
    if facts.records:
        return _on_kafka(facts)
    return _not_on_kafka(facts, uploaded_at)


def _on_kafka(facts: Facts) -> Diagnosis:
    last = facts.records[-1]
    place = f"partition {last.partition} offset {last.offset}"
    if facts.processors == 0:
        return Diagnosis(
            "no_processor", f"AssetUploaded is on Kafka ({place}), and no processor runs.", "start processors"
        )
    if last.committed:
        sentence = f"AssetUploaded on Kafka ({place}) was passed over, and nothing came of it."
        return Diagnosis("passed_over", sentence, "darkroom reconcile --pass unfinished")
    return Diagnosis("queued", f"AssetUploaded is on Kafka ({place}); it waits for its turn at the processors.")


def _not_on_kafka(facts: Facts, uploaded_at: datetime) -> Diagnosis:
    if not facts.searched:
        return Diagnosis(
            "not_found",
            "It is uploaded; whether it was announced could not be found out on Kafka, or only in part.",
            "darkroom reconcile --pass unfinished",
        )
    if facts.queued or facts.now - uploaded_at < timedelta(seconds=facts.late):
        waiting = f"{facts.queued} messages wait in SQS; " if facts.queued else ""
        return Diagnosis("notified", f"It is uploaded; {waiting}its notification is on its way to the bridge.")
    sentence = "It is uploaded, nothing is left in SQS and nothing came to Kafka: its notification was lost."
    return Diagnosis("lost_notification", sentence, "darkroom reconcile --pass unfinished")


def _processing(facts: Facts, asset: Asset) -> Diagnosis:
    event_id = None if asset.upload is None else asset.upload.event_id
    row = None if event_id is None else facts.inbox.get(event_id)
    if row is not None and row["state"] == PROCESSING and not free(row, facts.now):
        return _worked_on(facts, row)
    if row is not None and row["state"] != PROCESSING:
        return Diagnosis("inconsistent", f"Its upload event is {row['state']}, and the asset did not end: a defect.")
    pending = [record for record in facts.records if record.event_id == event_id and not record.committed]
    if pending and facts.processors:
        return Diagnosis(
            "queued", "Whoever worked on it is gone; its event waits for its turn at the other processors."
        )
    if facts.processors == 0:
        sentence = "Whoever worked on it is gone, and no processor runs."
        return Diagnosis("no_processor", sentence, "start processors; then darkroom reconcile --pass unfinished")
    sentence = "Whoever worked on it is gone, and nothing on Kafka makes anybody take over."
    return Diagnosis("stuck", sentence, "darkroom reconcile --pass unfinished")


def _worked_on(facts: Facts, row: Any) -> Diagnosis:
    if row.get("lease_owner") is not None:
        seconds = (row["lease_until"] - facts.now).total_seconds()
        sentence = f"A processor works on it: attempt {row['attempts']}, its lease runs for {seconds:.0f} s more."
        return Diagnosis("worked_on", sentence)
    seconds = (row["not_before"] - facts.now).total_seconds()
    sentence = f"Attempt {row['attempts']} failed ({row.get('last_error')}); the next one comes in {seconds:.0f} s."
    return Diagnosis("backing_off", sentence)


def _parked(facts: Facts) -> Diagnosis | None:
    first = _first_unpublished(facts)
    if first is None or "parked_at" not in first:
        return None
    sentence = f"{_named(first)} is parked ({first.get('last_error')}): no subscriber gets it, nor what is behind it."
    return Diagnosis("parked", sentence, f"darkroom dlq redrive --source outbox --asset {facts.asset_id} --why …")


def _unpublished(facts: Facts) -> Diagnosis | None:
    first = _first_unpublished(facts)
    if first is None:
        return None
    if facts.relay is None:
        sentence = f"{_named(first)} is not published: its shard {shard_of(facts.asset_id)} belongs to no relay."
        return Diagnosis("no_relay", sentence, "start relays")
    return Diagnosis("publishing", f"{_named(first)} waits for the relay {facts.relay} to publish it.")


def _first_unpublished(facts: Facts) -> Mapping[str, Any] | None:
    return next((row for row in facts.kept.rows if not row["published"]), None)


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['type']} ({row['sequence']})"


def _over(facts: Facts) -> Diagnosis:
    asset = facts.asset
    if asset is None:
        raise AssertionError("judged before")
    if asset.status is not Status.FAILED:
        return Diagnosis(
            f"{asset.status}".lower(), f"Nothing: it is {asset.status}, and everybody was told.", waits=False
        )
    reason = f"{asset.failure.code}: {asset.failure.message}" if asset.failure is not None else "no reason is recorded"
    row = None if asset.upload is None else facts.inbox.get(asset.upload.event_id)
    if row is not None and row["state"] == DEAD:
        sentence = f"Nothing, by itself: its attempts are used up ({reason})."
        mend = f"darkroom dlq redrive --source inbox --asset {asset.id} --why …"
        return Diagnosis("dead", sentence, mend, waits=False)
    return Diagnosis("failed", f"Nothing: its picture was refused for good ({reason}).", waits=False)


def _letter(facts: Facts, source: Source) -> Letter | None:
    lying = (letter for letter in facts.letters if letter.source is source and not letter.redriven)
    return next(lying, None)
