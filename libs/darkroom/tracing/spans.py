"""Spans through OpenTelemetry's API: whoever sets its SDK up gets them; without one they cost next to nothing.

Darkroom's services set it up in ``darkroom.runtime.tracing``. Spans know each other by their ``traceparent``. Without
an SDK that of whoever caused a step passes through it unchanged.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from darkroom.tracing.traceparent import Traceparent, parse

__all__ = ["Span", "SpanKind", "begin", "current", "fail", "link", "link_current", "root", "span", "told", "within"]

Attributes = Mapping[str, str | bool | int | float]

UNDECIDED = contexts.create_key("darkroom-undecided")
"""In a context: nobody told whether the parent is sampled, so the sampler decides by the trace id, as for a root."""
CHOSEN: ContextVar[Traceparent | None] = ContextVar("darkroom-chosen-ids", default=None)
"""The ids that the span which is begun now must have."""

NONE = trace.INVALID_SPAN
"""What stands for a span where none is to be."""

NOBODY = ""
"""The parent of a span that begins a trace, whatever the thread or task is about."""

# Finds the SDK that is set up, whenever that is.
_TRACER = trace.get_tracer("darkroom")


def begin(
    name: str,
    *,
    parent: str | Traceparent | None = None,
    undecided: bool = False,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Attributes | None = None,
    links: Sequence[Link] = (),
    start_ns: int | None = None,
) -> Span:
    """A span, to be ended by the caller; one that is never ended is never sent.

    ``parent`` is by default the span of this thread or task. ``undecided``: see ``UNDECIDED``. ``start_ns`` is in
    nanoseconds since 1970.
    """
    context = None if parent is None else trace.set_span_in_context(_remote(parent), contexts.Context())
    if undecided:
        context = contexts.set_value(UNDECIDED, True, context)
    return _TRACER.start_span(name, context, kind=kind, attributes=attributes, links=links, start_time=start_ns)


@contextmanager
def span(
    name: str,
    *,
    parent: str | Traceparent | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Attributes | None = None,
) -> Iterator[Span]:
    """A span around the block, which is the parent of those begun within. What the block raises is noted."""
    begun = begin(name, parent=parent, kind=kind, attributes=attributes)
    with trace.use_span(begun, end_on_exit=True):
        yield begun


def within(begun: Span) -> AbstractContextManager[Span]:
    """Around what is part of a span that somebody else ends. What the block raises is noted."""
    return trace.use_span(begun) if begun.get_span_context().is_valid else nullcontext(begun)


def root(
    name: str,
    ids: Traceparent,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Attributes | None = None,
    links: Sequence[Link] = (),
) -> Span:
    """The first span of a trace, under these very ids, to be ended by the caller."""
    before = CHOSEN.set(ids)
    try:
        return _TRACER.start_span(name, contexts.Context(), kind=kind, attributes=attributes, links=links)
    finally:
        CHOSEN.reset(before)


def told(of: Span) -> str | None:
    """The span as its children are told of it; None without an SDK and without a parent."""
    context = of.get_span_context()
    if not context.is_valid:
        return None
    return str(Traceparent(context.trace_id, context.span_id, context.trace_flags))


def current() -> str | None:
    """``told`` of the span of this thread or task."""
    return told(trace.get_current_span())


def link(traceparent: str | Traceparent | None) -> tuple[Link, ...]:
    """The link to a span, for those who began for its sake in another trace; none to what is no traceparent."""
    read = parse(traceparent) if isinstance(traceparent, str) else traceparent
    return () if read is None else (Link(_context(read)),)


def link_current(traceparent: str | None) -> None:
    """Link the span of this thread or task to another one, unless both are in one trace anyway."""
    here = trace.get_current_span()
    if here.is_recording():
        for one in link(traceparent):
            if one.context.trace_id != here.get_span_context().trace_id:
                here.add_link(one.context)


def fail(failed: Span, reason: str) -> None:
    """Say of a span that what it stands for did not come about."""
    failed.set_status(Status(StatusCode.ERROR, reason))


def _remote(parent: str | Traceparent) -> Span:
    read = parse(parent) if isinstance(parent, str) else parent
    return trace.INVALID_SPAN if read is None else NonRecordingSpan(_context(read))


def _context(read: Traceparent) -> SpanContext:
    return SpanContext(read.trace_id, read.span_id, is_remote=True, trace_flags=TraceFlags(read.flags))
