"""All that is known of one asset, from every server, in the order of time."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka import KafkaException
from pymongo.errors import PyMongoError

from darkroom.assets import Asset, from_document
from darkroom.inbox.leases import COLLECTION as INBOX
from darkroom.ops import audit
from darkroom.ops.announcing import versions
from darkroom.ops.installation import Installation, NoDeadLetterQueue
from darkroom.ops.integrity import Kept, violations
from darkroom.ops.letters import Filter, Letter, Source, find
from darkroom.ops.status import RELAY_SHARDS, group_members
from darkroom.ops.topics import TopicRecord, read
from darkroom.ops.walk import FOLDER, reread
from darkroom.outbox import shard_of
from darkroom.tracing.traceparent import of_asset, trace_id

LATE = 30.0
SEARCH_SECONDS = 10.0
SEARCH_RECORDS = 50_000
"""So much of a busy topic is searched for an asset's records, from the minute of its upload on."""
_FAILURES = (PyMongoError, KafkaException, ClientError, BotoCoreError, NoDeadLetterQueue, TimeoutError)


@dataclass(frozen=True)
class Entry:
    """Something that happened to the asset, or is to happen, by the clock of the server that tells of it."""

    at: datetime
    where: str
    what: str

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"at": self.at.isoformat(), "where": self.where, "what": self.what}


@dataclass(frozen=True)
class Record:
    """AssetUploaded of the asset on Kafka; ``committed`` says whether the processors are past it."""

    partition: int
    offset: int
    event_id: str
    sent_at: datetime
    committed: bool


@dataclass
class Facts:
    """What is known. A server that could not be asked is in ``unknown``, with the reason."""

    asset_id: str
    now: datetime
    kept: Kept
    late: float = LATE
    """Seconds until what is on its way is called lost."""
    asset: Asset | None = None
    uploads: dict[str, datetime] = field(default_factory=dict)
    """Event ids of the versions of the original that are in S3, with their times."""
    original_there: bool = False
    versions: list[Entry] = field(default_factory=list)
    inbox: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Rows by event."""
    records: list[Record] = field(default_factory=list)
    searched: bool = False
    """Whether Kafka was searched to its end."""
    letters: list[Letter] = field(default_factory=list)
    operations: list[Mapping[str, Any]] = field(default_factory=list)
    queued: int | None = None
    processors: int | None = None
    relay: str | None = None
    """Who owns the asset's shard."""
    unknown: dict[str, str] = field(default_factory=dict)

    @property
    def traces(self) -> dict[str, str]:
        """The trace that shows the asset's journey, and where it is the client's, the bridge's own part of it."""
        if self.asset is None:
            return {}
        own = of_asset(self.asset.id)
        bridge = None if own is None else trace_id(str(own))
        traced = trace_id(self.asset.traceparent) or bridge
        found = {"trace": traced, "bridge": None if bridge == traced else bridge}
        return {name: one for name, one in found.items() if one is not None}

    @property
    def violations(self) -> list[str]:
        """The invariants that do not hold for this asset."""
        return [f"{violation.invariant}: {violation.what}" for violation in violations(self.kept)]


def gather(installation: Installation, asset_id: str, *, late: float = LATE) -> Facts:
    """Ask every server about the asset; one that does not answer is told and no failure, except for MongoDB.

    Raises:
        PyMongoError, ClientError, BotoCoreError: MongoDB or S3 does not answer.

    """
    kept = reread(installation, asset_id)
    facts = Facts(asset_id, installation.now(), kept, late=late)
    facts.asset = None if kept.asset is None else from_document(kept.asset)
    parts: dict[str, Callable[[Installation, Facts], None]] = {
        "S3": _s3,
        "MongoDB": _mongo,
        "Kafka": _kafka,
        "processors": _processors,
        "SQS": _sqs,
        "dead letters": _letters,
    }
    for name, ask in parts.items():
        try:
            ask(installation, facts)
        except _FAILURES as error:
            facts.unknown[name] = f"{type(error).__name__}: {error}"
    return facts


def story(facts: Facts) -> list[Entry]:
    """Everything in the order of time. Pure."""
    entries = [*facts.versions, *_rows(facts), *_inbox(facts), *_records(facts), *_letter_entries(facts)]
    for operation in facts.operations:
        ended = "" if "done_at" in operation else " (begun and not ended)"
        what = f"{operation['action']} by {operation['by']}: {operation['reason']}{ended}"
        entries.append(Entry(operation["begun_at"], "operations", what))
    return sorted(entries, key=lambda entry: entry.at)


def _rows(facts: Facts) -> Iterator[Entry]:
    for row in facts.kept.rows:
        name = f"{row['type']} ({row['sequence']})"
        yield Entry(row["occurred_at"], "outbox", f"{name} written{_because(row)}")
        if "published_at" in row:
            yield Entry(row["published_at"], "outbox", f"{name} marked as published")
        elif "parked_at" in row:
            yield Entry(row["parked_at"], "outbox", f"{name} parked: {row.get('last_error')}")


def _because(row: Mapping[str, Any]) -> str:
    data = row.get("data", {})
    if "failure" in data:
        return f": {data['failure'].get('code')}: {data['failure'].get('message')}"
    return f" by {data['by']}: {data['reason']}" if "by" in data else ""


def _inbox(facts: Facts) -> Iterator[Entry]:
    for event_id, row in facts.inbox.items():
        told = {
            "first_claimed_at": f"event {event_id} claimed first",
            "claimed_at": f"event {event_id} claimed for attempt {row.get('attempts')} (fence {row.get('fence')})",
            "redriven_at": f"event {event_id} reopened",
            "finished_at": f"event {event_id} {row['state']}: {row.get('outcome')}",
            "lease_until": f"the lease of {row.get('lease_owner')} on event {event_id} ends",
            "not_before": f"the next attempt at event {event_id}, after: {row.get('last_error')}",
        }
        yield from (Entry(row[name], "inbox", what) for name, what in told.items() if row.get(name) is not None)


def _records(facts: Facts) -> Iterator[Entry]:
    for one in facts.records:
        past = "the processors are past it" if one.committed else "the processors have not finished it"
        what = f"AssetUploaded {one.event_id} at partition {one.partition} offset {one.offset}; {past}"
        yield Entry(one.sent_at, "kafka", what)


def _letter_entries(facts: Facts) -> Iterator[Entry]:
    for letter in facts.letters:
        if letter.at is not None and letter.source in (Source.SQS, Source.KAFKA):
            again = " (put back)" if letter.redriven else ""
            yield Entry(letter.at, letter.source, f"dead letter {letter.id}: {letter.reason}{again}")


# --- each server ---


def _s3(installation: Installation, facts: Facts) -> None:
    prefix = f"{FOLDER}{facts.asset_id}/"
    pages = installation.s3.get_paginator("list_object_versions").paginate(Bucket=installation.bucket, Prefix=prefix)
    for page in pages:
        for version in page.get("Versions", []):
            what = f"{version['Key']} stored, {version['Size']} bytes, version {version['VersionId']}"
            facts.versions.append(Entry(version["LastModified"], "s3", what))
        facts.versions += [
            Entry(marker["LastModified"], "s3", f"{marker['Key']} deleted") for marker in page.get("DeleteMarkers", [])
        ]
    if facts.asset is not None:
        facts.original_there = facts.asset.object_key in facts.kept.objects
        facts.uploads = {event.id: event.occurred_at for event, _ in versions(installation, facts.asset)}


def _mongo(installation: Installation, facts: Facts) -> None:
    causes = {row["causation_id"] for row in facts.kept.rows if row.get("causation_id")}
    wanted = {"consumer": installation.group, "event_id": {"$in": sorted(causes | facts.uploads.keys())}}
    facts.inbox = {row["event_id"]: row for row in installation.db[INBOX].find(wanted)}
    done = installation.db[audit.COLLECTION].find({"asset_id": facts.asset_id})
    facts.operations = list(done.sort("begun_at"))
    owned = {"_id": shard_of(facts.asset_id), "$expr": {"$gt": ["$lease_until", "$$NOW"]}}
    row = installation.db[RELAY_SHARDS].find_one(owned)
    facts.relay = None if row is None else row.get("owner")


def _kafka(installation: Installation, facts: Facts) -> None:
    if not facts.uploads:
        facts.searched = True  # nothing was uploaded, so there is nothing to search for
        return
    topic = installation.topics.uploaded
    since = min(facts.uploads.values()) - timedelta(seconds=60)
    with installation.offsets() as offsets:
        starts = offsets.since(topic, since.timestamp())
        bounds = offsets.bounds([topic])
        committed = offsets.committed(topic)
    wanted = {at: (start, bounds[at][1]) for at, start in starts.items() if bounds[at][1] > start}
    found = read(installation.bootstrap, wanted, seconds=SEARCH_SECONDS, extra=installation.kafka_config)
    count = 0
    for record in islice(found, SEARCH_RECORDS):
        count += 1
        if record.event is not None and record.event.asset_id == facts.asset_id:
            facts.records.append(_record(record, record.event.id, committed))
    facts.searched = count < SEARCH_RECORDS


def _record(record: TopicRecord, event_id: str, committed: Mapping[tuple[str, int], int]) -> Record:
    past = record.offset < committed.get((record.topic, record.partition), 0)
    sent_at = datetime.fromtimestamp(record.sent_at, tz=UTC)
    return Record(record.partition, record.offset, event_id, sent_at, past)


def _processors(installation: Installation, facts: Facts) -> None:
    facts.processors = group_members(installation)


def _sqs(installation: Installation, facts: Facts) -> None:
    if installation.queue is not None:
        facts.queued, _ = installation.queue.depths()


def _letters(installation: Installation, facts: Facts) -> None:
    facts.letters = find(installation, Filter(asset_ids=(facts.asset_id,)))
