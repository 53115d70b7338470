"""The invariants of one asset, over its document, its stream and its objects. Pure; ``verify`` and chaos share it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import ValidationError

from darkroom.assets import IllegalTransition, Status, fold, to_document
from darkroom.contracts.events import EventType
from darkroom.contracts.ids import stream_event_id
from darkroom.outbox import from_row

Document = Mapping[str, Any]
TERMINAL = (str(EventType.ASSET_READY), str(EventType.ASSET_FAILED))


class Listed(NamedTuple):
    """An object as a listing of the bucket tells of it; ``size`` in bytes."""

    size: int
    modified: datetime


@dataclass(frozen=True)
class Kept:
    """All that is stored of one asset: its document, its rows by sequence, and its objects by key."""

    asset_id: str
    asset: Document | None
    rows: Sequence[Document] = ()
    objects: Mapping[str, Listed] = field(default_factory=dict)


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold. ``what`` is a sentence."""

    invariant: str
    asset_id: str
    what: str


def violations(kept: Kept) -> list[Violation]:
    """All that is wrong with one asset, as far as it can be told without reading its pictures."""
    checks = (("I2", gapless), ("I3", document_is_fold), ("I4", one_terminal_event), ("I10", renditions_listed))
    return [Violation(name, kept.asset_id, what) for name, check in checks for what in check(kept)]


def gapless(kept: Kept) -> Iterator[str]:
    """I2: the stream is 1..n, each event under its own id, and n is the asset's version."""
    sequences = [row["sequence"] for row in kept.rows]
    if not sequences or sequences != list(range(1, len(sequences) + 1)):
        yield f"asset {kept.asset_id}: its stream has the sequences {sequences}"
    version = None if kept.asset is None else kept.asset["version"]
    if version != max(sequences, default=None):
        yield f"asset {kept.asset_id}: version {version}, but its stream has {sequences}"
    for row in kept.rows:
        if row["_id"] != stream_event_id(kept.asset_id, row["sequence"]):
            yield f"asset {kept.asset_id}: event {row['sequence']} has the id {row['_id']}, which is not its own"


def document_is_fold(kept: Kept) -> Iterator[str]:
    """I3: the document is what the stream tells, field by field."""
    if kept.asset is None:
        return  # I2 says so
    try:
        folded = folded_document(kept.rows)
    except (IllegalTransition, ValidationError, KeyError, ValueError) as error:
        yield f"asset {kept.asset_id}: its stream cannot be folded: {type(error).__name__}: {error}"
        return
    if names := differing(folded, kept.asset):
        yield f"asset {kept.asset_id}: the document differs from its stream's fold in {names}"


def folded_document(rows: Sequence[Document]) -> dict[str, Any]:
    """The document that a stream tells of.

    Raises:
        IllegalTransition: the stream has a gap or an impossible step, or is empty.
        ValidationError, KeyError, ValueError: a row is no event.

    """
    return to_document(fold(from_row(row) for row in rows))


def differing(one: Document, other: Document) -> list[str]:
    """The names of the fields in which two documents differ."""
    if one == other:
        return []
    return sorted(name for name in one.keys() | other.keys() if one.get(name, ...) != other.get(name, ...))


def one_terminal_event(kept: Kept) -> Iterator[str]:
    """I4: an upload ends once, and once more each time that it was redriven in between."""
    ended: dict[str | None, int] = {}
    for row in kept.rows:
        cause = row.get("causation_id")
        if row["type"] == EventType.ASSET_REDRIVEN:
            ended.pop(row["data"].get("upload_event_id"), None)
        elif row["type"] in TERMINAL:
            ended[cause] = ended.get(cause, 0) + 1
    for cause, count in ended.items():
        if count > 1:
            yield f"upload event {cause}: {count} terminal events in the outbox"
    if len(ended) > 1:
        yield f"asset {kept.asset_id}: ended by several upload events: {sorted(map(str, ended))}"


def renditions_listed(kept: Kept) -> Iterator[str]:
    """I10, as far as a listing shows it: READY has renditions, and each is there with its recorded size."""
    if kept.asset is None or kept.asset["status"] != Status.READY:
        return
    renditions = kept.asset.get("renditions") or ()
    if not renditions:
        yield f"asset {kept.asset_id}: READY without renditions"
    for rendition in renditions:
        key, wanted = rendition["object_key"], rendition["size"]
        found = kept.objects.get(key)
        if found is None:
            yield f"asset {kept.asset_id}: {key} is not in the bucket"
        elif found.size != wanted:
            yield f"asset {kept.asset_id}: {key} has {found.size} bytes, recorded are {wanted}"
