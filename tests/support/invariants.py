"""The numbered invariants, checked over what a database and a topic hold after a run."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pymongo.database import Database

from darkroom.ops.integrity import Kept, violations

Db = Database[dict[str, Any]]


class Appearance(NamedTuple):
    """One record of ``assets.events``, in the order of the topic."""

    event_id: str
    asset_id: str
    sequence: int


class Announced(NamedTuple):
    """One record of ``assets.uploaded``."""

    event_id: str
    asset_id: str


def stream_violations(db: Db) -> list[str]:
    """I2 (streams are gapless), I3 (assets are their folds), I4 (an upload has one end), as `verify` finds them."""
    streams: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in db.outbox_events.find().sort([("asset_id", 1), ("sequence", 1)]):
        streams[row["asset_id"]].append(row)
    assets = {document["_id"]: document for document in db.assets.find()}
    return [
        f"{found.invariant}: {found.what}"
        for asset_id in assets.keys() | streams.keys()
        for found in violations(Kept(asset_id, assets.get(asset_id), streams[asset_id]))
        if found.invariant != "I10"  # of objects, and these runs have none
    ]


def offset_violations(db: Db, topic: Sequence[Announced], *, committed: int, consumer: str) -> list[str]:
    """I5: every record below the committed offset is COMPLETED, or DEAD with its AssetFailed written."""
    found = []
    for offset, announced in enumerate(topic[:committed]):
        row = db.consumer_inbox.find_one({"consumer": consumer, "event_id": announced.event_id}) or {}
        done = row.get("state") == "COMPLETED" or (
            row.get("state") == "DEAD"
            and db.outbox_events.count_documents({"causation_id": announced.event_id, "type": "AssetFailed"}) == 1
        )
        if not done:
            found.append(f"I5: {committed} is committed, and {offset} ({announced.event_id}) is {row.get('state')}")
    return found


def publication_violations(db: Db, topic: Iterable[Appearance], *, acknowledged: set[str]) -> list[str]:
    """I6: marked only after the acknowledgement; first appearances in the order of the sequence, and without a gap."""
    marked = {row["_id"] for row in db.outbox_events.find({"published": True}, {"_id": 1})}
    found = [f"I6: {event_id} is marked and was not acknowledged" for event_id in marked - acknowledged]
    seen: dict[str, list[int]] = defaultdict(list)
    for record in topic:
        if record.sequence not in seen[record.asset_id]:
            seen[record.asset_id].append(record.sequence)
    found += [
        f"I6: the events of {asset_id} first appeared as {sequences}"
        for asset_id, sequences in seen.items()
        if sequences != list(range(1, len(sequences) + 1))
    ]
    return found


def missing(db: Db, topic: Iterable[Appearance]) -> list[str]:
    """I6, once everything has had its time: every row of the outbox is on the topic."""
    there = {record.event_id for record in topic}
    return [f"I6: {row['_id']} is not on the topic" for row in db.outbox_events.find() if row["_id"] not in there]
