"""The keeper on a real mongod: leases live while their work does, whatever MongoDB does meanwhile."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
from pymongo.database import Database

from darkroom.inbox import Claimed, Inbox, Lease
from darkroom.inbox.keeper import LeaseKeeper
from darkroom.runtime.mongo import connect
from support.eventually import eventually
from support.faults import failing

Db = Database[dict[str, Any]]


@contextmanager
def keeping(inbox: Inbox) -> Iterator[LeaseKeeper]:
    keeper = LeaseKeeper(inbox)
    try:
        yield keeper
    finally:
        keeper.close()


@pytest.fixture
def inbox(db: Db) -> Inbox:
    return Inbox(db, consumer="tests", lease_seconds=0.9)


def until(db: Db, event_id: str = "e1") -> datetime:
    row = db.consumer_inbox.find_one({"event_id": event_id})
    assert row is not None
    return row["lease_until"]  # type: ignore[no-any-return]  # rows are untyped


def test_held_leases_are_renewed_at_a_third(db: Db, inbox: Inbox, lease: Lease) -> None:
    second = inbox.claim("e2", owner="a")
    assert isinstance(second, Claimed)
    lost = threading.Event()
    with keeping(inbox) as keeper, keeper.hold(lease, lost=lost), keeper.hold(second.lease, lost=lost):
        seen = {event: [until(db, event)] for event in ("e1", "e2")}

        def renewed_four_times() -> bool:
            for event, times in seen.items():
                if (now := until(db, event)) != times[-1]:
                    times.append(now)
            return all(len(times) > 4 for times in seen.values())

        eventually(renewed_four_times, what="four renewals of each")
    assert not lost.is_set()
    for times in seen.values():
        gaps = [(after - before).total_seconds() for before, after in itertools.pairwise(times)]
        assert all(0.25 < gap < 0.8 for gap in gaps), gaps


def test_a_lease_is_not_renewed_once_the_work_ended(db: Db, inbox: Inbox, lease: Lease) -> None:
    with keeping(inbox) as keeper:
        with keeper.hold(lease, lost=threading.Event()):
            pass
        assert keeper._held == set()


def test_a_takeover_calls_the_work_off(db: Db, inbox: Inbox, lease: Lease, expire: Callable[[str], None]) -> None:
    lost = threading.Event()
    expire("e1")
    assert isinstance(inbox.claim("e1", owner="b"), Claimed)
    with keeping(inbox) as keeper, keeper.hold(lease, lost=lost):
        assert lost.wait(5)


def test_a_failing_mongodb_neither_ends_the_keeper_nor_the_work(mongo_url: str, db: Db) -> None:
    app = f"keeper-{db.name}"
    with connect(mongo_url, appname=app) as client:
        inbox = Inbox(client[db.name], consumer="tests", lease_seconds=0.9)
        claim = inbox.claim("e1", owner="a")
        assert isinstance(claim, Claimed)
        lost = threading.Event()
        with keeping(inbox) as keeper, keeper.hold(claim.lease, lost=lost):
            with failing(db.client, "update", app=app, errorCode=8000):
                before = until(db)
                (held,) = keeper._held
                first_try = held.renew_at
                eventually(lambda: held.renew_at != first_try, what="a failed renewal")
                second_try = held.renew_at
                eventually(lambda: held.renew_at != second_try, what="another failed renewal")
                assert until(db) == before
            eventually(lambda: until(db) > before, what="a renewal after the fault")
            assert not lost.is_set()


def test_a_renewal_that_hangs_is_given_up(mongo_url: str, db: Db) -> None:
    app = f"keeper-{db.name}"
    with connect(mongo_url, appname=app) as client:
        inbox = Inbox(client[db.name], consumer="tests", lease_seconds=0.9)
        claim = inbox.claim("e1", owner="a")
        assert isinstance(claim, Claimed)
        with keeping(inbox) as keeper, keeper.hold(claim.lease, lost=threading.Event()):
            before = until(db)
            with failing(db.client, "update", app=app, times=1, blockConnection=True, blockTimeMS=2500):
                eventually(lambda: until(db) > before, deadline=1.8, what="a renewal past the hanging one")


def test_closing_ends_the_thread(inbox: Inbox) -> None:
    keeper = LeaseKeeper(inbox)
    keeper.close()
    assert not keeper._thread.is_alive()


def test_closing_does_not_wait_for_a_renewal_that_hangs(mongo_url: str, db: Db) -> None:
    app = f"keeper-{db.name}"
    with connect(mongo_url, appname=app) as client:
        inbox = Inbox(client[db.name], consumer="tests", lease_seconds=30)
        claim = inbox.claim("e1", owner="a")
        assert isinstance(claim, Claimed)
        keeper = LeaseKeeper(inbox)
        with (
            failing(db.client, "update", app=app, blockConnection=True, blockTimeMS=6000),
            keeper.hold(claim.lease, lost=threading.Event()),
        ):
            (held,) = keeper._held
            with keeper._changed:
                held.renew_at = 0.0
                keeper._changed.notify()
            running = {"appName": app, "active": True}
            eventually(lambda: db.client.admin.command({"currentOp": True, **running})["inprog"], what="the hang")
            began = time.monotonic()
            keeper.close()
            assert time.monotonic() - began < 4.0
        # It ends by itself once the server answers.
        keeper._thread.join(20)
        assert not keeper._thread.is_alive()
