"""Make documents of ``assets`` anew from their streams, where they are not what the stream tells."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import ValidationError
from pymongo.client_session import ClientSession

from darkroom.assets import IllegalTransition
from darkroom.assets.documents import COLLECTION as ASSETS
from darkroom.ops.installation import Installation
from darkroom.ops.integrity import Kept, differing, folded_document
from darkroom.ops.walk import Range, reread, walk
from darkroom.outbox import COLLECTION as OUTBOX
from darkroom.runtime.mongo import in_transaction


class Step(StrEnum):
    """What became, or would become, of an asset's document."""

    INSERT = "insert"
    """There is a stream and no document."""
    REPLACE = "replace"
    """The document differs from the stream's fold."""
    REMAINS = "remains"
    """It is wrong and cannot be mended from here: the message says why."""


@dataclass(frozen=True)
class Rebuilt:
    """One asset whose document was not its stream's fold; ``fields`` are those that differ, as (stored, folded)."""

    asset_id: str
    step: Step
    fields: dict[str, tuple[Any, Any]]
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        fields = {name: {"stored": stored, "stream": folded} for name, (stored, folded) in self.fields.items()}
        return {"asset_id": self.asset_id, "step": str(self.step), "fields": fields, "why": self.why}


def rebuild(
    installation: Installation,
    *,
    asset_ids: list[str] | None = None,
    dry_run: bool,
    on_progress: Callable[[Range], None] | None = None,
) -> Iterator[Rebuilt]:
    """Compare every document (or those of ``asset_ids``) with its stream and write those that differ.

    Each is written in a transaction that reads its stream and its document again, so assets may change meanwhile.

    Raises:
        PyMongoError, ClientError, BotoCoreError: MongoDB or S3 failed.

    """
    if asset_ids is not None:
        parts: Iterator[Range] = iter([Range("", 1, 1, [reread(installation, one) for one in asset_ids])])
    else:
        parts = walk(installation)
    for part in parts:
        for kept in part.kept:
            if kept.asset is None and not kept.rows:
                if asset_ids is not None:
                    yield Rebuilt(kept.asset_id, Step.REMAINS, {}, "nobody registered an asset of this id")
                continue
            if planned(kept) is None:
                continue
            mended = _planned_now(installation, kept.asset_id) if dry_run else _mend(installation, kept.asset_id)
            if mended is not None:
                yield mended
        if on_progress is not None:
            on_progress(part)


def planned(kept: Kept) -> Rebuilt | None:
    """What a rebuild does to an asset; None if its document is the fold of its stream."""
    if not kept.rows:
        return Rebuilt(kept.asset_id, Step.REMAINS, {}, "it has a document and no stream: nothing can be folded")
    try:
        folded = folded_document(kept.rows)
    except (IllegalTransition, ValidationError, KeyError, ValueError) as error:
        return Rebuilt(kept.asset_id, Step.REMAINS, {}, f"its stream cannot be folded: {error}")
    if kept.asset is None:
        return Rebuilt(kept.asset_id, Step.INSERT, {name: (None, value) for name, value in folded.items()})
    names = differing(folded, kept.asset)
    fields = {name: (kept.asset.get(name), folded.get(name)) for name in names}
    return Rebuilt(kept.asset_id, Step.REPLACE, fields) if names else None


def _planned_now(installation: Installation, asset_id: str) -> Rebuilt | None:
    return planned(reread(installation, asset_id))


def _mend(installation: Installation, asset_id: str) -> Rebuilt | None:
    assets, outbox = installation.db[ASSETS], installation.db[OUTBOX]

    def body(session: ClientSession) -> Rebuilt | None:
        document = assets.find_one({"_id": asset_id}, session=session)
        rows = list(outbox.find({"asset_id": asset_id}, session=session).sort("sequence"))
        plan = planned(Kept(asset_id, document, rows))
        if plan is None or plan.step is Step.REMAINS:
            return plan
        folded = folded_document(rows)
        if document is None:
            assets.insert_one(folded, session=session)
        else:
            # By its shard key; the read above and this write are one snapshot, so a change in between is a conflict.
            key = {name: document.get(name) for name in ("_id", "owner_id", "idempotency_key")}
            assets.replace_one(key, folded, session=session)
        return plan

    return in_transaction(installation.mongo, body)
