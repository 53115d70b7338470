"""One batch of SQS messages: understand all, publish all at once, and say which messages must come back."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from darkroom.contracts.envelope import BRIDGE_SOURCE, Record, to_record
from darkroom.tracing.traceparent import trace_id
from s3_bridge.journey import Journey
from s3_bridge.notification import LOUD, Notification, Reason, read_notification

log = logging.getLogger(__name__)


class Message(NamedTuple):
    """One SQS message; ``id`` is for the log."""

    id: str | None
    body: str | None
    sent_at: datetime


class Publisher(Protocol):
    """Where events go."""

    def publish(self, records: Sequence[Record], *, timeout: float) -> list[str | None]:
        """Publish all and wait at most ``timeout`` seconds for the acknowledgements.

        Gives one entry a record: None if the broker has it for certain, else why that is not known. A record that was
        not acknowledged is never sent after the return.
        """
        ...


@dataclass(frozen=True)
class Result:
    """What became of a batch. ``failed`` holds the places of the messages that must come back."""

    failed: tuple[int, ...]
    published: int
    ignored: Counter[Reason]
    malformed: int


def bridge(messages: Sequence[Message], *, bucket: str, publisher: Publisher, timeout: float) -> Result:
    """Publish AssetUploaded for every original that the messages announce.

    A message is done when each of its events is acknowledged and nothing in it was malformed. Events of a message that
    comes back are published again with the same ids. An event that the batch holds twice is published once.
    """
    notifications = [read_notification(m.body, bucket=bucket, sent_at=m.sent_at) for m in messages]
    journeys = {
        event.id: Journey(event, sent_at=message.sent_at)
        for message, notification in zip(messages, notifications, strict=True)
        for event in notification.events
    }
    events = {event_id: journey.event for event_id, journey in journeys.items()}
    records = [to_record(event, source=BRIDGE_SOURCE) for event in events.values()]
    errors = dict(zip(events, publisher.publish(records, timeout=timeout), strict=True))
    for event_id, journey in journeys.items():
        journey.end(errors[event_id])
    for event in events.values():
        ids = {"event_id": event.id, "asset_id": event.asset_id, "trace_id": trace_id(event.traceparent)}
        if errors[event.id] is None:
            log.info("upload_published", extra=ids)
        else:
            log.error("upload_not_published", extra={**ids, "reason": errors[event.id]})
    failed = []
    for place, (message, notification) in enumerate(zip(messages, notifications, strict=True)):
        _log(message, notification)
        if notification.malformed or any(errors[event.id] for event in notification.events):
            failed.append(place)
    return Result(
        failed=tuple(failed),
        published=sum(error is None for error in errors.values()),
        ignored=Counter(ignored.reason for notification in notifications for ignored in notification.ignored),
        malformed=sum(bool(notification.malformed) for notification in notifications),
    )


def sent_at(milliseconds: str | None) -> datetime:
    """SQS's SentTimestamp, which stays the same however often a message is received; now, if there is none."""
    try:
        return datetime.fromtimestamp(int(milliseconds or "") / 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.now(UTC)


def _log(message: Message, notification: Notification) -> None:
    for reason, detail in notification.ignored:
        level = logging.WARNING if reason in LOUD else logging.INFO
        log.log(
            level, "notification_ignored", extra={"message_id": message.id, "reason": str(reason), "detail": detail}
        )
    for problem in notification.malformed:
        log.error("notification_malformed", extra={"message_id": message.id, "reason": problem})
