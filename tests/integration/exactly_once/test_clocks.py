"""No date of a lease comes from a host: the server reckons all of them, so a wrong clock harms nobody."""

from darkroom.inbox import Claimed, HeldElsewhere, Inbox
from darkroom.runtime.mongo import Db, connect, ensure_indexes
from outbox_relay.shards import ShardLeases
from support.commands import Commands


def test_no_lease_of_an_event_is_dated_by_a_host(mongo_url: str, mongo_db: Db) -> None:
    commands = Commands()
    with connect(mongo_url, event_listeners=[commands]) as client:
        db = client[mongo_db.name]
        ensure_indexes(db, Inbox.indexes())
        inbox = Inbox(db, consumer="c", lease_seconds=30)
        for end in (inbox.complete, inbox.bury):
            claimed = inbox.claim(end.__name__, owner="a")
            assert isinstance(claimed, Claimed)
            assert isinstance(inbox.claim(end.__name__, owner="b"), HeldElsewhere)
            inbox.renew(claimed.lease)
            inbox.release(claimed.lease, delay=0, error="e")
            again = inbox.claim(end.__name__, owner="b")
            assert isinstance(again, Claimed)
            end(again.lease, outcome="o")
    assert len(commands.named("findAndModify", "consumer_inbox")) == 6
    assert len(commands.named("update", "consumer_inbox")) == 6
    assert commands.times() == []


def test_no_lease_of_a_shard_is_dated_by_a_host(mongo_url: str, mongo_db: Db) -> None:
    commands = Commands()
    with connect(mongo_url, event_listeners=[commands]) as client:
        leases = ShardLeases(client[mongo_db.name], instance="one", lease_seconds=30)
        leases.create()
        assert len(leases.refresh().shards) == 64
        leases.refresh()
        leases.leave()
    assert commands.named("update", "relay_shards")
    assert commands.named("update", "relay_members")
    assert commands.times() == []
