"""From the body of one SQS message to AssetUploaded events. Pure: the same body always gives the same events.

Three things can come of each announcement in a body:

- an event: an original was created in our bucket;
- ignored: it is understood and not for us, so the message is acknowledged. Test events, empty notifications, removals,
  renditions and folder markers are part of the day; another bucket, a key that is not UTF-8 or a message that S3 did
  not send (``LOUD``) say that something is set up wrongly, or that somebody tries;
- malformed: it is not understood, so the message must be reported as failed, comes back and ends in the dead-letter
  queue, where a person can look at it. Acknowledging it could lose an upload.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

from pydantic import ValidationError

from darkroom.contracts.envelope import Event
from darkroom.contracts.events import UUID_PATTERN, AssetUploaded
from darkroom.contracts.ids import upload_event_id

EXTENSIONS = ("jpg", "png", "webp", "gif", "avif", "heic", "heif")
"""Of originals; the notifications in deploy/aws/template.yaml name the same ones."""

# Used with fullmatch: a pattern that ends in $ would let a newline through.
_ORIGINAL = re.compile(rf"assets/({UUID_PATTERN.strip('^$')})/original\.(?:{'|'.join(EXTENSIONS)})")
_SNS_HANDSHAKES = ("SubscriptionConfirmation", "UnsubscribeConfirmation")
_DETAIL_CHARACTERS = 300


class Reason(StrEnum):
    """Why an announcement is not for us."""

    TEST_EVENT = "test_event"
    EMPTY = "empty"
    NOT_CREATED = "not_created"
    NOT_AN_ORIGINAL = "not_an_original"
    FOREIGN_BUCKET = "foreign_bucket"
    UNDECODABLE_KEY = "undecodable_key"
    NOT_FROM_S3 = "not_from_s3"


LOUD = frozenset({Reason.FOREIGN_BUCKET, Reason.UNDECODABLE_KEY, Reason.NOT_FROM_S3})
"""Reasons that never occur in an installation that is set up rightly."""


class Ignored(NamedTuple):
    """An announcement that was understood and is not for us; ``detail`` is for the log."""

    reason: Reason
    detail: str


@dataclass(frozen=True)
class Notification:
    """All that one body said. ``malformed`` has one sentence for each part that was not understood."""

    events: tuple[Event, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    malformed: tuple[str, ...] = ()


class _Malformed(ValueError):
    """A part of a body that is not understood."""


class _Created(NamedTuple):
    """An object was created, in the one form that all shapes are brought to; the key is decoded."""

    bucket: str
    key: str
    time: Any
    size: Any
    etag: Any
    version_id: Any
    sequencer: Any


_Reader = Callable[[Mapping[str, Any]], _Created | Ignored]


def read_notification(body: str | None, *, bucket: str, sent_at: datetime) -> Notification:
    """Understand a body as S3 sends it to SQS, also through SNS or EventBridge; never raises.

    ``bucket`` is the one bucket whose objects count. ``sent_at`` is when the message was sent, for announcements that
    do not say when the object was created.
    """
    try:
        parts = _parts(_parse(body), in_envelope=False)
    except _Malformed as error:
        return Notification(malformed=(str(error),))
    if isinstance(parts, Ignored):
        return Notification(ignored=(parts,))
    events, ignored, malformed = [], [], []
    for reader, part in parts:
        try:
            created = reader(_mapping(part, "record"))
            outcome = created if isinstance(created, Ignored) else _judge(created, bucket=bucket, sent_at=sent_at)
        except _Malformed as error:
            malformed.append(str(error))
            continue
        if isinstance(outcome, Ignored):
            ignored.append(outcome)
        else:
            events.append(outcome)
    return Notification(tuple(events), tuple(ignored), tuple(malformed))


def _parse(text: str | None) -> Mapping[str, Any]:
    if text is None:
        raise _Malformed("the message has no body")
    try:
        return _mapping(json.loads(text), "body")
    except (ValueError, RecursionError) as error:
        raise _Malformed(f"the body is not a JSON object: {error}") from error


def _parts(message: Mapping[str, Any], *, in_envelope: bool) -> list[tuple[_Reader, Any]] | Ignored:
    """Split a message into announcements, each with the reader of its shape."""
    if not message:
        return Ignored(Reason.EMPTY, "the body is {}")
    if message.get("Event") == "s3:TestEvent":
        return Ignored(Reason.TEST_EVENT, _shown(message.get("Bucket")))
    if "Records" in message:
        records = [] if message["Records"] is None else message["Records"]
        if not isinstance(records, list):
            raise _Malformed(f"Records: {_shown(records)} is not a list")
        return [(_s3_record, record) for record in records] or Ignored(Reason.EMPTY, "no Records")
    if isinstance(message.get("detail-type"), str):
        return [(_eventbridge, message)]
    if message.get("Type") == "Notification" and not in_envelope:
        return _parts(_parse(_string(message, "Message")), in_envelope=True)
    if message.get("Type") in _SNS_HANDSHAKES:
        return Ignored(Reason.NOT_FROM_S3, _shown(message.get("TopicArn")))
    raise _Malformed(f"neither an S3 notification nor one through SNS or EventBridge: {_shown(sorted(message))}")


def _s3_record(record: Mapping[str, Any]) -> _Created | Ignored:
    name = _string(record, "eventName")
    # MinIO writes the prefix, S3 does not. Put, Post, Copy and CompleteMultipartUpload all create.
    if not name.removeprefix("s3:").startswith("ObjectCreated:"):
        return Ignored(Reason.NOT_CREATED, _shown(name))
    s3 = _mapping(record.get("s3"), "s3")
    found = _mapping(s3.get("object"), "s3.object")
    raw = _string(found, "key")
    try:
        key = unquote_plus(raw, errors="strict")
    except UnicodeDecodeError:
        return Ignored(Reason.UNDECODABLE_KEY, _shown(raw))
    return _Created(
        bucket=_string(_mapping(s3.get("bucket"), "s3.bucket"), "name"),
        key=key,
        time=record.get("eventTime"),
        size=found.get("size"),
        etag=found.get("eTag"),
        version_id=found.get("versionId"),
        sequencer=found.get("sequencer"),
    )


def _eventbridge(message: Mapping[str, Any]) -> _Created | Ignored:
    if message.get("source") != "aws.s3":
        return Ignored(Reason.NOT_FROM_S3, _shown(message.get("source")))
    if message["detail-type"] != "Object Created":
        return Ignored(Reason.NOT_CREATED, _shown(message["detail-type"]))
    detail = _mapping(message.get("detail"), "detail")
    found = _mapping(detail.get("object"), "detail.object")
    return _Created(
        bucket=_string(_mapping(detail.get("bucket"), "detail.bucket"), "name"),
        # EventBridge does not encode keys: a plus is a plus here.
        key=_string(found, "key"),
        time=message.get("time"),
        size=found.get("size"),
        etag=found.get("etag"),
        version_id=found.get("version-id"),
        sequencer=found.get("sequencer"),
    )


def _judge(created: _Created, *, bucket: str, sent_at: datetime) -> Event | Ignored:
    if created.bucket != bucket:
        return Ignored(Reason.FOREIGN_BUCKET, _shown(f"{created.bucket}/{created.key}"))
    match = _ORIGINAL.fullmatch(created.key)
    if match is None:
        return Ignored(Reason.NOT_AN_ORIGINAL, _shown(created.key))
    time = _time(created.time)
    try:
        data = AssetUploaded(
            bucket=bucket,
            object_key=created.key,
            etag=_text(created.etag, "eTag"),
            version_id=_text(created.version_id, "versionId"),
            size=created.size,
            sequencer=_text(created.sequencer, "sequencer"),
            uploaded_at=time,
        )
        return Event(
            id=upload_event_id(bucket, data.object_key, data.version_id, data.etag),
            asset_id=match[1],
            occurred_at=time or sent_at,
            data=data,
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise _Malformed(f"{first['loc'][0]} of {created.key}: {first['msg']}") from error


def _text(value: Any, name: str) -> str | None:
    """The text, or None for all the ways in which stores say that there is none; quotes of HTTP's ETag are taken off.

    An unversioned object's version is null in S3, which some stores write as text; "" would be an error if sent back.
    """
    if value is None:
        return None
    if not isinstance(value, str) or not _is_unicode(value):
        raise _Malformed(f"{name}: {_shown(value)} is not a text")
    bare = value.strip('"')
    return None if bare in ("", "null") else bare


def _is_unicode(text: str) -> bool:
    """JSON can hold half a surrogate pair, which no encoding can write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _time(value: Any) -> datetime | None:
    """A time in UTC; None if there is none or it cannot be read, since nothing is decided by it."""
    try:
        moment = datetime.fromisoformat(value)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return None


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _Malformed(f"{name}: {_shown(value)} is not an object")
    return value


def _string(where: Mapping[str, Any], name: str) -> str:
    value = where.get(name)
    if not isinstance(value, str):
        raise _Malformed(f"{name}: {_shown(value)} is not a text")
    return value


def _shown(value: object) -> str:
    return ascii(value)[:_DETAIL_CHARACTERS]
