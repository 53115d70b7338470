"""Claim, renew, release and complete as filters and updates. Plain dictionaries; no driver here.

A row of ``consumer_inbox`` is one event for one consumer. Whoever holds its lease may work on the event; the fence is
raised by one at every claim, and every later write names (lease_owner, fence), so a worker that was overtaken while it
stood still cannot write any more. All times are the server's (``$$NOW``): a host whose clock is wrong harms nobody.

A lease that ran out is still its holder's until somebody else claims it: completing late is safe, because the write
matches only as long as nobody took over.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COLLECTION = "consumer_inbox"
OPEN_OR_DEAD = "open_or_dead"
"""The index to hint at for rows that are PROCESSING or DEAD: few, however many events the inbox remembers."""
INDEXES: tuple[tuple[list[tuple[str, int]], dict[str, Any]], ...] = (
    ([("consumer", 1), ("event_id", 1)], {"unique": True}),
    ([("expire_at", 1)], {"expireAfterSeconds": 0}),
    # What operators ask for: the few rows that are being worked on, and those given up.
    (
        [("consumer", 1), ("state", 1), ("claimed_at", 1)],
        {"name": OPEN_OR_DEAD, "partialFilterExpression": {"state": {"$in": ["PROCESSING", "DEAD"]}}},
    ),
)

PROCESSING = "PROCESSING"
COMPLETED = "COMPLETED"
DEAD = "DEAD"

SHORTEST_WAIT = 0.05
"""Seconds. A lease that has just run out is asked for again at once, but not in a spin."""

Document = dict[str, Any]


@dataclass(frozen=True)
class Lease:
    """The right to work on one event. ``attempts`` counts this claim too; ``last_error`` is the previous attempt's.

    ``abandoned`` counts the holders before that neither gave the event back nor ended it: their process died, or stood
    still for longer than its lease.
    """

    consumer: str
    event_id: str
    owner: str
    fence: int
    attempts: int
    last_error: str | None = None
    abandoned: int = 0


@dataclass(frozen=True)
class Claimed:
    """The event is ours to work on."""

    lease: Lease


@dataclass(frozen=True)
class HeldElsewhere:
    """Somebody else holds a valid lease, or the event waits for its next attempt; ask again in ``seconds``.

    ``abandoned``: the event is free, but a holder vanished over it, and such an event was not asked for.
    """

    seconds: float
    abandoned: bool = False


@dataclass(frozen=True)
class Done:
    """The event is COMPLETED or DEAD: there is nothing left to do."""

    state: str
    outcome: str | None = None


Claim = Claimed | HeldElsewhere | Done


class LeaseLost(Exception):
    """Another worker took the event over; whatever this one still wanted to write must not be written."""


def key(consumer: str, event_id: str) -> Document:
    """The filter of a claim. Upserting by it makes one row a consumer and event, by the unique index."""
    return {"consumer": consumer, "event_id": event_id}


def claim(owner: str, *, lease_ms: int, keep_ms: int, abandoned: bool = True) -> list[Document]:
    """The update of a claim: takes the row if it is free, and leaves it exactly as it is otherwise.

    Free is a row that is new, or PROCESSING with its lease run out and its back-off over. A missing field sorts before
    every date, so one comparison covers "never set" and "in the past". A claim repeated by its own ``owner``, as after
    a lost answer, finds the lease and does not count as another attempt. Without ``abandoned`` an event over which an
    earlier holder vanished is left as it is too.
    """
    vanished = {"$cond": [{"$gt": ["$lease_owner", None]}, 1, 0]}
    abandonments = {"$add": [{"$ifNull": ["$abandoned", 0]}, vanished]}
    unfinished = {"$not": [{"$in": ["$state", [COMPLETED, DEAD]]}]}
    free = {"$and": [unfinished, {"$lte": ["$lease_until", "$$NOW"]}, {"$lte": ["$not_before", "$$NOW"]}]}
    wanted = free if abandoned else {"$and": [free, {"$eq": [abandonments, 0]}]}
    ours = {"$and": [unfinished, {"$eq": ["$lease_owner", {"$literal": owner}]}]}
    taken = {
        "state": PROCESSING,
        "lease_owner": {"$literal": owner},
        "lease_until": {"$add": ["$$NOW", lease_ms]},
        "fence": {"$add": [{"$ifNull": ["$fence", 0]}, 1]},
        "attempts": {"$add": [{"$ifNull": ["$attempts", 0]}, 1]},
        "abandoned": abandonments,
        "claimed_at": "$$NOW",
        "first_claimed_at": {"$ifNull": ["$first_claimed_at", "$$NOW"]},
        "expire_at": {"$add": ["$$NOW", keep_ms]},
    }
    return [
        {
            "$replaceWith": {
                "$switch": {
                    "branches": [
                        {"case": ours, "then": {"$mergeObjects": ["$$ROOT", {"lease_until": taken["lease_until"]}]}},
                        {"case": wanted, "then": {"$mergeObjects": ["$$ROOT", taken]}},
                    ],
                    "default": "$$ROOT",
                }
            }
        }
    ]


CLAIM_PROJECTION: Document = {
    "_id": 0,
    "state": 1,
    "lease_owner": 1,
    "fence": 1,
    "attempts": 1,
    "outcome": 1,
    "last_error": 1,
    "abandoned": 1,
    # How long until the row is free, reckoned by the server, so that the caller's clock does not matter.
    "wait_ms": {"$subtract": [{"$max": ["$lease_until", "$not_before"]}, "$$NOW"]},
}


def read_claim(consumer: str, event_id: str, owner: str, row: Mapping[str, Any]) -> Claim:
    """What the row after ``claim`` means for ``owner``."""
    if row["state"] in (COMPLETED, DEAD):
        return Done(row["state"], row.get("outcome"))
    if row.get("lease_owner") == owner:
        lease = Lease(
            consumer, event_id, owner, row["fence"], row["attempts"], row.get("last_error"), row.get("abandoned", 0)
        )
        return Claimed(lease)
    wait_ms = row.get("wait_ms") or 0
    # What is free was taken, unless it was not asked for.
    return HeldElsewhere(max(wait_ms, 0) / 1000, abandoned=wait_ms <= 0)


def held(lease: Lease) -> Document:
    """The filter of every write under a lease: it matches only while nobody took the event over."""
    return {
        **key(lease.consumer, lease.event_id),
        "state": PROCESSING,
        "lease_owner": lease.owner,
        "fence": lease.fence,
    }


def renew(*, lease_ms: int) -> list[Document]:
    """The lease runs for its full length from now."""
    return [{"$set": {"lease_until": {"$add": ["$$NOW", lease_ms]}}}]


def release(*, delay_ms: int, error: str | None, refund: bool) -> list[Document]:
    """Give the event back, to be claimed again by anybody after ``delay_ms``.

    ``refund`` takes the attempt back: the work was called off, it did not fail.
    """
    attempts = {"$subtract": ["$attempts", 1]} if refund else "$attempts"
    kept = {"$ifNull": ["$last_error", "$$REMOVE"]} if error is None else {"$literal": error}
    return [
        {"$set": {"not_before": {"$add": ["$$NOW", delay_ms]}, "attempts": attempts, "last_error": kept}},
        {"$unset": ["lease_owner", "lease_until"]},
    ]


def finish(state: str, *, outcome: str, keep_ms: int) -> list[Document]:
    """COMPLETED or DEAD, for good. The row is kept for ``keep_ms``: longer than any redelivery can come."""
    return [
        {
            "$set": {
                "state": state,
                "outcome": {"$literal": outcome},
                "finished_at": "$$NOW",
                "expire_at": {"$add": ["$$NOW", keep_ms]},
            }
        },
        {"$unset": ["lease_owner", "lease_until", "not_before"]},
    ]


def ended(consumer: str, event_id: str) -> Document:
    """The filter of ``reopen``: an event that is COMPLETED or DEAD."""
    return {**key(consumer, event_id), "state": {"$in": [COMPLETED, DEAD]}}


def reopen(*, keep_ms: int) -> list[Document]:
    """An event that had ended is to be worked on again, by whoever claims it, with all its attempts.

    The fence is raised here and again by the claim, so nobody who ever held the event can still write.
    """
    return [
        {
            "$set": {
                "state": PROCESSING,
                "attempts": 0,
                "fence": {"$add": ["$fence", 1]},
                "redrives": {"$add": [{"$ifNull": ["$redrives", 0]}, 1]},
                "redriven_at": "$$NOW",
                "expire_at": {"$add": ["$$NOW", keep_ms]},
            }
        },
        {"$unset": ["outcome", "finished_at", "lease_owner", "lease_until", "not_before", "abandoned"]},
    ]
