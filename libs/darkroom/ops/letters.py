"""Everything that came to rest and waits for a person: SQS's dead letters, Kafka's, DEAD events and parked rows.

Each source lists its letters and puts one back where it came from. What it was put back by is in ``operations``.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol, Self
from urllib.parse import unquote_plus

from botocore.exceptions import BotoCoreError, ClientError

from darkroom.assets import Status
from darkroom.assets.documents import COLLECTION as ASSETS
from darkroom.contracts.events import UUID_PATTERN
from darkroom.inbox.leases import COLLECTION as INBOX
from darkroom.inbox.leases import DEAD, OPEN_OR_DEAD
from darkroom.ops import audit
from darkroom.ops.announcing import Announcer
from darkroom.ops.installation import Installation, Queue
from darkroom.ops.pace import Pace
from darkroom.ops.redriving import NotRedrivable, redrive
from darkroom.ops.topics import TopicRecord, read
from darkroom.outbox import COLLECTION as OUTBOX

HIDDEN_SECONDS = 60
"""How long a message that is looked at is hidden from others who look."""
READ_SECONDS = 60.0
NOTES = ("dlq_reason", "dlq_topic", "dlq_partition", "dlq_offset", "dlq_left_out")
_ASSET = re.compile(rf"assets/({UUID_PATTERN.strip('^$')})/")


class Source(StrEnum):
    """Where letters lie."""

    SQS = "sqs"
    """Notifications that the bridge could not handle in three receives."""
    KAFKA = "kafka"
    """Records of ``assets.uploaded`` that are no AssetUploaded of ours."""
    INBOX = "inbox"
    """Events whose attempts are used up; their assets are FAILED."""
    OUTBOX = "outbox"
    """Rows that cannot be published as they are; their assets' later events wait behind them."""


@dataclass(frozen=True)
class Letter:
    """One thing that came to rest. ``id`` is unique within its source; ``told`` is all that is known, as JSON."""

    source: Source
    id: str
    reason: str
    at: datetime | None = None
    asset_id: str | None = None
    event_id: str | None = None
    redriven: bool = False
    told: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self, *, whole: bool = False) -> dict[str, Any]:
        """For programs; ``whole`` with all that is known."""
        known = {name: value for name, value in vars(self).items() if name != "told"}
        return known | ({"told": dict(self.told)} if whole else {})


@dataclass(frozen=True)
class Filter:
    """Which letters are meant; what is not given does not matter. ``older_than`` in seconds."""

    sources: tuple[Source, ...] = tuple(Source)
    ids: tuple[str, ...] = ()
    asset_ids: tuple[str, ...] = ()
    reason: str = ""
    older_than: float = 0.0

    @property
    def names_some(self) -> bool:
        """Whether it leaves any letter of its sources out."""
        return bool(self.ids or self.asset_ids or self.reason or self.older_than)

    def takes(self, letter: Letter, now: datetime) -> bool:
        """Whether the letter is meant."""
        return (
            letter.source in self.sources
            and (not self.ids or letter.id in self.ids)
            and (not self.asset_ids or letter.asset_id in self.asset_ids)
            and self.reason.lower() in letter.reason.lower()
            and (not self.older_than or (letter.at is not None and (now - letter.at).total_seconds() > self.older_than))
        )


class CannotRedrive(Exception):
    """The letter cannot be put back; the message says why."""


class Box(Protocol):
    """One source's letters, for as long as its context lasts."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

    def letters(self) -> Iterator[Letter]:
        """Every letter, each once."""
        ...

    def redrive(self, letter: Letter, *, reason: str, announcer: Announcer) -> None:
        """Put a listed letter back. Raises CannotRedrive, and whatever its server raises: then it still lies here."""
        ...


class SqsBox:
    """Messages are hidden from others while they are looked at, and seen again when the context ends."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._held: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        # Only a courtesy: one that others took, or that is seen again already, says so by an error; and what is still
        # hidden comes back by itself, also from a queue that cannot be reached.
        with suppress(BotoCoreError):
            for message in self._held.values():
                with suppress(ClientError):
                    self._queue.client.change_message_visibility(
                        QueueUrl=self._queue.dlq_url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
                    )

    def letters(self) -> Iterator[Letter]:
        """Every message that is visible."""
        while True:
            found = self._queue.client.receive_message(
                QueueUrl=self._queue.dlq_url,
                MaxNumberOfMessages=10,
                VisibilityTimeout=HIDDEN_SECONDS,
                # A short poll asks only some of SQS's servers, and may see nothing where there is something.
                WaitTimeSeconds=1,
                MessageSystemAttributeNames=["All"],
                MessageAttributeNames=["All"],
            ).get("Messages", [])
            # Listing that takes longer than messages are hidden meets the first ones again.
            new = [message for message in found if message["MessageId"] not in self._held]
            self._held |= {message["MessageId"]: message for message in found}
            yield from map(_sqs_letter, new)
            if not new:
                return

    def redrive(self, letter: Letter, *, reason: str, announcer: Announcer) -> None:  # noqa: ARG002 -- the protocol's
        """Send the message to the queue that it came from, then delete it here."""
        message = self._held[letter.id]
        attributes = {"MessageAttributes": message["MessageAttributes"]} if message.get("MessageAttributes") else {}
        self._queue.client.send_message(QueueUrl=self._queue.url, MessageBody=message["Body"], **attributes)
        # Deleted only now: stopped in between, the message is there twice and not never.
        self._queue.client.delete_message(QueueUrl=self._queue.dlq_url, ReceiptHandle=message["ReceiptHandle"])
        del self._held[letter.id]


class KafkaBox:
    """A log cannot be emptied: what was put back stays listed, as redriven, until its retention ends."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._records: dict[str, TopicRecord] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._records.clear()

    def letters(self) -> Iterator[Letter]:
        """Every record of the dead letters' topic, those that were put back too."""
        place = self._installation
        with place.offsets() as offsets:
            bounds = offsets.bounds([place.topics.uploaded_dlq])
        put_back = place.db[audit.COLLECTION].find({"source": str(Source.KAFKA), "done_at": {"$exists": True}})
        done = {row["letter"] for row in put_back}
        wanted = {at: ends for at, ends in bounds.items() if ends[1] > ends[0]}
        for record in read(place.bootstrap, wanted, seconds=READ_SECONDS, extra=place.kafka_config):
            letter = kafka_letter(record, redriven=_kafka_id(record) in done)
            self._records[letter.id] = record
            yield letter

    def redrive(self, letter: Letter, *, reason: str, announcer: Announcer) -> None:  # noqa: ARG002 -- the protocol's
        """Put the record on ``assets.uploaded`` as it first came."""
        record = self._records[letter.id]
        if "dlq_left_out" in record.notes:
            record = self._original(record)
        announcer.put(record.key, record.value, [one for one in record.headers if one[0] not in NOTES])

    def _original(self, record: TopicRecord) -> TopicRecord:
        """The record itself, of which the letter holds only the place: it was too large for the letters' topic."""
        place = self._installation
        topic, partition, offset = (record.notes[name] for name in ("dlq_topic", "dlq_partition", "dlq_offset"))
        at, first = (topic, int(partition)), int(offset)
        with place.offsets() as offsets:
            low, _ = offsets.bounds([topic])[at]
        if first < low:
            raise CannotRedrive(f"its bytes were left out for their size, and {topic} no longer has offset {first}")
        wanted = {at: (first, first + 1)}
        return next(iter(read(place.bootstrap, wanted, seconds=READ_SECONDS, extra=place.kafka_config)))


class InboxBox:
    """Events that are DEAD."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing is held."""

    def letters(self) -> Iterator[Letter]:
        """Every event given up by the processors."""
        db = self._installation.db
        dead = {"consumer": self._installation.group, "state": DEAD}
        for row in db[INBOX].find(dead, {"_id": 0}).hint(OPEN_OR_DEAD):
            wanted = {"status": str(Status.FAILED), "upload.event_id": row["event_id"]}
            asset = db[ASSETS].find_one(wanted, {"_id": 1})
            yield Letter(
                source=Source.INBOX,
                id=row["event_id"],
                reason=f"{row.get('outcome')}: {row.get('last_error') or 'the worker died'}",
                at=row.get("finished_at"),
                asset_id=None if asset is None else asset["_id"],
                event_id=row["event_id"],
                told=row,
            )

    def redrive(self, letter: Letter, *, reason: str, announcer: Announcer) -> None:
        """Reopen the event with its asset, and announce it again."""
        if letter.asset_id is None:
            raise CannotRedrive("its asset is not FAILED any more: trashed, purged, or never there")
        try:
            redrive(self._installation, letter.asset_id, reason=reason, announcer=announcer)
        except NotRedrivable as error:
            raise CannotRedrive(str(error)) from error


class OutboxBox:
    """Rows that the relay parked."""

    def __init__(self, installation: Installation) -> None:
        self._rows = installation.db[OUTBOX]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing is held."""

    def letters(self) -> Iterator[Letter]:
        """Every parked row."""
        parked = {"published": False, "parked_at": {"$exists": True}}
        for row in self._rows.find(parked).hint("unpublished"):
            yield Letter(
                source=Source.OUTBOX,
                id=row["_id"],
                reason=row.get("last_error", ""),
                at=row["parked_at"],
                asset_id=row["asset_id"],
                event_id=row["_id"],
                told=row,
            )

    def redrive(self, letter: Letter, *, reason: str, announcer: Announcer) -> None:  # noqa: ARG002 -- the protocol's
        """Let the relay try the row again."""
        parked = {"_id": letter.id, "published": False, "parked_at": {"$exists": True}}
        if not self._rows.update_one(parked, {"$unset": {"parked_at": ""}, "$set": {"attempts": 0}}).matched_count:
            raise CannotRedrive("it is not parked any more")


def boxes(installation: Installation, sources: tuple[Source, ...]) -> dict[Source, Callable[[], Box]]:
    """The boxes of these sources; SQS's only if the installation's queue is known."""
    queue = installation.queue
    made: dict[Source, Callable[[], Box]] = {
        Source.KAFKA: lambda: KafkaBox(installation),
        Source.INBOX: lambda: InboxBox(installation),
        Source.OUTBOX: lambda: OutboxBox(installation),
    }
    if queue is not None:
        made = {Source.SQS: lambda: SqsBox(queue), **made}
    return {source: box for source, box in made.items() if source in sources}


def find(installation: Installation, wanted: Filter, *, limit: int | None = None) -> list[Letter]:
    """The letters that are meant, of all sources; at most ``limit`` of each.

    Raises:
        PyMongoError, KafkaException, ClientError, BotoCoreError: a server failed.

    """
    now = installation.now()
    found = []
    for make in boxes(installation, wanted.sources).values():
        with make() as box:
            taken = 0
            for letter in box.letters():
                if wanted.takes(letter, now):
                    found.append(letter)
                    taken += 1
                if taken == limit:
                    break
    return found


@dataclass(frozen=True)
class Redriven:
    """What became of a letter; ``problem`` says why it still lies there."""

    letter: Letter
    problem: str | None = None


def redrive_all(
    installation: Installation,
    wanted: Filter,
    *,
    reason: str,
    dry_run: bool,
    again: bool = False,
    limit: int | None = None,
    rate: float = 0.0,
) -> Iterator[Redriven]:
    """Put the letters that are meant back, ``rate`` of them a second at most (0: no bound), and record each.

    Kafka's letters that were put back before are passed over, unless ``again``.

    Raises:
        PyMongoError, KafkaException, ClientError, BotoCoreError: a server failed; what was yielded is done.

    """
    now, pace = installation.now(), Pace(rate)
    with Announcer(installation) as announcer:
        for make in boxes(installation, wanted.sources).values():
            with make() as box:
                # Listed to the end first: what comes back while this goes on is not taken a second time.
                listed = [one for one in box.letters() if wanted.takes(one, now) and (again or not one.redriven)]
                for letter in listed[:limit]:
                    pace.wait()
                    yield _redriven(installation, box, letter, reason=reason, dry_run=dry_run, announcer=announcer)


def _redriven(
    installation: Installation, box: Box, letter: Letter, *, reason: str, dry_run: bool, announcer: Announcer
) -> Redriven:
    if dry_run:
        return Redriven(letter)
    record: AbstractContextManager[None] = audit.recorded(
        installation,
        "redrive",
        reason=reason,
        source=str(letter.source),
        letter=letter.id,
        asset_id=letter.asset_id,
        event_id=letter.event_id,
    )
    try:
        with record:
            box.redrive(letter, reason=reason, announcer=announcer)
    except CannotRedrive as error:
        return Redriven(letter, str(error))
    return Redriven(letter)


def _sqs_letter(message: Mapping[str, Any]) -> Letter:
    attributes = message.get("Attributes", {})
    body = message.get("Body", "")
    match = _ASSET.search(unquote_plus(body))
    return Letter(
        source=Source.SQS,
        id=message["MessageId"],
        reason=f"not handled in {attributes.get('ApproximateReceiveCount', '?')} receives",
        at=_moment(attributes.get("SentTimestamp")),
        asset_id=None if match is None else match[1],
        told={"body": _json_or_text(body), "attributes": attributes},
    )


def kafka_letter(record: TopicRecord, *, redriven: bool) -> Letter:
    """The letter that a record of the dead letters' topic is."""
    notes = record.notes
    asset_id = notes.get("ce_subject") or (record.key or b"").decode(errors="backslashreplace") or None
    return Letter(
        source=Source.KAFKA,
        id=_kafka_id(record),
        reason=notes.get("dlq_reason", "no reason given"),
        at=datetime.fromtimestamp(record.sent_at, tz=UTC),
        asset_id=asset_id,
        event_id=notes.get("ce_id"),
        redriven=redriven,
        told={"headers": notes, "value": _json_or_text((record.value or b"").decode(errors="backslashreplace"))},
    )


def _kafka_id(record: TopicRecord) -> str:
    return f"{record.partition}/{record.offset}"


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # whatever came is a letter, and one must not hide the others
        return text


def _moment(milliseconds: str | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(int(milliseconds) / 1000, tz=UTC)
