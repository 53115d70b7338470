"""Sends spans by OTLP over HTTP, where OpenTelemetry's own variables say so; without them nothing is imported or done.

``OTEL_EXPORTER_OTLP_ENDPOINT`` (or ``…_TRACES_ENDPOINT``) switches tracing on. The other ``OTEL_*`` variables mean what
OpenTelemetry says, with one difference: ``traceidratio`` decides by the last seven bytes of the trace id, which are the
random ones of an asset's trace. The SDK's own sampler reads eight, of which the first is never random in a UUID.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from darkroom.runtime.addresses import check_url
from darkroom.runtime.start import StartRefused

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.sdk.trace.sampling import Sampler

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
SPOKEN = "http/protobuf"
LAST_SECONDS = 3.0
"""For what is not sent yet when the process ends; a receiver that is away must not hold that up."""

Flush = Callable[[float], None]


@contextmanager
def tracing(*, service: str) -> Iterator[Flush]:
    """Around a service's life. Yields what sends all ended spans within so many seconds, for those who may be frozen.

    Raises:
        StartRefused: tracing is asked for and cannot be, for a package is missing or a variable wrong.

    """
    provider = configure(service=service, environment=os.environ)
    if provider is None:
        yield lambda _seconds: None
        return
    try:
        yield lambda seconds: _within(seconds, lambda: provider.force_flush(round(seconds * 1000)))
    finally:
        _within(LAST_SECONDS, provider.shutdown)


def configure(*, service: str, environment: Mapping[str, str]) -> "TracerProvider | None":
    """Set OpenTelemetry's SDK up for this process, once; None if the environment does not ask for it.

    Raises:
        StartRefused: see ``tracing``.

    """
    if not wanted(environment):
        return None
    protocol = next((environment[name] for name in PROTOCOLS if environment.get(name)), SPOKEN)
    if protocol != SPOKEN:
        raise StartRefused(f"{PROTOCOLS[1]}: {protocol!r} is not spoken here; set it to {SPOKEN} and its port (4318).")
    for name in filter(environment.get, ENDPOINTS):
        try:
            check_url(environment[name], userinfo=True)
        except ValueError as error:
            raise StartRefused(f"{name}: this is no address of a receiver of traces: {error}.") from None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise StartRefused(
            f"{ENDPOINTS[1]} is set, and the package for it is missing ({error.name}): "
            "pip install 'darkroom[telemetry]', or unset the variable."
        ) from None
    from opentelemetry import trace

    provider = provider_of(service=service, environment=environment)
    exporter: SpanExporter = OTLPSpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether the environment asks for traces."""
    return (
        any(environment.get(name) for name in ENDPOINTS)
        and environment.get("OTEL_SDK_DISABLED", "").lower() != "true"
        and environment.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp"
    )


def provider_of(*, service: str, environment: Mapping[str, str]) -> "TracerProvider":
    """A provider with Darkroom's ids and sampler, which sends nothing yet.

    Raises:
        StartRefused: the sampler is none, or its share no number from 0 to 1.

    """
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    from darkroom.runtime.sampling import AssetIds, sampler

    name = environment.get("OTEL_SERVICE_NAME") or f"darkroom-{service}"
    chosen: Sampler = sampler(
        environment.get("OTEL_TRACES_SAMPLER", ""), environment.get("OTEL_TRACES_SAMPLER_ARG", "")
    )
    return TracerProvider(
        sampler=chosen,
        id_generator=AssetIds(),
        resource=Resource.create({"service.name": name}),
        # Ended here, within a bound.
        shutdown_on_exit=False,
    )


def _within(seconds: float, call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call, name="last-spans", daemon=True)
    thread.start()
    thread.join(seconds)
