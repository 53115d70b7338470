"""The invariants of the design, one function each, over what a run left behind. Pure.

Each gives how many things it looked at and what it found wrong. A check that looked at nothing proves nothing: the
table says so.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from darkroom.assets import Status
from darkroom.chaos.evidence import Document, Evidence, Stored
from darkroom.contracts.events import EventType
from darkroom.ops import integrity
from darkroom.outbox import from_row

ENDED = ("COMPLETED", "DEAD")
READY, FAILED = str(EventType.ASSET_READY), str(EventType.ASSET_FAILED)


@dataclass(frozen=True)
class Checked:
    """One line of the table."""

    invariant: str
    how: str
    looked_at: int
    violations: tuple[str, ...]


def check_all(evidence: Evidence) -> list[Checked]:
    """Every check, in the order of the invariants."""
    return [Checked(name, how, looked_at(evidence), tuple(find(evidence))) for name, how, looked_at, find in CHECKS]


def one_asset_a_key(evidence: Evidence) -> Iterator[str]:
    """I1."""
    for upload in evidence.uploads:
        documents = evidence.by_key.get(upload.key, [])
        stored = {document["_id"] for document in documents}
        if len(documents) > 1:
            yield f"key {upload.key}: {len(documents)} assets in the database: {sorted(stored)}"
        if len(upload.asset_ids) > 1:
            yield f"key {upload.key}: clients were told different assets: {sorted(upload.asset_ids)}"
        if unknown := upload.asset_ids - stored:
            yield f"key {upload.key}: clients were told {sorted(unknown)}, which the database does not have"


def gapless(evidence: Evidence) -> Iterator[str]:
    """I2."""
    for kept in evidence.kept:
        yield from integrity.gapless(kept)


def document_is_fold(evidence: Evidence) -> Iterator[str]:
    """I3."""
    for kept in evidence.kept:
        yield from integrity.document_is_fold(kept)


def one_terminal_event(evidence: Evidence) -> Iterator[str]:
    """I4, in the database and on the topic."""
    for kept in evidence.kept:
        yield from integrity.one_terminal_event(kept)
    published: dict[str | None, set[str]] = defaultdict(set)
    for record in evidence.of_topic(evidence.topics.events):
        if record.event is not None and str(record.event.type) in (READY, FAILED):
            published[record.event.causation_id].add(record.event.id)
    for cause, ids in published.items():
        if len(ids) > 1:
            yield f"upload event {cause}: {len(ids)} different terminal events on the topic: {sorted(ids)}"


def nothing_committed_unfinished(evidence: Evidence) -> Iterator[str]:
    """I5, during the run and at its end."""
    yield from evidence.early_commits
    failed_for = {row.get("causation_id") for row in evidence.terminal_rows if row["type"] == FAILED}
    letters = _dead_letters(evidence)
    for record in evidence.of_topic(evidence.topics.uploaded):
        place = f"{record.topic}/{record.partition} offset {record.offset}"
        if record.offset >= evidence.committed.get((record.topic, record.partition), 0):
            continue
        if (record.partition, record.offset) in letters:
            continue
        row = None if record.event is None else evidence.inbox_by_event.get(record.event.id)
        if row is None:
            yield f"{place}: committed, but it is neither in the inbox nor a dead letter"
        elif row["state"] not in ENDED:
            yield f"{place}: committed, but event {row['event_id']} is {row['state']}"
        elif row["state"] == "DEAD" and row["event_id"] not in failed_for:
            yield f"{place}: committed, but event {row['event_id']} is DEAD without its AssetFailed"


def published_in_order(evidence: Evidence) -> Iterator[str]:
    """I6, during the run and at its end."""
    yield from evidence.early_marks
    rows = {row["_id"]: row for row in evidence.rows}
    first: dict[str, list[int]] = defaultdict(list)
    seen: set[str] = set()
    for record in evidence.of_topic(evidence.topics.events):
        place = f"{record.topic}/{record.partition} offset {record.offset}"
        event = record.event
        if event is None or event.sequence is None or event.id not in rows:
            yield f"{place}: no event of the outbox"
        elif event.id not in seen:
            seen.add(event.id)
            first[event.asset_id].append(event.sequence)
            if event != from_row(rows[event.id]):
                yield f"{place}: differs from its row {event.id}"
    for asset_id, sequences in first.items():
        if sequences != sorted(sequences):
            yield f"asset {asset_id}: its events first appear in the order {sequences}"
    for row in evidence.rows:
        if row["_id"] not in seen:
            yield f"asset {row['asset_id']}: event {row['sequence']} ({row['type']}) never reached Kafka"
        if not row["published"]:
            why = f"parked: {row.get('last_error')}" if "parked_at" in row else "not marked"
            yield f"asset {row['asset_id']}: event {row['sequence']} ({row['type']}) is {why}"


def written_under_lease(evidence: Evidence) -> Iterator[str]:
    """I7: whatever was written belongs to the one holder that ended the event."""
    caused = {row.get("causation_id"): row for row in evidence.terminal_rows}
    for cause, row in caused.items():
        inbox = evidence.inbox_by_event.get(str(cause))
        if inbox is None or inbox["state"] not in ENDED:
            state = "missing" if inbox is None else inbox["state"]
            yield f"asset {row['asset_id']}: {row['type']} was written, but the inbox row of {cause} is {state}"
        elif (inbox["state"], inbox.get("outcome")) not in _outcomes(row):
            yield f"asset {row['asset_id']}: {row['type']}, but its inbox row is {inbox['state']} {inbox['outcome']!r}"
    for inbox in evidence.inbox:
        if inbox["state"] in ENDED and "lease_owner" in inbox:
            yield f"event {inbox['event_id']}: {inbox['state']}, yet leased to {inbox['lease_owner']}"
        if inbox.get("fence", 0) < 1:
            yield f"event {inbox['event_id']}: fence {inbox.get('fence')}, though it was claimed"
        ignored = str(inbox.get("outcome", "")).startswith("ignored")
        if inbox["state"] in ENDED and not ignored and inbox["event_id"] not in caused:
            yield f"event {inbox['event_id']}: {inbox['state']} {inbox.get('outcome')!r} without a terminal event"
    for row in evidence.rows:
        if row["type"] == EventType.ASSET_PROCESSING and row["data"]["upload_event_id"] != row.get("causation_id"):
            yield f"asset {row['asset_id']}: AssetProcessing is caused by another event than it names"


def _outcomes(row: Document) -> tuple[tuple[str, str], ...]:
    """What the inbox row of a terminal event's cause may say."""
    if row["type"] == READY:
        return (("COMPLETED", "ready"),)
    code = row["data"]["failure"]["code"]
    return (("COMPLETED", f"failed: {code}"), ("DEAD", f"dead: {code}"))


def everything_ended(evidence: Evidence) -> Iterator[str]:
    """I8: no asset and no event is left open, and nothing waits on the topic."""
    for asset in evidence.assets:
        if not Status(asset["status"]).terminal:
            yield f"asset {asset['_id']} is still {asset['status']}"
    for row in evidence.inbox:
        if row["state"] not in ENDED:
            yield f"event {row['event_id']} is still {row['state']} after {row.get('attempts')} attempts"
    for record in evidence.of_topic(evidence.topics.uploaded):
        if record.offset >= evidence.committed.get((record.topic, record.partition), 0):
            yield f"{record.topic}/{record.partition} offset {record.offset} was never committed"


def everything_bridged(evidence: Evidence) -> Iterator[str]:
    """I9."""
    ids: dict[str, set[str]] = defaultdict(set)
    for record in evidence.of_topic(evidence.topics.uploaded):
        if record.event is not None and (record.partition, record.offset) not in evidence.garbage:
            ids[record.event.asset_id].add(record.event.id)
    for asset_id, event_id in evidence.announced.items():
        if event_id not in ids[asset_id]:
            yield f"asset {asset_id}: its object is in S3, but AssetUploaded {event_id} is not on Kafka"
        if other := ids[asset_id] - {event_id}:
            yield f"asset {asset_id}: AssetUploaded also under the ids {sorted(other)}"
    for upload in evidence.uploads:
        if upload.sent is not None and upload.asset_id not in evidence.announced:
            yield f"asset {upload.asset_id}: its upload succeeded, but S3 does not have it"
    if evidence.queued or evidence.dead_lettered:
        yield f"{evidence.queued} messages are left in the queue, {evidence.dead_lettered} in the dead-letter queue"


def renditions_exist(evidence: Evidence) -> Iterator[str]:
    """I10."""
    for asset in evidence.assets:
        if asset["status"] != Status.READY:
            continue
        if not asset["renditions"]:
            yield f"asset {asset['_id']}: READY without renditions"
        for rendition in asset["renditions"]:
            key = rendition["object_key"]
            found = evidence.objects.get(key, "not there")
            wanted = Stored(rendition["size"], rendition["width"], rendition["height"])
            if found != wanted:
                yield f"asset {asset['_id']}: {key} is {found}, recorded is {wanted}"


def strangers_see_nothing(evidence: Evidence) -> Iterator[str]:
    """I11."""
    for request, status in evidence.strangers.items():
        if status != 404:
            yield f"another owner's {request} was answered with {status}"


def services_survive(evidence: Evidence) -> Iterator[str]:
    """I13."""
    yield from evidence.deaths
    letters = _dead_letters(evidence)
    for partition, offset in sorted(evidence.garbage - letters):
        yield f"garbage at partition {partition} offset {offset} is not in {evidence.topics.uploaded_dlq}"
    for partition, offset in sorted(letters - evidence.garbage):
        yield f"the record at partition {partition} offset {offset} is a dead letter, but it was no garbage"


def right_outcome(evidence: Evidence) -> Iterator[str]:
    """Every upload succeeded, every good picture is READY and every broken one FAILED."""
    for upload in evidence.uploads:
        if upload.error is not None or upload.sent is None:
            yield f"key {upload.key}: {upload.error or 'not uploaded'}"
            continue
        wanted = Status.READY if upload.picture.good else Status.FAILED
        for asset in evidence.by_key.get(upload.key, []):
            if asset["status"] != wanted:
                yield f"asset {asset['_id']}: {asset['status']} {asset.get('failure')}, should be {wanted}"


def _dead_letters(evidence: Evidence) -> set[tuple[int, int]]:
    """Partition and offset of the originals."""
    found = set()
    for record in evidence.of_topic(evidence.topics.uploaded_dlq):
        notes = {name: value for name, value in record.headers if isinstance(value, bytes)}
        if "dlq_partition" in notes and "dlq_offset" in notes:
            found.add((int(notes["dlq_partition"]), int(notes["dlq_offset"])))
    return found


def _renditions(evidence: Evidence) -> int:
    return sum(len(asset["renditions"]) for asset in evidence.assets)


def _records(evidence: Evidence) -> int:
    return len(evidence.of_topic(evidence.topics.events)) + evidence.marks_watched


CHECKS: tuple[tuple[str, str, Callable[[Evidence], int], Callable[[Evidence], Iterator[str]]], ...] = (
    (
        "I1 one asset a key",
        "ids told to all clients = the one asset of the key in the database",
        lambda e: len(e.uploads),
        one_asset_a_key,
    ),
    ("I2 gapless streams", "sequences 1..n, ids UUIDv5, version n", lambda e: len(e.assets), gapless),
    ("I3 asset = fold", "every document compared with the fold of its rows", lambda e: len(e.assets), document_is_fold),
    (
        "I4 one terminal event",
        "per upload and per asset, rows and topic",
        lambda e: len(e.terminal_rows),
        one_terminal_event,
    ),
    (
        "I5 no offset past unfinished",
        "committed offsets, then the inbox: while it ran and at the end",
        lambda e: e.commits_watched + len(e.of_topic(e.topics.uploaded)),
        nothing_committed_unfinished,
    ),
    (
        "I6 all published, in order",
        "topic from its beginning; rows marked while it ran looked for on Kafka",
        _records,
        published_in_order,
    ),
    (
        "I7 no write without lease",
        "each terminal event against its inbox row, both ways",
        lambda e: len(e.inbox),
        written_under_lease,
    ),
    (
        "I8 all ended",
        "assets, inbox rows and offsets at the end",
        lambda e: len(e.assets) + len(e.inbox),
        everything_ended,
    ),
    (
        "I9 no upload lost",
        "each object's event id on Kafka; queues empty",
        lambda e: len(e.announced),
        everything_bridged,
    ),
    ("I10 renditions exist", "read from S3 and decoded", _renditions, renditions_exist),
    (
        "I11 strangers get 404",
        "another owner asks for some of the assets",
        lambda e: len(e.strangers),
        strangers_see_nothing,
    ),
    (
        "I12 no byte through the API",
        "by construction: clients sent bytes to signed S3 URLs only",
        lambda e: len(e.uploads),
        lambda _: iter(()),
    ),
    (
        "I13 services survive input",
        "no process ended by itself; all garbage, and only that, is a dead letter",
        lambda e: len(e.garbage),
        services_survive,
    ),
    ("right outcome", "good pictures READY, broken ones FAILED", lambda e: len(e.uploads), right_outcome),
)
"""Name, how it is checked, how much was looked at, and the check."""
