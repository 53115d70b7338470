"""What a consumer's spans and log lines know of the event that is handled."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from darkroom.contracts.envelope import Event
from darkroom.inbox.consumer import Delivery
from darkroom.tracing import spans
from darkroom.tracing.traceparent import Traceparent, parse, trace_id


class Handling:
    """The span of one attempt at one event: sent when the block ends, unless ``nothing_done`` was said."""

    def __init__(self, span: spans.Span) -> None:
        self.span = span
        self._done = True

    def nothing_done(self) -> None:
        """There was no attempt, for somebody else holds the event: of this one asks again and again."""
        self._done = False

    def number(self, attempts: int) -> None:
        """Which attempt this is, from 1."""
        self.span.set_attribute("darkroom.attempt", attempts)

    def ended(self, outcome: str) -> None:
        """What came of the attempt."""
        self.span.set_attribute("darkroom.outcome", outcome)

    def _end(self) -> None:
        if self._done:
            self.span.end()


@contextmanager
def handling(event: Event, delivery: Delivery, *, consumer: str, trace: str | None = None) -> Iterator[Handling]:
    """Around what a consumer does with an event: a span in its trace, and its ids on every line that is logged within.

    The parent is who published the event. Where ``trace`` is given, a ``traceparent`` of another trace than that, the
    span belongs there instead and is linked to who published the event.
    """
    published, wished = parse(event.traceparent), parse(trace)
    parent = _parent(published, wished)
    begun = spans.begin(
        f"process {event.type}",
        # Not the thread's own: it has none, and whoever wraps the consumer must not become the cause of all events.
        parent=parent or spans.NOBODY,
        kind=spans.SpanKind.CONSUMER,
        attributes={
            "messaging.system": "kafka",
            "messaging.destination.name": delivery.topic,
            "messaging.destination.partition.id": str(delivery.partition),
            "messaging.kafka.offset": delivery.offset,
            "messaging.consumer.group.name": consumer,
            "messaging.message.id": event.id,
            "darkroom.asset_id": event.asset_id,
        },
        links=spans.link(published) if published and parent and published.trace_id != parent.trace_id else (),
        start_ns=time.time_ns(),
    )
    now = Handling(begun)
    ids = {"asset_id": event.asset_id, "event_id": event.id, "trace_id": trace_id(spans.told(begun))}
    try:
        with structlog.contextvars.bound_contextvars(**ids), spans.within(begun):
            yield now
    finally:
        now._end()  # noqa: SLF001 -- for nobody else to call


def _parent(published: Traceparent | None, wished: Traceparent | None) -> Traceparent | None:
    if published is None or wished is None:
        return wished or published
    if published.trace_id != wished.trace_id:
        return wished
    # Whether to record was decided where the trace began; who published the event may not have known.
    return published._replace(flags=wished.flags)
