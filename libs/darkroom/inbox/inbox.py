"""The inbox of one consumer over MongoDB."""

from typing import Any

import pymongo
from pymongo import IndexModel, ReturnDocument
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError

from darkroom.inbox import leases
from darkroom.inbox.leases import Claim, Claimed, HeldElsewhere, Lease, LeaseLost
from darkroom.inbox.observer import Answer, Observer, Write

CLAIM_TRIES = 3
LONGEST_ERROR = 1_000
"""Characters kept of an attempt's error."""


class Inbox:
    """Who works on which event, and which events are done.

    Guarantee: of all workers that ever claimed an event, only the last one can renew, release, complete or bury it.
    Thread-safe. The row is kept for ``keep_seconds`` after its last claim or its end, which must be longer than the
    topic's retention and the longest replay, or a very late duplicate would count as new. A call that MongoDB does not
    answer ends after ``call_seconds`` with a PyMongoError whose ``timeout`` is true.
    """

    def __init__(
        self,
        db: Database[dict[str, Any]],
        *,
        consumer: str,
        lease_seconds: float,
        keep_seconds: float = 90 * 86_400,
        call_seconds: float = 10.0,
        observer: Observer | None = None,
    ) -> None:
        self.observer = observer or Observer()
        self._rows = db[leases.COLLECTION]
        self._lease_ms = round(lease_seconds * 1000)
        self._keep_ms = round(keep_seconds * 1000)
        self._call_seconds = call_seconds
        self.consumer = consumer
        self.lease_seconds = lease_seconds

    @staticmethod
    def indexes() -> dict[str, list[IndexModel]]:
        """What must exist before the first claim."""
        return {leases.COLLECTION: [IndexModel(keys, **options) for keys, options in leases.INDEXES]}

    def claim(
        self, event_id: str, *, owner: str, abandoned: bool = True, session: ClientSession | None = None
    ) -> Claim:
        """Take the event if nobody has it. ``owner`` is unique to this delivery of the event to this process.

        Claiming again under the same ``owner``, after a lost answer or an outage, gives the same lease back. Without
        ``abandoned`` an event over which an earlier holder vanished is not taken, and the answer says so. In
        ``session``'s transaction the event is taken only if that commits; it must not when the answer is not Claimed.
        """
        # A transaction is over after a duplicate key.
        for tries_left in reversed(range(CLAIM_TRIES if session is None else 1)):
            try:
                with pymongo.timeout(self._call_seconds):
                    row = self._rows.find_one_and_update(
                        leases.key(self.consumer, event_id),
                        leases.claim(owner, lease_ms=self._lease_ms, keep_ms=self._keep_ms, abandoned=abandoned),
                        upsert=True,
                        projection=leases.CLAIM_PROJECTION,
                        return_document=ReturnDocument.AFTER,
                        session=session,
                    )
            except DuplicateKeyError:
                # Two first claims at once: the other one's row exists now, so the next try reads it.
                if not tries_left:
                    raise
                continue
            if row is None:
                raise AssertionError("an upsert that returns the document after it always has one")
            claim = leases.read_claim(self.consumer, event_id, owner, row)
            self.observer.claim_answered(_answer(claim))
            return claim
        raise AssertionError("unreachable")

    def renew(self, lease: Lease, *, session: ClientSession | None = None) -> None:
        """Extend the lease to its full length from now; in ``session``'s transaction, as the condition of its writes.

        Raises:
            LeaseLost: somebody else took the event over; the transaction must not commit.

        """
        self._write(lease, Write.RENEW, leases.renew(lease_ms=self._lease_ms), session)

    def release(self, lease: Lease, *, delay: float = 0.0, error: str | None = None, refund: bool = False) -> None:
        """Give the event back for another attempt in ``delay`` seconds at the earliest; ``refund`` uncounts this one.

        Raises:
            LeaseLost: somebody else took the event over.

        """
        error = None if error is None else error[:LONGEST_ERROR]
        self._write(lease, Write.RELEASE, leases.release(delay_ms=round(delay * 1000), error=error, refund=refund))
        self.observer.released(called_off=refund)

    def complete(self, lease: Lease, *, outcome: str, session: ClientSession | None = None) -> None:
        """The event is done; in ``session``'s transaction, together with what it caused.

        Raises:
            LeaseLost: somebody else took the event over; the transaction must not commit.

        """
        update = leases.finish(leases.COMPLETED, outcome=outcome, keep_ms=self._keep_ms)
        self._write(lease, Write.COMPLETE, update, session)

    def bury(self, lease: Lease, *, outcome: str, session: ClientSession | None = None) -> None:
        """The event is given up; in ``session``'s transaction, together with what records the failure.

        Raises:
            LeaseLost: somebody else took the event over; the transaction must not commit.

        """
        update = leases.finish(leases.DEAD, outcome=outcome, keep_ms=self._keep_ms)
        self._write(lease, Write.BURY, update, session)

    def reopen(self, event_id: str, *, session: ClientSession | None = None) -> bool:
        """Have an event that had ended worked on again; in ``session``'s transaction, together with what says so.

        Gives False if the row is gone or has not ended: then nothing is written.
        """
        with pymongo.timeout(self._call_seconds):
            row = leases.ended(self.consumer, event_id)
            return self._rows.update_one(row, leases.reopen(keep_ms=self._keep_ms), session=session).matched_count == 1

    def _write(
        self, lease: Lease, write: Write, update: list[dict[str, Any]], session: ClientSession | None = None
    ) -> None:
        with pymongo.timeout(self._call_seconds):
            matched = self._rows.update_one(leases.held(lease), update, session=session).matched_count
        if matched == 0:
            self.observer.fence_rejected(write)
            raise LeaseLost(f"{lease.consumer}: event {lease.event_id} is no longer held under fence {lease.fence}")


def _answer(claim: Claim) -> Answer:
    match claim:
        case Claimed():
            return Answer.CLAIMED
        case HeldElsewhere():
            return Answer.HELD
    return Answer.DONE
