"""What a processor writes to MongoDB: each step of an asset in one transaction with its event and its inbox row."""

from dataclasses import dataclass
from functools import cached_property

import pymongo
from pymongo import IndexModel
from pymongo.client_session import ClientSession

from darkroom.assets import Asset, Change, from_document, guard, update
from darkroom.assets.documents import COLLECTION as ASSETS
from darkroom.inbox import Claim, Claimed, Inbox, Lease
from darkroom.life import rejected
from darkroom.life.rejected import RejectedOriginal
from darkroom.outbox import COLLECTION as OUTBOX
from darkroom.outbox import to_row
from darkroom.outbox.rows import INDEXES
from darkroom.runtime.mongo import Client, Db, Rows, in_transaction


class Conflict(Exception):
    """The asset moved on since it was read: read it again and decide anew."""


class _NotClaimed(Exception):
    """Ends the transaction of a claim that was not granted."""

    def __init__(self, claim: Claim) -> None:
        super().__init__(claim)
        self.claim = claim


@dataclass(frozen=True)
class Store:
    """Assets, their streams and the inbox. Thread-safe.

    A read ends after ``call_seconds``, whatever MongoDB does, and a transaction after ``transaction_seconds``.
    """

    client: Client
    db: Db
    inbox: Inbox
    call_seconds: float = 5.0
    transaction_seconds: float = 20.0

    @cached_property
    def _assets(self) -> Rows:
        return self.db[ASSETS]

    @cached_property
    def _events(self) -> Rows:
        return self.db[OUTBOX]

    @staticmethod
    def indexes() -> dict[str, list[IndexModel]]:
        """What must exist before the first event."""
        outbox = {OUTBOX: [IndexModel(keys, **options) for keys, options in INDEXES]}
        return {**outbox, **Inbox.indexes(), **rejected.indexes()}

    def find(self, asset_id: str) -> Asset | None:
        """The asset, or None if nobody registered it."""
        with pymongo.timeout(self.call_seconds):
            document = self._assets.find_one({"_id": asset_id})
        return None if document is None else from_document(document)

    def begin(self, change: Change, event_id: str, *, owner: str, abandoned: bool = True) -> Claim:
        """Claim the event and record that processing began: both, or neither. ``abandoned`` as in ``Inbox.claim``.

        One transaction instead of a claim and ``start``, so that the disk is waited for once. Unless the answer is
        Claimed, nothing was written.

        Raises:
            Conflict: the asset moved on.

        """

        def body(session: ClientSession) -> Claim:
            claim = self.inbox.claim(event_id, owner=owner, abandoned=abandoned, session=session)
            if not isinstance(claim, Claimed):
                raise _NotClaimed(claim)
            self._write(change, session)
            return claim

        try:
            return in_transaction(self.client, body, seconds=self.transaction_seconds)
        except _NotClaimed as refused:
            return refused.claim

    def start(self, change: Change, lease: Lease) -> None:
        """Record that processing began.

        Raises:
            LeaseLost: another worker took the event over.
            Conflict: the asset moved on.

        """

        def body(session: ClientSession) -> None:
            self.inbox.renew(lease, session=session)
            self._write(change, session)

        in_transaction(self.client, body, seconds=self.transaction_seconds)

    def finish(self, change: Change, lease: Lease, *, outcome: str, original: RejectedOriginal | None = None) -> None:
        """Record how processing ended, that its event is done, and what is to become of an ``original`` that was
        rejected: all of it, or nothing.

        Raises:
            LeaseLost: another worker took the event over.
            Conflict: the asset moved on.

        """

        def body(session: ClientSession) -> None:
            self.inbox.complete(lease, outcome=outcome, session=session)
            self._write(change, session)
            if original is not None:
                rejected.write_down(self.db, original, session)

        in_transaction(self.client, body, seconds=self.transaction_seconds)

    def give_up(self, change: Change, lease: Lease, *, outcome: str) -> None:
        """Record that the event is dead and its asset FAILED: both, or neither.

        Raises:
            LeaseLost: another worker took the event over.
            Conflict: the asset moved on.

        """

        def body(session: ClientSession) -> None:
            self.inbox.bury(lease, outcome=outcome, session=session)
            self._write(change, session)

        in_transaction(self.client, body, seconds=self.transaction_seconds)

    def put_away(self, asset_id: str) -> None:
        """Record that what was to become of a rejected original is done."""
        with pymongo.timeout(self.call_seconds):
            rejected.strike_off(self.db, asset_id)

    def probe(self) -> None:
        """Ask the primary whether it is there; whatever this raises means that MongoDB cannot be used now."""
        with pymongo.timeout(self.call_seconds):
            # A read with majority concern, since a member that lost its majority still answers a ping.
            self._assets.find_one({}, {"_id": 1})

    def _write(self, change: Change, session: ClientSession) -> None:
        if change.before is None:
            raise ValueError("a processor never registers an asset")
        written = self._assets.update_one(guard(change.before), update(change.before, change.after), session=session)
        if written.matched_count == 0:
            raise Conflict(f"asset {change.before.id} is no longer at version {change.before.version}")
        self._events.insert_one(to_row(change.event), session=session)
