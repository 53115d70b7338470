"""The API's reads and writes in MongoDB. Every query names the owner."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pymongo
from pymongo import IndexModel, ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import DuplicateKeyError, OperationFailure

from darkroom import outbox
from darkroom.assets import Asset, Change, documents, from_document, to_document
from darkroom.outbox import rows
from darkroom.runtime.mongo import TRANSACTION, AsyncClient, Document

WRITE_CONFLICT = 112
FIRST_WAIT_SECONDS = 0.004
LONGEST_WAIT_SECONDS = 0.1


class _AnotherIsRegistering(Exception):
    """A transaction that has not ended yet holds the key."""


class AssetStore:
    """Assets of MongoDB. Each call ends within ``seconds``, by an answer or by a PyMongoError whose ``timeout`` is
    true."""

    def __init__(self, *, client: AsyncClient, database: str, seconds: float) -> None:
        self._client = client
        self._db = client[database]
        self._assets = self._db[documents.COLLECTION]
        self._outbox = self._db[outbox.COLLECTION]
        self._seconds = seconds
        self._registering: dict[tuple[str, str], asyncio.Task[Asset]] = {}

    async def ensure_indexes(self) -> None:
        """Create what is missing, before any traffic.

        Raises:
            pymongo.errors.OperationFailure: an index cannot be built, or one of that name differs.

        """
        for collection, indexes in ((self._assets, documents.INDEXES), (self._outbox, rows.INDEXES)):
            await collection.create_indexes([IndexModel(keys, **options) for keys, options in indexes])

    async def ping(self, *, seconds: float = 2.0) -> None:
        """Whether the primary answers."""
        with pymongo.timeout(seconds):
            await self._client.admin.command("ping")

    async def by_id(self, *, owner_id: str, asset_id: str) -> Asset | None:
        """The owner's asset of this id."""
        return await self._find({"_id": asset_id, "owner_id": owner_id})

    async def by_key(self, *, owner_id: str, idempotency_key: str) -> Asset | None:
        """The owner's asset of this key, as a majority of the servers has it."""
        return await self._find({"owner_id": owner_id, "idempotency_key": idempotency_key})

    async def events_after(self, *, owner_id: str, asset_id: str, sequence: int, limit: int) -> list[Document]:
        """The rows of an asset's stream after a sequence, in order, at most ``limit``."""
        where = {"asset_id": asset_id, "owner_id": owner_id, "sequence": {"$gt": sequence}}
        with pymongo.timeout(self._seconds):
            return await self._outbox.find(where).sort("sequence", 1).limit(limit).to_list()

    async def register(self, candidate: Change) -> Asset:
        """Store the candidate and its event in one transaction, unless the key has an asset: then give that one."""
        key = (candidate.after.owner_id, candidate.after.idempotency_key)
        running = self._registering.get(key)
        if running is None:
            # One transaction a key and process: hundreds at once would only wait for each other, beyond the deadline.
            running = self._registering[key] = asyncio.create_task(self._register(candidate))
            running.add_done_callback(lambda ended: self._forget(key, ended))
        # Shielded: a client that goes away does not take the others' answer with it.
        return await asyncio.shield(running)

    def _forget(self, key: tuple[str, str], ended: asyncio.Task[Asset]) -> None:
        del self._registering[key]
        if not ended.cancelled():
            ended.exception()  # seen, also when every client has gone away

    async def _register(self, candidate: Change) -> Asset:
        key = {"owner_id": candidate.after.owner_id, "idempotency_key": candidate.after.idempotency_key}
        with pymongo.timeout(self._seconds):
            wait = FIRST_WAIT_SECONDS
            while True:  # ends: beyond the deadline the next call to MongoDB raises
                try:
                    return from_document(await self._register_once(candidate, key))
                except (DuplicateKeyError, _AnotherIsRegistering):
                    # Looked at outside the transaction, which the server has already ended: going on inside it would
                    # make the driver repeat it for two minutes.
                    if (asset := await self._find(key)) is not None:
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
        with pymongo.timeout(self._seconds):
            document = await self._assets.find_one(where)
        return None if document is None else from_document(document)
