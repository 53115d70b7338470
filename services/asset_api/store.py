"""The API's reads and writes in MongoDB. Every query names the owner."""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar

import pymongo
from pymongo import IndexModel, UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import (
    BulkWriteError,
    ConnectionFailure,
    OperationFailure,
    PyMongoError,
    WaitQueueTimeoutError,
)
from pymongo.read_concern import ReadConcern

from asset_api.quota import Quota
from asset_api.rounds import GroupT, ItemT, Rounds
from darkroom import outbox
from darkroom.assets import Asset, Change, Status, documents, from_document, guard, to_document, update
from darkroom.outbox import rows
from darkroom.runtime.mongo import TRANSACTION, AsyncClient, Document, timed_out

WRITE_CONFLICT = 112
DUPLICATE_KEY = 11000
FIRST_WAIT_SECONDS = 0.004
LONGEST_WAIT_SECONDS = 0.5
AT_ONCE = 32
REGISTERING = 2
"""Transactions of many registrations at one time: while one waits for its commit, the next is on its way."""
TURN_SECONDS = 15.0
"""How long a call waits for its turn: hundreds at once take their time, and that is not MongoDB's fault."""

ResultT = TypeVar("ResultT")


class _AnotherIsRegistering(Exception):
    """A transaction that has not ended yet holds the key, or has just stored an asset for it."""


class _OneIsInTheWay(Exception):
    """The registrations of a round cannot be stored together."""


class _OthersGotNoAnswer(WaitQueueTimeoutError):
    """Of an outage that is known, and no sign of one that goes on. The driver has a WaitQueueTimeoutError of its own,
    which is one: no connection could be had."""


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
        self._no_answer_at = -math.inf
        self._by_id: Rounds[str, str, Document | None] = Rounds(self._find_ids, is_outage=timed_out)
        self._by_key: Rounds[str, str, Document | None] = Rounds(self._find_keys, is_outage=timed_out)
        self._registrations: Rounds[None, Change, Document] = Rounds(
            self._register_all, at_once=REGISTERING, is_outage=timed_out
        )
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
        return _asset(await self._in_time(self._by_id, owner_id, asset_id))

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
        return _asset(await self._in_time(self._by_key, owner_id, idempotency_key))

    async def events_after(self, *, owner_id: str, asset_id: str, sequence: int, limit: int) -> list[Document]:
        """The rows of an asset's stream after a sequence, in order, at most ``limit``."""
        where = {"asset_id": asset_id, "owner_id": owner_id, "sequence": {"$gt": sequence}}
        async with self._turn():
            return await self._outbox.find(where).sort("sequence", 1).limit(limit).to_list()

    async def version_now(self, *, owner_id: str, asset_id: str) -> int:
        """The asset's version, 0 if there is none. For a while after a failover other reads may be of a moment before
        what a client has seen already; this one never is."""
        async with self._turn():
            now = self._assets.with_options(read_concern=ReadConcern("linearizable"))
            found = await now.find_one({"_id": asset_id, "owner_id": owner_id}, {"version": 1})
        return 0 if found is None else int(found["version"])

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
        try:
            stored = await self._in_time(self._registrations, None, candidate)
        except _OneIsInTheWay:
            # Which one is seen when each goes by itself; and the next round need not wait until that has ended.
            stored = await self._register_alone(candidate)
        return from_document(stored)

    async def _register_all(self, _: None, candidates: Sequence[Change]) -> list[Document]:
        async with self._turn():
            try:
                return await self._register_once(candidates)
            except Exception as error:
                if isinstance(error, ConnectionFailure) or timed_out(error):
                    raise
                raise _OneIsInTheWay from error

    async def _register_alone(self, candidate: Change) -> Document:
        """By itself, waiting for a key that another transaction holds. WaitQueueTimeoutError: for too long."""
        wait = FIRST_WAIT_SECONDS
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        while True:
            # A turn for each try: in those of a killed process's keys nobody else's call could go on meanwhile.
            async with self._turn():
                deadline = deadline or loop.time() + self._seconds
                try:
                    (stored,) = await self._register_once([candidate])
                except _AnotherIsRegistering:
                    # Looked at outside the transaction, which the server has already ended: going on inside it would
                    # make the driver repeat it for two minutes.
                    if (found := await self._assets.find_one(_key(candidate))) is not None:
                        return found
                else:
                    return stored
            pause = random.uniform(wait / 2, wait)  # noqa: S311 -- spreads waiters, guards nothing
            if loop.time() + pause >= deadline:
                raise WaitQueueTimeoutError(f"another transaction has held the key for {self._seconds:g} s")
            await asyncio.sleep(pause)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    async def _register_once(self, candidates: Sequence[Change]) -> list[Document]:
        """In one transaction, each asset whose key has none, and its event. The documents that the keys have then."""
        documents = [to_document(candidate.after) for candidate in candidates]
        events = [outbox.to_row(candidate.event) for candidate in candidates]

        async def body(session: AsyncClientSession) -> list[Document]:
            try:
                written = await self._assets.bulk_write([_upsert(one) for one in documents], session=session)
            except OperationFailure as error:
                if _is_conflict(error):
                    # Not left to the driver: repeating the transaction is of no use while the other's goes on.
                    raise _AnotherIsRegistering from error
                raise
            stored = documents
            if written.upserted_count < len(documents):
                found = self._assets.find({"$or": [_key(candidate) for candidate in candidates]}, session=session)
                of_key = {(one["owner_id"], one["idempotency_key"]): one async for one in found}
                stored = [of_key[one["owner_id"], one["idempotency_key"]] for one in documents]
            # The id tells whose asset it is.
            won = [row for row, one in zip(events, stored, strict=True) if row["asset_id"] == one["_id"]]
            if won:
                await self._outbox.insert_many(won, session=session)
            return stored

        async with self._client.start_session() as session:
            return await session.with_transaction(body, **TRANSACTION)

    async def _find_ids(self, owner_id: str, asset_ids: Sequence[str]) -> list[Document | None]:
        return await self._find_each("_id", asset_ids, owner_id=owner_id, index="_id_")

    async def _find_keys(self, owner_id: str, keys: Sequence[str]) -> list[Document | None]:
        return await self._find_each("idempotency_key", keys, owner_id=owner_id, index=documents.BY_KEY)

    async def _find_each(self, name: str, values: Sequence[str], *, owner_id: str, index: str) -> list[Document | None]:
        where = {"owner_id": owner_id, name: {"$in": list(dict.fromkeys(values))}}
        async with self._turn():
            # Named: see page().
            found = {one[name]: one for one in await self._assets.find(where).hint(index).to_list()}
        return [found.get(value) for value in values]

    async def _in_time(self, rounds: Rounds[GroupT, ItemT, ResultT], group: GroupT, item: ItemT) -> ResultT:
        """The answer of a round. Rounds before it take their time, and so does its own."""
        seconds = TURN_SECONDS + self._seconds
        try:
            return await rounds.ask(group, item, seconds=seconds)
        except TimeoutError:
            raise WaitQueueTimeoutError(f"no answer within {seconds:g} s") from None

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One of the few that go to MongoDB at one time. The deadline of the call begins here: counted from its
        arrival, most calls of a storm would have spent theirs in waiting for each other. In an outage nobody waits
        longer than those before: whose turn comes after one of them got no answer has had it."""
        loop = asyncio.get_running_loop()
        came_at = loop.time()
        if self._turns.locked():
            try:
                async with asyncio.timeout(TURN_SECONDS):
                    await self._turns.acquire()
            except TimeoutError:
                raise WaitQueueTimeoutError(f"no turn within {TURN_SECONDS:g} s") from None
        else:
            await self._turns.acquire()  # at once, without a deadline that costs more
        try:
            if self._no_answer_at > came_at:
                raise _OthersGotNoAnswer("MongoDB did not answer those before")
            with pymongo.timeout(self._seconds):
                yield
        except PyMongoError as error:
            if timed_out(error) and not isinstance(error, _OthersGotNoAnswer):
                self._no_answer_at = loop.time()
            raise
        finally:
            self._turns.release()


def _asset(document: Document | None) -> Asset | None:
    return None if document is None else from_document(document)


def _key(candidate: Change) -> dict[str, str]:
    return {"owner_id": candidate.after.owner_id, "idempotency_key": candidate.after.idempotency_key}


def _upsert(document: Document) -> UpdateOne:
    key = {name: document[name] for name in ("owner_id", "idempotency_key")}
    return UpdateOne(
        key, {"$setOnInsert": {name: value for name, value in document.items() if name not in key}}, upsert=True
    )


def _is_conflict(error: OperationFailure) -> bool:
    """Whether another transaction holds a key, or has stored an asset for it."""
    if isinstance(error, BulkWriteError):
        return any(one["code"] in (DUPLICATE_KEY, WRITE_CONFLICT) for one in error.details["writeErrors"])
    return error.code in (DUPLICATE_KEY, WRITE_CONFLICT)


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
