"""The bridge joins the trace that an asset's id gives, and says so to the event's readers."""

from datetime import UTC, datetime, timedelta

import pytest
from opentelemetry.trace import StatusCode

from darkroom.contracts.envelope import Event
from darkroom.tracing.traceparent import of_asset, parse
from s3_bridge.journey import Journey
from support.events import registered, uploaded
from support.recorded import named, recorded

SENT_AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def announced() -> Event:
    return uploaded(registered().after)


def test_it_is_a_child_of_the_assets_first_span_from_the_messages_arrival_on(monkeypatch: pytest.MonkeyPatch) -> None:
    event = announced()
    with recorded(monkeypatch) as exporter:
        journey = Journey(event, sent_at=SENT_AT)
        journey.end(None)
    received, published = named(exporter, "receive S3 notification"), named(exporter, "publish AssetUploaded")
    assert received.parent is not None
    assert published.parent is not None
    assert (received.parent.trace_id, received.parent.span_id) == of_asset(event.asset_id)[:2]  # type: ignore[index]
    assert received.start_time == SENT_AT.timestamp() * 1e9
    assert published.parent.span_id == received.context.span_id
    read = parse(journey.event.traceparent)
    assert read is not None
    assert read.span_id == published.context.span_id
    assert journey.event.model_copy(update={"traceparent": None}) == event


def test_a_share_is_the_same_share_that_the_api_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded(
        monkeypatch, OTEL_TRACES_SAMPLER="parentbased_traceidratio", OTEL_TRACES_SAMPLER_ARG="0.5"
    ) as exporter:
        for _ in range(200):
            journey = Journey(event := announced(), sent_at=SENT_AT)
            journey.end(None)
            own, read = of_asset(event.asset_id), parse(journey.event.traceparent)
            assert own is not None
            assert read is not None
            assert read.sampled is (own.trace_id & (1 << 56) - 1 < 1 << 55)
    assert 100 < len(exporter.get_finished_spans()) < 300


def test_what_kafka_did_not_confirm_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded(monkeypatch) as exporter:
        Journey(announced(), sent_at=SENT_AT + timedelta(seconds=1)).end("no delivery report in time")
    assert {span.status.status_code for span in exporter.get_finished_spans()} == {StatusCode.ERROR}


def test_without_an_sdk_the_event_names_the_assets_own_trace() -> None:
    event = announced()
    journey = Journey(event, sent_at=SENT_AT)
    journey.end(None)
    assert journey.event.traceparent == str(of_asset(event.asset_id))
