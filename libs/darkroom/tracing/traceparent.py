"""Which trace an event belongs to: W3C Trace Context, and the trace that every asset has by its id alone. Pure.

An asset's own trace has the sixteen bytes of its id as trace id, and their last eight as the id of its first span. So
whoever sees nothing but the id, such as the bridge in an object's key, joins it without asking anybody (ADR 0015).
"""

import re
from typing import NamedTuple
from uuid import UUID

SAMPLED = 0x01
RANDOM = 0x02
"""The last seven bytes of the trace id are random: those of a UUID of version 4 are."""
_FORM = re.compile(r"(?P<version>[0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?P<more>-.*)?", re.DOTALL)


class Traceparent(NamedTuple):
    """One span, as its children are told of it."""

    trace_id: int
    span_id: int
    flags: int

    @property
    def sampled(self) -> bool:
        """Whether whoever made the span may have recorded it."""
        return bool(self.flags & SAMPLED)

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"


def parse(text: str | None) -> Traceparent | None:
    """Read a ``traceparent``; None if it is not one, or its ids are zero, which W3C asks to ignore."""
    if text is None or (found := _FORM.fullmatch(text)) is None:
        return None
    # Later versions may say more behind it, version 00 may not.
    if found["version"] == "ff" or (found["version"] == "00" and found["more"] is not None):
        return None
    read = Traceparent(int(found[2], 16), int(found[3], 16), int(found[4], 16) & (SAMPLED | RANDOM))
    return read if read.trace_id and read.span_id else None


def trace_id(text: str | None) -> str | None:
    """The trace id in 32 hex digits, as logs have it; None if the text is no ``traceparent``."""
    read = parse(text)
    return None if read is None else f"{read.trace_id:032x}"


def of_asset(asset_id: str) -> Traceparent | None:
    """The first span of the asset's own trace, recorded by nobody yet; None for the ids that W3C forbids.

    Raises:
        ValueError: this is no UUID.

    """
    return of_uuid(UUID(asset_id))


def of_uuid(asset_id: UUID) -> Traceparent | None:
    """The same of an id that is read already."""
    number = asset_id.int
    span_id = number & 0xFFFF_FFFF_FFFF_FFFF
    return Traceparent(number, span_id, RANDOM) if span_id else None
