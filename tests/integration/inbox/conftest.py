"""An inbox with its indexes in a fresh database."""

from collections.abc import Callable
from typing import Any

import pytest
from pymongo.database import Database

from darkroom.inbox import Claimed, Inbox, Lease
from darkroom.runtime.mongo import ensure_indexes

Rows = Database[dict[str, Any]]


@pytest.fixture
def db(mongo_db: Rows) -> Rows:
    ensure_indexes(mongo_db, Inbox.indexes())
    return mongo_db


@pytest.fixture
def inbox(db: Rows) -> Inbox:
    return Inbox(db, consumer="tests", lease_seconds=30)


@pytest.fixture
def lease(inbox: Inbox) -> Lease:
    """Event e1, claimed by worker a."""
    claimed = inbox.claim("e1", owner="a")
    assert isinstance(claimed, Claimed)
    return claimed.lease


@pytest.fixture
def expire(db: Rows) -> Callable[[str], None]:
    """Lets an event's lease run out by the server's clock, without waiting."""

    def run_out(event_id: str) -> None:
        past = [{"$set": {"lease_until": {"$subtract": ["$$NOW", 1]}}}]
        assert db.consumer_inbox.update_one({"event_id": event_id}, past).matched_count == 1

    return run_out
