"""The part of an asset's trace that the bridge sees: its announcement's way through SQS, and onto Kafka.

S3's notifications carry no headers. The asset's id, which is in the object's key, gives the trace and its first span.
"""

from datetime import datetime

from darkroom.contracts.envelope import Event
from darkroom.tracing import spans
from darkroom.tracing.traceparent import of_asset


class Journey:
    """One event's spans. ``event`` tells its readers which span published it, and is otherwise the one given."""

    def __init__(self, event: Event, *, sent_at: datetime) -> None:
        own = of_asset(event.asset_id)
        ids = {"darkroom.asset_id": event.asset_id, "messaging.message.id": event.id}
        # Whether the API records this trace is not known here; it decided by the trace id, and so does the sampler.
        self._queued = spans.begin(
            "receive S3 notification",
            parent=own,
            undecided=True,
            kind=spans.SpanKind.CONSUMER,
            attributes={**ids, "messaging.system": "aws_sqs"},
            start_ns=round(sent_at.timestamp() * 1_000_000_000),
        )
        with spans.within(self._queued):
            self._publishing = spans.begin(
                f"publish {event.type}",
                kind=spans.SpanKind.PRODUCER,
                attributes={**ids, "messaging.system": "kafka"},
            )
        self.event = event.model_copy(update={"traceparent": spans.told(self._publishing)})

    def end(self, error: str | None) -> None:
        """The broker has the event, or ``error`` says why that is not known."""
        for span in (self._publishing, self._queued):
            if error is not None:
                spans.fail(span, error)
            span.end()
