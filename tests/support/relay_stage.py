"""One outbox and one topic for a test, and relays made in this process or as processes of their own."""

import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition
from pymongo import IndexModel

from darkroom.contracts.envelope import Event, from_record
from darkroom.contracts.events import AssetRegistered
from darkroom.contracts.topics import Topics, TopicSpec
from darkroom.outbox import COLLECTION, to_row
from darkroom.outbox.rows import INDEXES
from darkroom.runtime.kafka import ensure_topics
from darkroom.runtime.mongo import Client, Db, ensure_indexes, in_transaction
from outbox_relay.publisher import Publisher, TopicFacts, describe_topic
from outbox_relay.relay import Observer, Pace, Relay
from outbox_relay.shards import ShardLeases
from support.events import NOW, new_id, processing, registered, step
from support.eventually import eventually

PARTITIONS = 6
LEASE_SECONDS = 5.0


def events_of(asset_id: str, count: int, **fields: Any) -> list[Event]:
    """The first events of an asset's stream: registered, then processing as often as need be."""
    first = registered(asset_id=asset_id, **fields)
    made = [first.event]
    after = step(first.after, processing())
    made.append(after.event)
    # What the relay publishes need not be a story that makes sense: sequences count.
    made.extend(made[1].model_copy(update={"id": new_id(), "sequence": n}) for n in range(3, count + 1))
    return made[:count]


@dataclass
class Seen:
    """What is on the topic, read from its beginning."""

    messages: list[Message]
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.events = [
            from_record(key=_bytes(m.key()), value=_bytes(m.value()), record_headers=m.headers())  # type: ignore[arg-type]  # the stub allows fewer types of headers
            for m in self.messages
        ]

    @property
    def first_appearances(self) -> dict[str, list[int]]:
        """Each asset's sequences in the order in which they first appeared."""
        seen: dict[str, list[int]] = defaultdict(list)
        for event in self.events:
            assert event.sequence is not None
            if event.sequence not in seen[event.asset_id]:
                seen[event.asset_id].append(event.sequence)
        return dict(seen)

    @property
    def repeated(self) -> int:
        """How many records were there before."""
        return len(self.events) - len({event.id for event in self.events})


@dataclass
class Stage:
    """A database with the outbox's indexes, a topic, and whatever relays the test starts."""

    client: Client
    db: Db
    mongo_url: str
    bootstrap: str
    prefix: str
    max_message_bytes: int | None = None

    @property
    def topic(self) -> str:
        return Topics(self.prefix).events

    def set_up(self, **config: str) -> None:
        ensure_indexes(self.db, {COLLECTION: [IndexModel(keys, **options) for keys, options in INDEXES]})
        ensure_topics(self.bootstrap, [TopicSpec(self.topic, PARTITIONS, config)])
        eventually(lambda: describe_topic(self.bootstrap, self.topic, {}), what="the topic")

    @property
    def rows(self) -> Any:
        return self.db[COLLECTION]

    def append(self, events: list[Event], *, scrambled: bool = True) -> None:
        """Append, in no order that could help, and at one moment: an event is never committed before those that it
        follows, and a relay that already runs must not see otherwise."""
        rows = [to_row(event) for event in events]
        if scrambled:
            random.shuffle(rows)
        in_transaction(self.client, lambda session: self.rows.insert_many(rows, session=session), seconds=60)

    def append_assets(self, assets: int, events_each: int) -> dict[str, list[int]]:
        """Append, and give what must be on the topic in the end."""
        ids = [new_id() for _ in range(assets)]
        self.append([event for asset_id in ids for event in events_of(asset_id, events_each)])
        return {asset_id: list(range(1, events_each + 1)) for asset_id in ids}

    def unpublished(self) -> int:
        # Not by an aggregation or a find: tests make those fail.
        return int(self.db.command("count", self.rows.name, query={"published": False})["n"])

    def read_topic(self, bootstrap: str | None = None) -> Seen:
        consumer = Consumer(
            {"bootstrap.servers": bootstrap or self.bootstrap, "group.id": uuid.uuid4().hex, "fetch.wait.max.ms": 10}
        )
        try:
            ends = {p: consumer.get_watermark_offsets(TopicPartition(self.topic, p))[1] for p in range(PARTITIONS)}
            consumer.assign([TopicPartition(self.topic, p, 0) for p in ends])
            messages: list[Message] = []
            deadline = time.monotonic() + 30
            while len(messages) < sum(ends.values()) and time.monotonic() < deadline:
                messages.extend(m for m in consumer.consume(1000, timeout=0.2) if m.error() is None)
        finally:
            consumer.close()
        assert len(messages) == sum(ends.values())
        return Seen(messages)

    def leases(self, instance: str | None = None, *, lease_seconds: float = LEASE_SECONDS) -> ShardLeases:
        leases = ShardLeases(self.db, instance=instance or uuid.uuid4().hex, lease_seconds=lease_seconds)
        leases.create()
        leases.refresh()
        return leases

    def publisher(self, one_by_one: bool = False) -> Publisher:
        facts = describe_topic(self.bootstrap, self.topic, {})
        if self.max_message_bytes is not None:
            facts = TopicFacts(facts.partitions, self.max_message_bytes)
        return Publisher(bootstrap=self.bootstrap, topic=self.topic, facts=facts, one_by_one=one_by_one)

    @contextmanager
    def relay(
        self,
        *,
        new_publisher: Callable[[bool], Publisher] | None = None,
        leases: ShardLeases | None = None,
        pace: Pace | None = None,
        db: Db | None = None,
        wake: threading.Event | None = None,
        observer: Observer | None = None,
    ) -> Iterator[Relay]:
        """A relay that runs in a thread while the block does, with leases that last for ever unless given."""
        db = self.db if db is None else db
        stop = threading.Event()
        relay = Relay(
            client=db.client,
            db=db,
            leases=leases or self.leases(lease_seconds=3600),
            new_publisher=new_publisher or self.publisher,
            wake=wake or threading.Event(),
            stop=stop,
            pace=pace or Pace(poll=0.2, grace=3.0, longest_pause=0.2, stall=10.0),
            observer=observer,
        )
        thread = threading.Thread(target=relay.run)
        thread.start()
        try:
            yield relay
        finally:
            stop.set()
            thread.join(30)
            assert not thread.is_alive()

    def process(self, log: Path, **settings: str) -> "subprocess.Popen[bytes]":
        """``python -m outbox_relay``; the caller ends it."""
        given = {
            "DARKROOM_MONGO_URL": self.mongo_url,
            "DARKROOM_MONGO_DATABASE": self.db.name,
            "DARKROOM_KAFKA_BOOTSTRAP": self.bootstrap,
            "DARKROOM_TOPIC_PREFIX": self.prefix,
            "DARKROOM_RELAY_LEASE_SECONDS": "1.5",
            "DARKROOM_RELAY_POLL_SECONDS": "0.3",
            "DARKROOM_GRACE_SECONDS": "3",
            **settings,
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DARKROOM_")}
        with log.open("ab") as file:
            return subprocess.Popen([sys.executable, "-m", "outbox_relay"], env=inherited | given, stderr=file)


def big_events(asset_id: str, size: int) -> list[Event]:
    """Three events of an asset, of which the first is of about ``size`` bytes."""
    first, second, third = events_of(asset_id, 3)
    assert isinstance(first.data, AssetRegistered)
    data = first.data.model_copy(update={"filename": "f" * size})
    return [first.model_copy(update={"data": data, "occurred_at": NOW}), second, third]


def _bytes(given: str | bytes | None) -> bytes | None:
    return given.encode() if isinstance(given, str) else given
