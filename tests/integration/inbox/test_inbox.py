"""Leases on a real mongod: who gets an event, and who can no longer write."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError, PyMongoError

from darkroom.inbox import Claimed, Done, HeldElsewhere, Inbox, Lease, LeaseLost
from darkroom.runtime.mongo import connect, in_transaction
from support.faults import failing

Db = Database[dict[str, Any]]
Expire = Callable[[str], None]


def claimed(inbox: Inbox, owner: str, event_id: str = "e1") -> Lease:
    claim = inbox.claim(event_id, owner=owner)
    assert isinstance(claim, Claimed), claim
    return claim.lease


def row(db: Db, event_id: str = "e1") -> dict[str, Any]:
    found = db.consumer_inbox.find_one({"event_id": event_id})
    assert found is not None
    return found


def server_now(db: Db) -> datetime:
    return next(iter(db.aggregate([{"$documents": [{}]}, {"$project": {"now": "$$NOW"}}])))["now"]  # type: ignore[no-any-return]  # rows are untyped


def test_a_new_event_is_claimed(inbox: Inbox, db: Db) -> None:
    assert claimed(inbox, "a") == Lease("tests", "e1", "a", fence=1, attempts=1)
    kept = row(db)
    assert kept["state"] == "PROCESSING"
    assert timedelta(days=89) < kept["expire_at"] - kept["claimed_at"] < timedelta(days=91)
    assert kept["lease_until"] - kept["claimed_at"] == timedelta(seconds=30)


def test_another_worker_is_told_how_long_the_lease_still_runs(inbox: Inbox, lease: Lease, db: Db) -> None:
    before = row(db)
    held = inbox.claim("e1", owner="b")
    assert isinstance(held, HeldElsewhere)
    assert 25 < held.seconds <= 30
    assert row(db) == before


def test_an_expired_lease_is_taken_over_and_counts(inbox: Inbox, lease: Lease, db: Db, expire: Expire) -> None:
    expire("e1")
    taken = claimed(inbox, "b")
    assert (taken.fence, taken.attempts) == (2, 2)
    assert row(db)["first_claimed_at"] < row(db)["claimed_at"]


@pytest.mark.parametrize("state", ["COMPLETED", "DEAD"])
def test_a_done_event_stays_done(inbox: Inbox, lease: Lease, db: Db, state: str) -> None:
    (inbox.complete if state == "COMPLETED" else inbox.bury)(lease, outcome="o")
    before = row(db)
    assert "lease_until" not in before
    for owner in ("a", "b"):
        assert inbox.claim("e1", owner=owner) == Done(state, "o")
    assert row(db) == before


def test_a_claim_repeated_by_its_owner_is_the_same_attempt(inbox: Inbox, lease: Lease, db: Db, expire: Expire) -> None:
    expire("e1")
    assert claimed(inbox, "a") == lease
    assert row(db)["lease_until"] > server_now(db) + timedelta(seconds=25)


def test_consumers_do_not_see_each_other(db: Db, inbox: Inbox, lease: Lease) -> None:
    other = Inbox(db, consumer="others", lease_seconds=30)
    assert claimed(other, "b").fence == 1


def test_of_fifty_first_claims_at_once_one_wins(inbox: Inbox) -> None:
    together = threading.Barrier(50)

    def claim(number: int) -> object:
        together.wait()
        return inbox.claim("contended", owner=f"worker-{number}")

    for _ in range(3):
        with ThreadPoolExecutor(50) as pool:
            claims = list(pool.map(claim, range(50)))
        winners = [one for one in claims if isinstance(one, Claimed)]
        assert len(winners) == 1
        assert winners[0].lease.attempts == 1
        assert sum(isinstance(one, HeldElsewhere) for one in claims) == 49
        inbox._rows.delete_many({})


def test_a_first_claim_that_lost_the_race_reads_the_winners_row(
    mongo_url: str, db: Db, inbox: Inbox, lease: Lease
) -> None:
    app = f"loser-{db.name}"
    with connect(mongo_url, appname=app) as client:
        other = Inbox(client[db.name], consumer="tests", lease_seconds=30)
        with failing(db.client, "findAndModify", app=app, times=1, errorCode=11000, errorExtraInfo=DUPLICATE):
            assert isinstance(other.claim("e1", owner="b"), HeldElsewhere)
        with (
            failing(db.client, "findAndModify", app=app, errorCode=11000, errorExtraInfo=DUPLICATE),
            pytest.raises(DuplicateKeyError),
        ):
            other.claim("e1", owner="b")


DUPLICATE = {"keyPattern": {"event_id": 1}, "keyValue": {"event_id": "e1"}}

WRITES: dict[str, Callable[[Inbox, Lease], None]] = {
    "renew": lambda inbox, lease: inbox.renew(lease),
    "release": lambda inbox, lease: inbox.release(lease),
    "complete": lambda inbox, lease: inbox.complete(lease, outcome="late"),
    "bury": lambda inbox, lease: inbox.bury(lease, outcome="late"),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("successor", ["b", "a"])
def test_an_overtaken_holder_writes_nothing(
    inbox: Inbox, lease: Lease, db: Db, expire: Expire, write: str, successor: str
) -> None:
    """Not even when the successor has the same name: the fence tells them apart."""
    expire("e1")
    inbox.release(lease)
    claimed(inbox, successor)
    before = row(db)
    with pytest.raises(LeaseLost):
        WRITES[write](inbox, lease)
    assert row(db) == before


@pytest.mark.parametrize("write", WRITES)
def test_a_released_lease_is_no_lease(inbox: Inbox, lease: Lease, db: Db, write: str) -> None:
    inbox.release(lease)
    before = row(db)
    with pytest.raises(LeaseLost):
        WRITES[write](inbox, lease)
    assert row(db) == before


@pytest.mark.parametrize("write", WRITES)
def test_a_late_holder_that_nobody_overtook_may_still_write(
    inbox: Inbox, lease: Lease, expire: Expire, write: str
) -> None:
    expire("e1")
    WRITES[write](inbox, lease)


@pytest.mark.parametrize("end", ["complete", "bury"])
def test_a_lost_lease_rolls_the_transaction_back(inbox: Inbox, lease: Lease, db: Db, expire: Expire, end: str) -> None:
    expire("e1")
    claimed(inbox, "b")
    db.create_collection("effects")

    def body(session: ClientSession) -> None:
        db.effects.insert_one({"of": "a"}, session=session)
        getattr(inbox, end)(lease, outcome="late", session=session)

    with pytest.raises(LeaseLost):
        in_transaction(db.client, body)
    assert db.effects.count_documents({}) == 0


def test_an_end_is_part_of_the_transaction(inbox: Inbox, lease: Lease, db: Db) -> None:
    def body(session: ClientSession) -> None:
        inbox.complete(lease, outcome="never", session=session)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_transaction(db.client, body)
    assert row(db)["state"] == "PROCESSING"


def test_a_released_event_waits_for_its_delay(inbox: Inbox, lease: Lease, db: Db) -> None:
    inbox.release(lease, delay=60, error="S3 was slow")
    held = inbox.claim("e1", owner="b")
    assert isinstance(held, HeldElsewhere)
    assert 55 < held.seconds <= 60
    # The one who released it has to wait as well.
    assert isinstance(inbox.claim("e1", owner="a"), HeldElsewhere)
    db.consumer_inbox.update_one({}, [{"$set": {"not_before": "$$NOW"}}])
    again = claimed(inbox, "b")
    assert (again.attempts, again.fence, again.last_error) == (2, 2, "S3 was slow")


def test_the_last_error_outlives_an_attempt_without_one(inbox: Inbox, lease: Lease) -> None:
    inbox.release(lease, error="the first")
    inbox.release(claimed(inbox, "b"))
    assert claimed(inbox, "c").last_error == "the first"


def test_a_refunded_attempt_does_not_count(inbox: Inbox, lease: Lease) -> None:
    inbox.release(lease, refund=True)
    again = claimed(inbox, "b")
    assert (again.attempts, again.fence) == (1, 2)


def test_the_hosts_clock_does_not_matter(inbox: Inbox, lease: Lease, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a host that is hours ahead nor one that is behind takes a live lease or writes a wrong time."""
    real = time.time
    for hours in (5, -5):
        monkeypatch.setattr(time, "time", lambda hours=hours: real() + hours * 3600)
        held = inbox.claim("e1", owner=f"skewed {hours}")
        assert isinstance(held, HeldElsewhere)
        assert 20 < held.seconds <= 30
        other = claimed(inbox, "a", f"e {hours}")
        inbox.renew(other)
        assert abs(row(db, f"e {hours}")["lease_until"] - server_now(db)) < timedelta(seconds=31)
        inbox.complete(other, outcome="done")
        assert abs(row(db, f"e {hours}")["finished_at"] - server_now(db)) < timedelta(seconds=10)


@pytest.mark.parametrize("text", ["$where", "$$NOW", "$lease_owner", "$"])
def test_what_looks_like_an_expression_is_kept_as_text(inbox: Inbox, db: Db, text: str) -> None:
    lease = claimed(inbox, text, text)
    assert lease.owner == text
    assert claimed(inbox, text, text) == lease
    inbox.release(lease, error=text)
    again = claimed(inbox, "b", text)
    assert again.last_error == text
    inbox.complete(again, outcome=text)
    assert inbox.claim(text, owner="c") == Done("COMPLETED", text)


def test_an_error_is_kept_only_so_far(inbox: Inbox, lease: Lease, db: Db) -> None:
    inbox.release(lease, error="x" * 100_000)
    assert len(row(db)["last_error"]) == 1000


def test_the_indexes_are_there(db: Db) -> None:
    indexes = db.consumer_inbox.index_information()
    assert indexes["consumer_1_event_id_1"]["unique"] is True
    assert indexes["expire_at_1"]["expireAfterSeconds"] == 0
    db.consumer_inbox.insert_one({"consumer": "c", "event_id": "e"})
    with pytest.raises(DuplicateKeyError):
        db.consumer_inbox.insert_one({"consumer": "c", "event_id": "e"})


def test_a_server_that_does_not_answer_ends_the_call(mongo_url: str, db: Db, inbox: Inbox, lease: Lease) -> None:
    app = f"patient-{db.name}"
    with connect(mongo_url, appname=app) as client:
        slow = Inbox(client[db.name], consumer="tests", lease_seconds=30, call_seconds=0.3)
        with failing(db.client, "findAndModify", "update", app=app, blockConnection=True, blockTimeMS=1000):
            for call in (lambda: slow.claim("e1", owner="a"), lambda: slow.renew(lease)):
                begun = time.monotonic()
                with pytest.raises(PyMongoError) as caught:
                    call()
                assert caught.value.timeout
                assert time.monotonic() - begun < 0.8


def test_a_claim_whose_answer_was_lost_is_not_counted_twice(mongo_url: str, db: Db) -> None:
    app = f"unlucky-{db.name}"
    with connect(mongo_url, appname=app) as client:
        inbox = Inbox(client[db.name], consumer="tests", lease_seconds=30)
        with failing(db.client, "findAndModify", app=app, times=1, closeConnection=True):
            lease = claimed(inbox, "a")
    assert (lease.fence, lease.attempts) == (1, 1)
    assert row(db)["claimed_at"] <= datetime.now(UTC) + timedelta(seconds=1)


def test_holders_that_vanished_are_counted_and_those_that_gave_back_are_not(
    db: Db, inbox: Inbox, lease: Lease, expire: Callable[[str], None]
) -> None:
    assert lease.abandoned == 0
    inbox.release(lease)
    second = inbox.claim("e1", owner="b")
    assert isinstance(second, Claimed)
    assert second.lease.abandoned == 0
    expire("e1")
    before = db.consumer_inbox.find_one()
    assert inbox.claim("e1", owner="c", abandoned=False) == HeldElsewhere(0.0, abandoned=True)
    assert db.consumer_inbox.find_one() == before, "what was not asked for is left as it was"
    third = inbox.claim("e1", owner="c")
    assert isinstance(third, Claimed)
    assert third.lease.abandoned == 1
    assert inbox.claim("e1", owner="c") == third, "claimed again by its own holder"
