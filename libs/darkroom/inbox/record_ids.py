"""The ids that lines in the log have of a record, before anybody knows whether it is an event."""

from collections.abc import Iterable

from darkroom.tracing.traceparent import trace_id

LONGEST_ID = 64
"""Characters. A record may hold anything where its ids belong."""
_NAMES = {"ce_subject": "asset_id", "ce_id": "event_id"}


def ids_of(headers: Iterable[tuple[str, bytes | str | None]]) -> dict[str, str]:
    """``asset_id``, ``event_id`` and ``trace_id``, those of them that the record's headers name."""
    found: dict[str, str] = {}
    for name, raw in headers:
        if raw is None:
            continue
        if (known := _NAMES.get(name)) is not None:
            found[known] = _text(raw)[:LONGEST_ID]
        elif name == "ce_traceparent" and (traced := trace_id(_text(raw))) is not None:
            found["trace_id"] = traced
    return found


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode(errors="backslashreplace")
