"""What tracing costs an event, in microseconds: switched off, on and not sampled, on and sampled.

    .venv/bin/python benchmarks/tracing.py [--events 20000]

One process each, since OpenTelemetry's SDK is set up once in a process. Spans go to an exporter that throws them away:
what is measured is what the service's own threads pay.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from uuid import uuid4

from darkroom.contracts.envelope import Event
from darkroom.contracts.events import AssetProcessing
from darkroom.inbox.consumer import Delivery
from darkroom.inbox.record_ids import ids_of
from darkroom.inbox.tracing import handling
from darkroom.outbox import to_row
from darkroom.outbox.records import to_record
from darkroom.tracing import spans
from darkroom.tracing.traceparent import SAMPLED, of_asset
from outbox_relay.spans import PublishSpans

MODES = ("off", "off, a client's trace", "on, not sampled", "on, sampled")


def _event(mode: str) -> Event:
    asset_id = str(uuid4())
    own = of_asset(asset_id)
    assert own is not None
    sampled = mode in ("off, a client's trace", "on, sampled")
    return Event(
        id=str(uuid4()),
        asset_id=asset_id,
        sequence=2,
        owner_id="alice",
        traceparent=str(own._replace(flags=SAMPLED if sampled else 0)),
        occurred_at=datetime.now(UTC),
        data=AssetProcessing(upload_event_id=str(uuid4())),
    )


def _switch_on() -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    from darkroom.runtime.tracing import provider_of

    class Nowhere(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = provider_of(service="bench", environment={})
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    trace.set_tracer_provider(provider)


def _micros(count: int, step: Callable[[int], object]) -> float:
    best = float("inf")
    for _ in range(3):
        began = time.thread_time()
        for number in range(count):
            step(number)
        best = min(best, time.thread_time() - began)
    return best / count * 1e6


def measure(mode: str, count: int) -> dict[str, float]:
    """Microseconds an event, beyond what the step costs without any of it."""
    if mode.startswith("on"):
        _switch_on()
    events = [_event(mode) for _ in range(count)]
    rows = [to_row(event) for event in events]
    publishing = PublishSpans()

    def publish(number: int) -> None:
        publishing.record(rows[number])
        publishing.acknowledged((rows[number]["_id"],))

    deliveries = [
        Delivery("assets.events", 0, number, b"", b"", to_record(row).headers, owner="bench")
        for number, row in enumerate(rows)
    ]

    def handle(number: int) -> None:
        ids_of(deliveries[number].headers)
        with handling(events[number], deliveries[number], consumer="bench"):
            pass

    def step(number: int) -> None:
        with spans.span("step"):
            events[number]

    bare = _micros(count, lambda number: to_record(rows[number]))
    return {
        "relay": round(_micros(count, publish) - bare, 2),
        "consumer": round(_micros(count, handle), 2),
        "a step of the work": round(_micros(count, step), 2),
    }


def main() -> None:
    """Measure each mode in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--mode", choices=MODES)
    asked = parser.parse_args()
    if asked.mode is not None:
        print(json.dumps(measure(asked.mode, asked.events)))
        return
    for mode in MODES:
        command = [sys.executable, __file__, "--mode", mode, "--events", str(asked.events)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        print(f"{mode:24}", json.loads(done.stdout))


if __name__ == "__main__":
    main()
