"""Transactions on a real mongod that fails at every step: one effect or none, in bounded time."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymongo import IndexModel
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError, OperationFailure, PyMongoError

from darkroom.runtime.mongo import Client, connect, ensure_indexes, in_transaction
from support.faults import failing

Db = Database[dict[str, Any]]


@pytest.fixture
def app(mongo_db: Db) -> str:
    return f"app-{mongo_db.name}"


@pytest.fixture
def client(mongo_url: str, app: str, mongo_db: Db) -> Iterator[Client]:
    mongo_db.things.insert_one({"_id": "counter", "n": 0})
    with connect(mongo_url, appname=app) as made:
        yield made


def insert(db: Db) -> Callable[[ClientSession], None]:
    """Raises a counter and records it: two writes that must come together."""

    def body(session: ClientSession) -> None:
        db.things.update_one({"_id": "counter"}, {"$inc": {"n": 1}}, session=session)
        db.things.insert_one({"kind": "effect"}, session=session)

    return body


def effects(db: Db) -> tuple[int, int]:
    counter = db.things.find_one({"_id": "counter"})
    assert counter is not None
    return counter["n"], db.things.count_documents({"kind": "effect"})


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("commitTransaction", {"errorCode": 8, "errorLabels": ["UnknownTransactionCommitResult"]}),
        ("commitTransaction", {"closeConnection": True}),
        ("commitTransaction", {"errorCode": 10107}),
        # The commit is done, and only its majority is in doubt: running the body again would be a second effect.
        (
            "commitTransaction",
            {"writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}},
        ),
        ("update", {"errorCode": 112, "errorLabels": ["TransientTransactionError"]}),
        ("insert", {"errorCode": 10107, "errorLabels": ["TransientTransactionError"]}),
        ("insert", {"closeConnection": True}),
    ],
)
def test_a_passing_fault_leaves_one_effect(
    client: Client, mongo_db: Db, app: str, command: str, fault: dict[str, Any]
) -> None:
    with failing(mongo_db.client, command, app=app, times=2, **fault):
        in_transaction(client, insert(client[mongo_db.name]))
    assert effects(mongo_db) == (1, 1)


def test_a_duplicate_in_the_body_is_an_error_at_once(client: Client, mongo_db: Db) -> None:
    db = client[mongo_db.name]

    def body(session: ClientSession) -> None:
        db.things.insert_one({"kind": "effect"}, session=session)
        db.things.insert_one({"_id": "counter"}, session=session)

    begun = time.monotonic()
    with pytest.raises(DuplicateKeyError):
        in_transaction(client, body)
    assert time.monotonic() - begun < 2
    assert effects(mongo_db) == (0, 0)


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("update", {"errorCode": 112, "errorLabels": ["TransientTransactionError"]}),
        ("commitTransaction", {"errorCode": 8, "errorLabels": ["UnknownTransactionCommitResult"]}),
    ],
)
def test_a_fault_that_stays_ends_in_time(
    client: Client, mongo_db: Db, app: str, command: str, fault: dict[str, Any]
) -> None:
    begun = time.monotonic()
    with failing(mongo_db.client, command, app=app, **fault), pytest.raises(PyMongoError) as caught:
        in_transaction(client, insert(client[mongo_db.name]), seconds=0.8)
    # The server cannot know that nobody will come back for this transaction, and would keep its locks for a minute.
    mongo_db.client.admin.command({"killAllSessions": []})
    assert caught.value.timeout
    assert time.monotonic() - begun < 3


def test_what_the_server_refuses_is_not_tried_again(client: Client, mongo_db: Db, app: str) -> None:
    runs = []

    def body(session: ClientSession) -> None:
        runs.append(1)
        insert(client[mongo_db.name])(session)

    with failing(mongo_db.client, "insert", app=app, errorCode=13), pytest.raises(OperationFailure) as caught:
        in_transaction(client, body)
    assert caught.value.code == 13
    assert len(runs) == 1
    assert effects(mongo_db) == (0, 0)


def test_rivals_for_one_document_all_get_through(client: Client, mongo_db: Db) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: in_transaction(client, insert(client[mongo_db.name])), range(24)))
    assert effects(mongo_db) == (24, 24)


def test_times_come_back_aware(client: Client, mongo_db: Db) -> None:
    mongo_db.things.update_one({"_id": "counter"}, [{"$set": {"at": "$$NOW"}}])
    row = client[mongo_db.name].things.find_one({"_id": "counter"})
    assert row is not None
    assert row["at"].utcoffset() is not None


def test_an_index_that_cannot_be_built_is_an_error(mongo_db: Db) -> None:
    mongo_db.things.insert_many([{"k": 1}, {"k": 1}])
    with pytest.raises(OperationFailure):
        ensure_indexes(mongo_db, {"things": [IndexModel("k", unique=True)]})
