"""Spans in memory, by the provider that services have, without setting up anything for the whole process."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from darkroom.runtime.tracing import provider_of
from darkroom.tracing import spans


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch, **environment: str) -> Iterator[InMemorySpanExporter]:
    """What is ended within is in the exporter."""
    provider = provider_of(service="test", environment=environment)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with monkeypatch.context() as patch:
        patch.setattr(spans, "_TRACER", provider.get_tracer("test"))
        yield exporter
    provider.shutdown()


def named(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    """The one span of this name."""
    (span,) = (span for span in exporter.get_finished_spans() if span.name == name)
    return span
