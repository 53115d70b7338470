"""Assets as MongoDB documents. Plain dictionaries, so that sync and async callers share them; no driver here."""

from collections.abc import Mapping
from typing import Any

from darkroom.assets.asset import Asset

COLLECTION = "assets"

Document = dict[str, Any]

BY_KEY = "owner_id_1_idempotency_key_1"
"""The index of an owner's idempotency keys; the name that MongoDB itself would give it."""

INDEXES: tuple[tuple[list[tuple[str, int]], dict[str, Any]], ...] = (
    # One asset for one key of one owner, whatever races. A sharded collection's key must begin as this index does.
    ([("owner_id", 1), ("idempotency_key", 1)], {"unique": True, "name": BY_KEY}),
    ([("owner_id", 1), ("created_at", -1), ("_id", 1)], {"name": "listing"}),
    ([("owner_id", 1), ("status", 1), ("created_at", -1), ("_id", 1)], {"name": "listing_by_status"}),
    (
        [("owner_id", 1), ("reference", 1), ("created_at", -1), ("_id", 1)],
        {"name": "listing_by_reference", "partialFilterExpression": {"reference": {"$exists": True}}},
    ),
    # What sweeps, operators and the reconciler look for: few assets, however many there are.
    (
        [("status", 1), ("updated_at", 1)],
        {
            "name": "unfinished",
            "partialFilterExpression": {"status": {"$in": ["UPLOADING", "PROCESSING", "TRASHED"]}},
        },
    ),
    (
        [("upload.event_id", 1)],
        {"name": "failed_by_upload", "partialFilterExpression": {"status": "FAILED"}},
    ),
)


def to_document(asset: Asset) -> Document:
    """The document; a field without a value is absent."""
    document = asset.model_dump(mode="python", exclude_none=True)
    document["_id"] = document.pop("id")
    document["status"] = str(asset.status)
    if asset.status_before_trash is not None:
        document["status_before_trash"] = str(asset.status_before_trash)
    document["renditions"] = list(document["renditions"])
    return document


def from_document(document: Mapping[str, Any]) -> Asset:
    """The asset. Fields of a later version are ignored."""
    return Asset.model_validate({**document, "id": document["_id"]})


def guard(before: Asset) -> Document:
    """The filter of every update: this asset at this very version, by its shard key.

    An update that matches nothing lost a race: read the asset again and decide anew. Together with the unique index on
    (asset_id, sequence) of the outbox this is what makes a stream gapless.
    """
    return {
        "_id": before.id,
        "owner_id": before.owner_id,
        "idempotency_key": before.idempotency_key,
        "version": before.version,
    }


def update(before: Asset, after: Asset) -> Document:
    """The update operators from one state to the next.

    Only what changed is named, so a service of an older version never drops the fields of a newer one.
    """
    old, new = to_document(before), to_document(after)
    changed = {name: value for name, value in new.items() if name not in old or old[name] != value}
    gone = {name: "" for name in old if name not in new}
    return {"$set": changed, **({"$unset": gone} if gone else {})}
