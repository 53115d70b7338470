"""A receiver of OTLP over HTTP, as a collector is one, that keeps what it is told."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

TRACES = "/v1/traces"


@dataclass(frozen=True)
class Told:
    """One span as it came; ids in hex, times in nanoseconds."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    begun: int
    ended: int
    failed: bool
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]


@dataclass
class Collector:
    """``spans`` grows while it runs. What is posted to any other path is in ``posts``, with its headers."""

    url: str = ""
    spans: list[Told] = field(default_factory=list)
    posts: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    def of_trace(self, trace_id: str) -> list[Told]:
        """The trace's spans, in the order of their beginning."""
        return sorted((span for span in list(self.spans) if span.trace_id == trace_id), key=lambda span: span.begun)

    def of_asset(self, asset_id: str) -> list[Told]:
        """The spans that name the asset."""
        return [span for span in list(self.spans) if span.attributes.get("darkroom.asset_id") == asset_id]


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector on a free port of this machine."""
    state = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == TRACES:
                state.spans.extend(_read(body))
            else:
                state.posts.append((dict(self.headers), body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base class's name
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def _read(body: bytes) -> list[Told]:
    request = ExportTraceServiceRequest.FromString(body)
    found = []
    for resource in request.resource_spans:
        service = {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"]
        for scope in resource.scope_spans:
            found += [
                Told(
                    service=service,
                    name=span.name,
                    kind=span.kind,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    begun=span.start_time_unix_nano,
                    ended=span.end_time_unix_nano,
                    failed=span.status.code == 2,
                    attributes={one.key: _value(one.value) for one in span.attributes},
                    links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                )
                for span in scope.spans
            ]
    return found


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)
