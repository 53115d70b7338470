"""Which trace an attempt is in, what its lines in the log say, and that nothing is made of it without an SDK."""

import pytest
import structlog
from opentelemetry.trace import StatusCode

from darkroom.contracts.envelope import STREAM_SOURCE, Event, to_record
from darkroom.inbox.consumer import Delivery
from darkroom.inbox.record_ids import LONGEST_ID, ids_of
from darkroom.inbox.tracing import handling
from darkroom.tracing import spans
from darkroom.tracing.traceparent import parse
from support.events import new_id, registered
from support.recorded import named, recorded

PUBLISHED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SAME_TRACE = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
OTHER_TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def published(traceparent: str | None) -> tuple[Event, Delivery]:
    event = registered().event.model_copy(update={"traceparent": traceparent})
    record = to_record(event, source=STREAM_SOURCE)
    return event, Delivery("assets.events", 3, 7, record.key, record.value, record.headers, owner=new_id())


def test_the_parent_is_who_published_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    event, delivery = published(PUBLISHED)
    with recorded(monkeypatch) as exporter, handling(event, delivery, consumer="counter") as attempt:
        attempt.number(2)
        attempt.ended("counted")
        with spans.span("step"):
            pass
    span, step = named(exporter, "process AssetRegistered"), named(exporter, "step")
    assert span.parent is not None
    assert step.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == parse(PUBLISHED)[:2]  # type: ignore[index]
    assert step.parent.span_id == span.context.span_id
    assert span.attributes is not None
    assert span.attributes["darkroom.attempt"] == 2
    assert span.attributes["messaging.kafka.offset"] == 7
    assert span.links == ()


def test_in_another_trace_it_is_linked_to_who_published_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    event, delivery = published(PUBLISHED)
    with recorded(monkeypatch) as exporter, handling(event, delivery, consumer="c", trace=OTHER_TRACE):
        pass
    span = named(exporter, "process AssetRegistered")
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == parse(OTHER_TRACE)[:2]  # type: ignore[index]
    assert [(link.context.trace_id, link.context.span_id) for link in span.links] == [parse(PUBLISHED)[:2]]  # type: ignore[index]


def test_the_assets_trace_decides_whether_to_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bridge that traces nothing, or is set up otherwise, does not tear a trace apart."""
    with recorded(monkeypatch) as exporter:
        event, delivery = published(PUBLISHED[:-1] + "0")
        with handling(event, delivery, consumer="c", trace=SAME_TRACE):
            pass
        assert len(exporter.get_finished_spans()) == 1
        event, delivery = published(PUBLISHED)
        with handling(event, delivery, consumer="c", trace=SAME_TRACE[:-1] + "0"):
            pass
        assert len(exporter.get_finished_spans()) == 1


def test_what_was_no_attempt_is_not_told_and_what_failed_is(monkeypatch: pytest.MonkeyPatch) -> None:
    event, delivery = published(PUBLISHED)
    with recorded(monkeypatch) as exporter:
        with handling(event, delivery, consumer="c") as attempt:
            attempt.nothing_done()
        assert exporter.get_finished_spans() == ()
        with pytest.raises(RuntimeError), handling(event, delivery, consumer="c"):
            raise RuntimeError("broken")
        assert named(exporter, "process AssetRegistered").status.status_code is StatusCode.ERROR


def test_an_event_without_a_trace_begins_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    event, delivery = published(None)
    with recorded(monkeypatch) as exporter, spans.span("around"), handling(event, delivery, consumer="c"):
        pass
    assert named(exporter, "process AssetRegistered").parent is None


@pytest.mark.parametrize(
    ("traceparent", "trace", "passed_on"),
    [
        (PUBLISHED, None, PUBLISHED),
        (PUBLISHED, OTHER_TRACE, OTHER_TRACE),
        (None, OTHER_TRACE, OTHER_TRACE),
        (None, None, None),
    ],
)
def test_without_an_sdk_the_trace_passes_through(
    traceparent: str | None, trace: str | None, passed_on: str | None
) -> None:
    event, delivery = published(traceparent)
    with handling(event, delivery, consumer="c", trace=trace), spans.span("step"):
        assert spans.current() == passed_on
        bound = structlog.contextvars.get_contextvars()
        assert (bound["asset_id"], bound["event_id"]) == (event.asset_id, event.id)
        assert bound["trace_id"] == (passed_on.split("-")[1] if passed_on else None)
    assert spans.current() is None
    assert structlog.contextvars.get_contextvars() == {}


def test_a_records_ids_are_read_from_its_headers() -> None:
    event, delivery = published(PUBLISHED)
    assert ids_of(delivery.headers) == {
        "asset_id": event.asset_id,
        "event_id": event.id,
        "trace_id": PUBLISHED.split("-")[1],
    }


def test_a_hostile_record_has_short_ids_or_none() -> None:
    found = ids_of([("ce_subject", b"\xff" * 1000), ("ce_id", None), ("ce_traceparent", b"nonsense"), ("x", b"y")])
    assert found.keys() == {"asset_id"}
    assert len(found["asset_id"]) == LONGEST_ID
