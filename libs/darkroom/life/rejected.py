"""Originals that can never be READY. What is to become of one is written down in the transaction of its asset's failure
and done after it: by the processor at once, or, if that dies before or S3 refuses, by a sweep."""

from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self

from pymongo import IndexModel
from pymongo.client_session import ClientSession

from darkroom.runtime.mongo import Db, Document

COLLECTION = "rejected_originals"
OWN_TIME = timedelta(minutes=1)
"""How long the processor has for it before a sweep takes it up."""


class RejectedOriginals(StrEnum):
    """What becomes of them."""

    KEEP = "keep"
    TAG = "tag"
    """It gets the tags `darkroom-state=rejected` and `darkroom-failure` with the failure's code."""
    DELETE = "delete"


@dataclass(frozen=True, kw_only=True)
class RejectedOriginal:
    """One of them, with what is to be done; ``code`` is the failure's."""

    asset_id: str
    object_key: str
    version_id: str | None
    policy: RejectedOriginals
    code: str

    @classmethod
    def from_row(cls, row: Document) -> Self:
        """As ``write_down`` stored it."""
        return cls(
            asset_id=row["_id"],
            object_key=row["object_key"],
            version_id=row["version_id"],
            policy=RejectedOriginals(row["policy"]),
            code=row["code"],
        )


def indexes() -> dict[str, list[IndexModel]]:
    """What must exist before the first."""
    return {COLLECTION: [IndexModel([("due_at", 1)])]}


def write_down(db: Db, original: RejectedOriginal, session: ClientSession) -> None:
    """Have it be done, if the transaction is committed."""
    fields: dict[str, Any] = {name: {"$literal": value} for name, value in asdict(original).items()}
    del fields["asset_id"]
    due = {"$add": ["$$NOW", OWN_TIME // timedelta(milliseconds=1)]}
    db[COLLECTION].update_one(
        {"_id": original.asset_id}, [{"$set": {**fields, "due_at": due}}], upsert=True, session=session
    )


def strike_off(db: Db, asset_id: str) -> None:
    """It is done."""
    db[COLLECTION].delete_one({"_id": asset_id})
