"""Connections to MongoDB and the one way transactions run here."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import parse_qs

import pymongo
from pymongo import AsyncMongoClient, IndexModel, MongoClient
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from darkroom.runtime.start import StartRefused

Document = dict[str, Any]
Client = MongoClient[Document]
AsyncClient = AsyncMongoClient[Document]
Db = Database[Document]
Rows = Collection[Document]

MAJORITY = WriteConcern("majority")
SNAPSHOT = ReadConcern("snapshot")
TRANSACTION: dict[str, Any] = {
    "read_concern": SNAPSHOT,
    "write_concern": MAJORITY,
    "read_preference": ReadPreference.PRIMARY,
}
OPTIONS: dict[str, Any] = {
    "tz_aware": True,
    "w": "majority",
    "readConcernLevel": "majority",
}
TIMEOUTS = {"serverSelectionTimeoutMS": 10_000, "connectTimeoutMS": 5_000}
"""Unless the URL has others; the rest is what the guarantees rest on, and stays whatever the URL says."""

ResultT = TypeVar("ResultT")


class NotAReplicaSet(StartRefused):
    """The server keeps no transactions: it is a standalone mongod. The message says how to start one that does."""


def connect(url: str, **options: Any) -> Client:
    """A client with aware datetimes and majority concerns; nothing is connected until its first use.

    Raises:
        StartRefused: the URL is no connection string of MongoDB.

    """
    with _readable():
        return MongoClient(url, **{**_timeouts(url), **OPTIONS, **options})


def close(client: Client, *, seconds: float = 2.0) -> None:
    """Close the client. It says goodbye to the server first, and one that hangs must not hold up the process's end."""
    with pymongo.timeout(seconds):
        client.close()


def connect_async(url: str, **options: Any) -> AsyncClient:
    """The same for asyncio."""
    with _readable():
        return AsyncMongoClient(url, **{**_timeouts(url), **OPTIONS, **options})


def _timeouts(url: str) -> dict[str, int]:
    given = {name.lower() for name in parse_qs(url.partition("?")[2], keep_blank_values=True)}
    return {name: value for name, value in TIMEOUTS.items() if name.lower() not in given}


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (PyMongoError, ValueError) as error:
        raise StartRefused(f"DARKROOM_MONGO_URL: no connection string of MongoDB: {error}") from None


def timed_out(error: Exception) -> bool:
    """Whether MongoDB gave no answer in time."""
    return isinstance(error, PyMongoError) and error.timeout


def reason(error: PyMongoError) -> str:
    """What went wrong, without the driver's whole picture of all servers, which is long and says no more."""
    return str(error).split(", Topology Description:")[0][:500]


@contextmanager
def required() -> Iterator[None]:
    """Around what a service asks of MongoDB before it starts.

    Raises:
        StartRefused: MongoDB does not answer, or refuses.

    """
    try:
        yield
    except PyMongoError as error:
        raise StartRefused(f"DARKROOM_MONGO_URL: this MongoDB cannot be used: {reason(error)}") from error


def check_replica_set(hello: Mapping[str, Any]) -> None:
    """Judge a server's answer to ``hello``.

    Raises:
        NotAReplicaSet: the server is a standalone mongod.

    """
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        raise NotAReplicaSet(
            "DARKROOM_MONGO_URL names a standalone mongod, which has no transactions. Start mongod with --replSet rs0, "
            "run rs.initiate() once (a single member is enough), and add ?replicaSet=rs0 to the URL."
        )


def in_transaction(client: Client, body: Callable[[ClientSession], ResultT], *, seconds: float = 20.0) -> ResultT:
    """Run ``body`` in a transaction and commit it; ``body`` may run several times and must contain no other I/O.

    Snapshot reads, majority writes. The driver repeats the body on a TransientTransactionError and the commit on an
    UnknownTransactionCommitResult, all within ``seconds``.

    Raises:
        pymongo.errors.PyMongoError: the server refused, or ``timeout`` is true and it is not known whether the
            transaction was committed. Whatever ``body`` raises passes through, and then nothing was written.

    """
    with pymongo.timeout(seconds), client.start_session() as session:
        return session.with_transaction(body, **TRANSACTION)


def ensure_indexes(db: Db, wanted: Mapping[str, Iterable[IndexModel]]) -> None:
    """Create what is missing, before any traffic.

    Raises:
        pymongo.errors.OperationFailure: an index cannot be built, or one of that name differs.

    """
    for collection, indexes in wanted.items():
        db[collection].create_indexes(list(indexes))
