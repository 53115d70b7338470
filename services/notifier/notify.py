"""One event of assets.events to its end: claim, tell on every channel, complete.

The inbox makes sure that an event which is done is not told again and that two workers never tell at once; the journal
makes sure that what one channel has already taken is not repeated because another one failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

import structlog
from pymongo.errors import PyMongoError

from darkroom.contracts.envelope import Event, MalformedEvent, from_record
from darkroom.contracts.events import AssetFailed, AssetReady, AssetRegistered
from darkroom.inbox import SHORTEST_WAIT, Claimed, Done, HeldElsewhere, Inbox, Lease, LeaseLost
from darkroom.inbox.consumer import Delivery, Finished, Later, Verdict
from darkroom.inbox.keeper import LeaseKeeper
from darkroom.inbox.outage import Outage, full_jitter, told, unreachable
from darkroom.inbox.tracing import handling
from darkroom.tracing import spans
from notifier.channels import Channel, InDoubt, NotSent, Refused, Unavailable
from notifier.journal import FINAL, Journal, State
from notifier.links import Links
from notifier.notice import Notice

log = structlog.get_logger()


LONGEST_OUTCOME = 1_000
"""Characters."""


class _CalledOff(Exception):
    """The partition was taken away, or the process ends."""


class Observer:
    """Told what becomes of notifications, from several threads; does nothing by itself. Quick, and never raises."""

    def ended(self, channel: str, state: State) -> None:
        """An attempt on a channel ended so."""

    def given_up(self) -> None:
        """Nothing more is tried for an event."""


@dataclass(frozen=True, kw_only=True)
class Notifier:
    """Handles the records of ``assets.events``. Thread-safe; a ``darkroom.inbox.consumer.Handler``."""

    inbox: Inbox
    keeper: LeaseKeeper
    journal: Journal
    links: Links
    channels: Sequence[Channel]
    max_attempts: int
    backoff_seconds: float
    observer: Observer = field(default_factory=Observer)

    def __call__(self, delivery: Delivery) -> Verdict:
        """Tell what the record says, or say when to try again."""
        try:
            event = from_record(key=delivery.key, value=delivery.value, record_headers=delivery.headers)
        except MalformedEvent as error:
            # Nothing of it can be told to anybody; the record itself stays on the topic.
            log.error("record_refused", reason=str(error), partition=delivery.partition, offset=delivery.offset)  # noqa: TRY400
            return Finished()
        try:
            return self._handle(delivery, event)
        except PyMongoError as error:
            if unreachable(error):
                raise Outage("MongoDB", self.journal.probe) from error
            raise

    def _handle(self, delivery: Delivery, event: Event) -> Verdict:
        if isinstance(event.data, AssetRegistered):
            # An asset's events come in order, so this is here before the asset's end is.
            self.journal.remember(event.asset_id, event.data.filename)
            return Finished()
        if not isinstance(event.data, AssetReady | AssetFailed):
            return Finished()
        with handling(event, delivery, consumer=self.inbox.consumer) as attempt:
            claim = self.inbox.claim(event.id, owner=delivery.owner)
            match claim:
                case Done():
                    attempt.ended("done before")
                    return Finished()
                case HeldElsewhere(seconds):
                    attempt.nothing_done()
                    return Later(max(seconds, SHORTEST_WAIT))
                case Claimed(lease):
                    attempt.number(lease.attempts)
                    with self.keeper.hold(lease, lost=delivery.cancelled):
                        return self._tell(delivery, lease, event, event.data)
                case _:
                    assert_never(claim)

    def _tell(self, delivery: Delivery, lease: Lease, event: Event, data: AssetReady | AssetFailed) -> Verdict:
        try:
            if lease.attempts > self.max_attempts:
                return self._give_up(lease, event, lease.last_error or "the worker died each time")
            try:
                failures = self._on_every_channel(self._notice(event, data), delivery)
            except (Unavailable, PyMongoError, _CalledOff):
                raise
            except Exception as defect:
                # An event that brings out a defect in this code must come to an end as well, so it costs attempts.
                log.exception("attempt_defect")
                failures = [NotSent(told(defect))]
            if failures:
                return self._retry(lease, event, failures)
            self.inbox.complete(lease, outcome="told")
        except LeaseLost:
            log.warning("lease_lost")
            return Later(SHORTEST_WAIT)
        except _CalledOff:
            self._call_off(lease)
            return Later(SHORTEST_WAIT)
        except Unavailable as down:
            # Nobody is to blame, so no attempt is spent; and it is given back now, for this process may be gone later.
            self._call_off(lease)
            raise Outage(down.server, down.probe) from down.__cause__
        return Finished()

    def _notice(self, event: Event, data: AssetReady | AssetFailed) -> Notice:
        return Notice(
            event_id=event.id,
            asset_id=event.asset_id,
            owner_id=event.owner_id or "",
            occurred_at=event.occurred_at,
            filename=self.journal.filename(event.asset_id),
            link=self.links.sign(data) if isinstance(data, AssetReady) else None,
            failure=data.failure if isinstance(data, AssetFailed) else None,
        )

    def _on_every_channel(self, notice: Notice, delivery: Delivery) -> list[NotSent]:
        failures = []
        for channel in self.channels:
            if delivery.cancelled.is_set():
                raise _CalledOff
            try:
                self._send(channel, notice)
            except NotSent as error:
                failures.append(error)
        return failures

    def _send(self, channel: Channel, notice: Notice) -> None:
        before = self.journal.begin(notice, channel.name)
        if before in FINAL:
            return
        if before is State.SENDING and not channel.repeatable:
            self._end(channel, notice, State.IN_DOUBT, "an earlier attempt did not live to see the answer")
            return
        try:
            with spans.span("send", kind=spans.SpanKind.CLIENT, attributes={"darkroom.channel": channel.name}):
                reference = channel.send(notice)
        except Refused as error:
            self._end(channel, notice, State.REFUSED, str(error))
        except InDoubt as error:
            if channel.repeatable:
                self._note(channel, notice, State.NOT_SENT, str(error))
                raise NotSent(str(error)) from error
            self._end(channel, notice, State.IN_DOUBT, str(error))
        except (NotSent, Unavailable) as error:
            self._note(channel, notice, State.NOT_SENT, str(error))
            raise
        else:
            self._end(channel, notice, State.SENT, reference)

    def _note(self, channel: Channel, notice: Notice, state: State, detail: str) -> None:
        self.journal.note(notice, channel.name, state, detail)
        self.observer.ended(channel.name, state)

    def _end(self, channel: Channel, notice: Notice, state: State, detail: str) -> None:
        self._note(channel, notice, state, detail)
        tell = log.info if state is State.SENT else log.warning
        tell("notification_ended", channel=channel.name, state=state, detail=detail)

    def _retry(self, lease: Lease, event: Event, failures: Sequence[NotSent]) -> Verdict:
        reason = "; ".join(str(error) for error in failures)
        if lease.attempts >= self.max_attempts:
            return self._give_up(lease, event, reason)
        wished = max((error.wait or 0.0 for error in failures), default=0.0)
        delay = max(wished, full_jitter(lease.attempts, cap=self.backoff_seconds))
        self.inbox.release(lease, delay=delay, error=reason)
        log.info("notification_failed", attempts=lease.attempts, retry_in=round(delay, 2), reason=reason)
        return Later(delay)

    def _give_up(self, lease: Lease, event: Event, reason: str) -> Verdict:
        self.journal.give_up(event.id, reason)
        self.inbox.bury(lease, outcome=f"given up: {reason}"[:LONGEST_OUTCOME])
        self.observer.given_up()
        log.warning("notification_given_up", reason=reason)
        return Finished()

    def _call_off(self, lease: Lease) -> None:
        try:
            self.inbox.release(lease, refund=True)
        except LeaseLost:
            log.info("lease_lost")
