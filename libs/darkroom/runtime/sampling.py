"""What OpenTelemetry's SDK asks of Darkroom: ids that may be chosen, and which traces are recorded.

Imports the SDK: only where tracing is switched on.
"""

from collections.abc import Sequence

from opentelemetry.context import Context, get_value
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes

from darkroom.runtime.start import StartRefused
from darkroom.tracing.spans import CHOSEN, UNDECIDED

RANDOM_BITS = 56
PARENT_BASED = "parentbased_"
KINDS = ("always_on", "always_off", "traceidratio")


class AssetIds(RandomIdGenerator):
    """Random ids, unless they were chosen."""

    def generate_span_id(self) -> int:
        """The id of the span that begins."""
        chosen = CHOSEN.get()
        return super().generate_span_id() if chosen is None else chosen.span_id

    def generate_trace_id(self) -> int:
        """The id of the trace that begins."""
        chosen = CHOSEN.get()
        return super().generate_trace_id() if chosen is None else chosen.trace_id


class Share(Sampler):
    """Records a share of all traces, the same ones in every process."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._bound = round(share * (1 << RANDOM_BITS))

    def should_sample(
        self,
        parent_context: Context | None,  # noqa: ARG002 -- the SDK's signature, here and below
        trace_id: int,
        name: str,  # noqa: ARG002
        kind: SpanKind | None = None,  # noqa: ARG002
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,  # noqa: ARG002
        trace_state: TraceState | None = None,  # noqa: ARG002
    ) -> SamplingResult:
        """Decide by the trace id alone."""
        if trace_id & ((1 << RANDOM_BITS) - 1) < self._bound:
            return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes)
        return SamplingResult(Decision.DROP)

    def get_description(self) -> str:
        """As the SDK shows it."""
        return f"Share{{{self._share}}}"


class ByParent(ParentBased):
    """Does as the parent did; where nobody knows what that was, as the process that began the trace must have done."""

    def __init__(self, root: Sampler) -> None:
        super().__init__(root)
        self._first = root

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Decide."""
        if get_value(UNDECIDED, parent_context):
            return self._first.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)
        return super().should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)


def sampler(kind: str, share: str) -> Sampler:
    """The sampler that OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG name; parentbased_always_on when both are empty.

    Raises:
        StartRefused: there is no such sampler, or the share is no number from 0 to 1.

    """
    kind = kind.lower() or "parentbased_always_on"
    bare = kind.removeprefix(PARENT_BASED)
    if bare not in KINDS:
        known = ", ".join([*KINDS, *(PARENT_BASED + one for one in KINDS)])
        raise StartRefused(f"OTEL_TRACES_SAMPLER: {kind!r} is none of {known}.")
    root = {"always_on": ALWAYS_ON, "always_off": ALWAYS_OFF}.get(bare) or Share(_number(share))
    return ByParent(root) if kind.startswith(PARENT_BASED) else root


def _number(share: str) -> float:
    try:
        number = float(share or "1")
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise StartRefused(f"OTEL_TRACES_SAMPLER_ARG: {share!r} is no number from 0 to 1.")
    return number
