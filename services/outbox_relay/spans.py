"""A span for each event that is published, from its sending to its acknowledgement, in the trace of what wrote it."""

from collections.abc import Iterable, Mapping
from typing import Any

from darkroom.contracts.envelope import Record
from darkroom.outbox.records import to_record
from darkroom.tracing import spans
from darkroom.tracing.traceparent import parse, trace_id


class PublishSpans:
    """The spans of what is under way. Used by one thread.

    A row whose writer was not recorded gets none and costs nothing: the record then names the writer itself.
    """

    def __init__(self) -> None:
        self._begun: dict[str, spans.Span] = {}

    def record(self, row: dict[str, Any]) -> Record:
        """The row's record, whose readers are told of the span that publishes it.

        Raises:
            UnsendableRow: see ``to_record``.

        """
        writer = row.get("traceparent")
        # Looked at before anything is parsed or made: this is done for every event there is.
        if type(writer) is not str or writer[-1:] not in _SAMPLED:
            return to_record(row)
        span = spans.begin(
            f"publish {row.get('type')}",
            parent=parse(writer) or spans.NOBODY,
            kind=spans.SpanKind.PRODUCER,
            attributes=_attributes(row),
        )
        if not span.is_recording():
            return to_record(row)
        self._begun[row["_id"]] = span
        return to_record({**row, "traceparent": spans.told(span)})

    def acknowledged(self, row_ids: Iterable[str]) -> None:
        """The broker has these."""
        if self._begun:
            for row_id in row_ids:
                if (span := self._begun.pop(row_id, None)) is not None:
                    span.end()

    def failed(self, row_id: str, reason: str) -> None:
        """This one was not published."""
        if (span := self._begun.pop(row_id, None)) is not None:
            spans.fail(span, reason)
            span.end()

    def all_failed(self, reason: str) -> None:
        """Of those that are left nobody knows whether the broker has them."""
        for row_id in list(self._begun):
            self.failed(row_id, reason)


def ids_of(row: Mapping[str, Any]) -> dict[str, str]:
    """What lines in the log say of a row, beside its event_id."""
    ids = {"asset_id": row.get("asset_id"), "trace_id": trace_id(row.get("traceparent"))}
    return {name: str(value) for name, value in ids.items() if value is not None}


_SAMPLED = frozenset("13579bdf")


def _attributes(row: Mapping[str, Any]) -> dict[str, str | int]:
    return {
        "messaging.system": "kafka",
        "messaging.message.id": str(row.get("_id")),
        "darkroom.asset_id": str(row.get("asset_id")),
        "darkroom.sequence": int(row.get("sequence") or 0),
    }
