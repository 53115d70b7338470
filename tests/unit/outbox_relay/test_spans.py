"""The relay's spans: one for each event whose writer was recorded, ended by the acknowledgement."""

from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from darkroom.outbox import to_row
from darkroom.outbox.records import to_record
from darkroom.tracing.traceparent import parse
from outbox_relay.spans import PublishSpans, ids_of
from support.events import registered
from support.recorded import named, recorded

WRITER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def row(traceparent: str | None) -> dict[str, Any]:
    return to_row(registered().event.model_copy(update={"traceparent": traceparent}))


def told(record: Any) -> str | None:
    value = dict(record.headers).get("ce_traceparent")
    return None if value is None else value.decode()


def test_the_record_names_the_span_that_publishes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    written, publishing = row(WRITER), PublishSpans()
    with recorded(monkeypatch) as exporter:
        record = publishing.record(written)
        assert exporter.get_finished_spans() == ()
        publishing.acknowledged([written["_id"], "another"])
    span = named(exporter, "publish AssetRegistered")
    assert span.kind is SpanKind.PRODUCER
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == parse(WRITER)[:2]  # type: ignore[index]
    read = parse(told(record))
    assert read is not None
    assert (read.trace_id, read.span_id) == (span.context.trace_id, span.context.span_id)
    # The row is as it was: what is sent again is a span of the same parent.
    assert written["traceparent"] == WRITER


@pytest.mark.parametrize("traceparent", [None, "", WRITER[:-1] + "0", WRITER[:-1] + "2", "nonsense"])
def test_an_event_whose_writer_was_not_recorded_goes_as_it_is(
    monkeypatch: pytest.MonkeyPatch, traceparent: str | None
) -> None:
    publishing = PublishSpans()
    with recorded(monkeypatch) as exporter:
        written = row(traceparent)
        assert publishing.record(written) == to_record(written)
        publishing.acknowledged([written["_id"]])
    assert exporter.get_finished_spans() == ()


def test_without_an_sdk_the_record_is_the_rows() -> None:
    written = row(WRITER)
    assert PublishSpans().record(written) == to_record(written)


def test_what_was_not_published_is_told_as_failed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, left, publishing = row(WRITER), row(WRITER), PublishSpans()
    with recorded(monkeypatch) as exporter:
        publishing.record(refused)
        publishing.record(left)
        publishing.failed(refused["_id"], "too large")
        publishing.all_failed("given up")
        publishing.all_failed("given up")
    spans = exporter.get_finished_spans()
    assert [span.status.description for span in spans] == ["too large", "given up"]
    assert {span.status.status_code for span in spans} == {StatusCode.ERROR}


def test_lines_of_the_log_name_the_asset_and_its_trace() -> None:
    written = row(WRITER)
    assert ids_of(written) == {"asset_id": written["asset_id"], "trace_id": WRITER.split("-")[1]}
    assert ids_of({"_id": "x"}) == {}
