"""The API's reads and writes in MongoDB. Every query names the owner."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar

import pymongo
from pymongo import IndexModel, ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import DuplicateKeyError, OperationFailure, WaitQueueTimeoutError

from asset_api.quota import Quota
from darkroom import outbox
from darkroom.assets import Asset, Change, Status, documents, from_document, guard, to_document, update
from darkroom.outbox import rows
from darkroom.runtime.mongo import TRANSACTION, AsyncClient, Document

WRITE_CONFLICT = 112
FIRST_WAIT_SECONDS = 0.004
LONGEST_WAIT_SECONDS = 0.1
AT_ONCE = 32
TURN_SECONDS = 15.0
"""How long a call waits for its turn: hundreds at once take their time, and that is not MongoDB's fault."""

ResultT = TypeVar("ResultT")


class _AnotherIsRegistering(Exception):
    """A transaction that has not ended yet holds the key."""


class AssetStore:
    """Assets of MongoDB. So many calls run ``at_once``; each ends within ``seconds`` after its turn has come, by an
    answer or by a PyMongoError that tells of a time-out."""

    def __init__(
        self,
        *,
        client: AsyncClient,
        database: str,
        seconds: float,
        quota: Quota | None = None,
        at_once: int = AT_ONCE,
    ) -> None:
        self._client = client
        self._db = client[database]
        self._assets = self._db[documents.COLLECTION]
        self._outbox = self._db[outbox.COLLECTION]
        self._seconds = seconds
        self._quota = quota
        self._turns = asyncio.Semaphore(at_once)
        self._reading: dict[Hashable, asyncio.Task[Asset | None]] = {}
        self._registering: dict[Hashable, asyncio.Task[Asset]] = {}

    async def ensure_indexes(self) -> None:
        """Create what is missing, before any traffic.

        Raises:
            pymongo.errors.OperationFailure: an index cannot be built, or one of that name differs.

        """
        for collection, indexes in ((self._assets, documents.INDEXES), (self._outbox, rows.INDEXES)):
            await collection.create_indexes([IndexModel(keys, **options) for keys, options in indexes])
        if self._quota is not None:
            await self._quota.ensure_indexes()

    async def ping(self, *, seconds: float = 2.0) -> None:
        """Whether the primary answers."""
        with pymongo.timeout(seconds):
            await self._client.admin.command("ping")

    async def by_id(self, *, owner_id: str, asset_id: str) -> Asset | None:
        """The owner's asset of this id."""
        return await self._find({"_id": asset_id, "owner_id": owner_id})

    async def page(
        self,
        *,
        owner_id: str,
        statuses: Sequence[Status],
        reference: str | None,
        after: tuple[datetime, str] | None,
        limit: int,
    ) -> list[Asset]:
        """The owner's assets in these states, newest first, from the one of ``after`` (created_at, id) on."""
        where: Document = {"owner_id": owner_id, "status": {"$in": [str(status) for status in statuses]}}
        if reference is not None:
            where["reference"] = reference
        if after is not None:
            created_at, asset_id = after
            where["$or"] = [{"created_at": {"$lt": created_at}}, {"created_at": created_at, "_id": {"$gt": asset_id}}]
        async with self._turn():
            found = self._assets.find(where).sort([("created_at", -1), ("_id", 1)]).limit(limit)
            # Named, since for an owner with few assets the planner finds every index as good, and remembers its choice.
            found = found.hint("listing_by_status" if reference is None else "listing_by_reference")
            return [from_document(document) async for document in found]

    async def by_key(self, *, owner_id: str, idempotency_key: str) -> Asset | None:
        """The owner's asset of this key, as a majority of the servers has it."""
        key = {"owner_id": owner_id, "idempotency_key": idempotency_key}
        # One read a key and process: a storm of retries must not fill the queue for connections beyond the deadline.
        return await _shared(self._reading, (owner_id, idempotency_key), lambda: self._find(key))

    async def events_after(self, *, owner_id: str, asset_id: str, sequence: int, limit: int) -> list[Document]:
        """The rows of an asset's stream after a sequence, in order, at most ``limit``."""
        where = {"asset_id": asset_id, "owner_id": owner_id, "sequence": {"$gt": sequence}}
        async with self._turn():
            return await self._outbox.find(where).sort("sequence", 1).limit(limit).to_list()

    async def register(self, candidate: Change) -> Asset:
        """Store the candidate and its event in one transaction, unless the key has an asset: then give that one.

        Raises:
            QuotaExceeded: the key has no asset, and its owner may not register another one now.

        """
        key = (candidate.after.owner_id, candidate.after.idempotency_key)
        # One transaction a key and process: hundreds at once would only wait for each other, beyond the deadline.
        return await _shared(self._registering, key, lambda: self._admit_and_register(candidate))

    async def advance(self, decided: Change) -> bool:
        """Store the asset after the change and its event in one transaction. False: the asset moved on."""
        before = decided.before
        if before is None:
            raise ValueError("a new asset is registered")
        row = outbox.to_row(decided.event)

        async def body(session: AsyncClientSession) -> bool:
            written = await self._assets.update_one(guard(before), update(before, decided.after), session=session)
            if written.matched_count == 0:
                return False
            await self._outbox.insert_one(row, session=session)
            return True

        async with self._turn(), self._client.start_session() as session:
            return await session.with_transaction(body, **TRANSACTION)

    async def _admit_and_register(self, candidate: Change) -> Asset:
        if self._quota is None:
            return await self._register(candidate)
        place = {"owner_id": candidate.after.owner_id, "asset_id": candidate.after.id}
        await self._quota.admit(**place)
        asset = await self._register(candidate)
        if asset.id != candidate.after.id:
            # Another process was faster with this key, and what is no registration must not count as one.
            await self._quota.give_back(**place)
        return asset

    async def _register(self, candidate: Change) -> Asset:
        key = {"owner_id": candidate.after.owner_id, "idempotency_key": candidate.after.idempotency_key}
        async with self._turn():
            wait = FIRST_WAIT_SECONDS
            while True:  # ends: beyond the deadline the next call to MongoDB raises
                try:
                    return from_document(await self._register_once(candidate, key))
                except (DuplicateKeyError, _AnotherIsRegistering):
                    # Looked at outside the transaction, which the server has already ended: going on inside it would
                    # make the driver repeat it for two minutes.
                    if (asset := await self._look(key)) is not None:
                        return asset
                await asyncio.sleep(random.uniform(wait / 2, wait))  # noqa: S311 -- spreads waiters, guards nothing
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    async def _register_once(self, candidate: Change, key: Mapping[str, str]) -> Document:
        document = {name: value for name, value in to_document(candidate.after).items() if name not in key}
        row = outbox.to_row(candidate.event)

        async def body(session: AsyncClientSession) -> Document:
            try:
                stored = await self._assets.find_one_and_update(
                    key,
                    {"$setOnInsert": document},
                    upsert=True,
                    return_document=ReturnDocument.AFTER,
                    session=session,
                )
            except OperationFailure as error:
                if error.code == WRITE_CONFLICT:
                    # Not left to the driver: repeating the transaction is of no use while the other's goes on.
                    raise _AnotherIsRegistering from error
                raise
            if stored is None:
                raise TypeError("an upsert that returns the document after it gave none")
            if stored["_id"] == candidate.after.id:
                await self._outbox.insert_one(row, session=session)
            return stored

        async with self._client.start_session() as session:
            return await session.with_transaction(body, **TRANSACTION)

    async def _find(self, where: Mapping[str, Any]) -> Asset | None:
        async with self._turn():
            return await self._look(where)

    async def _look(self, where: Mapping[str, Any]) -> Asset | None:
        document = await self._assets.find_one(where)
        return None if document is None else from_document(document)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One of the few that go to MongoDB at one time. The deadline of the call begins here: counted from its
        arrival, most calls of a storm would have spent theirs in waiting for each other."""
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            raise WaitQueueTimeoutError(f"no turn within {TURN_SECONDS:g} s") from None
        try:
            with pymongo.timeout(self._seconds):
                yield
        finally:
            self._turns.release()


async def _shared(
    running: dict[Hashable, asyncio.Task[ResultT]], key: Hashable, begin: Callable[[], Coroutine[Any, Any, ResultT]]
) -> ResultT:
    """The result of what runs for this key, which is begun if nothing does."""
    task = running.get(key)
    if task is None:
        task = running[key] = asyncio.create_task(begin())

        def forget(ended: asyncio.Task[ResultT]) -> None:
            del running[key]
            if not ended.cancelled():
                ended.exception()  # seen, also when every client has gone away

        task.add_done_callback(forget)
    # Shielded: a client that goes away does not take the others' answer with it.
    return await asyncio.shield(task)
