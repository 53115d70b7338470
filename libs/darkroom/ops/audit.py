"""What operators and the reconciler did, kept in ``operations``: append-only, one document an action.

Written before the action and completed behind it, so an action that was broken off is seen as begun.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pymongo import IndexModel

from darkroom.ops.installation import Installation

COLLECTION = "operations"


def indexes() -> dict[str, list[IndexModel]]:
    """What should exist before the first action."""
    return {
        COLLECTION: [
            IndexModel([("asset_id", 1), ("begun_at", 1)], name="by_asset"),
            IndexModel([("source", 1), ("letter", 1)], name="by_letter"),
        ]
    }


@contextmanager
def recorded(
    installation: Installation,
    action: str,
    *,
    reason: str,
    asset_id: str | None = None,
    event_id: str | None = None,
    source: str | None = None,
    letter: str | None = None,
) -> Iterator[None]:
    """Record the action that the block is: begun, and done when the block ends without an error."""
    given: dict[str, Any] = {
        "action": action,
        "by": installation.by,
        "reason": reason,
        "asset_id": asset_id,
        "event_id": event_id,
        "source": source,
        "letter": letter,
    }
    key = {"_id": str(uuid.uuid4())}
    rows = installation.db[COLLECTION]
    stated = {name: value for name, value in given.items() if value is not None}
    rows.update_one(key, {"$setOnInsert": stated, "$currentDate": {"begun_at": True}}, upsert=True)
    yield
    rows.update_one(key, {"$currentDate": {"done_at": True}})
