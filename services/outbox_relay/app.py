"""The composition root of the relay: reads settings, connects, and runs until it is told to stop."""

import threading
import time
from contextlib import ExitStack

import structlog
from pymongo import IndexModel
from pymongo.errors import PyMongoError

from darkroom.contracts.topics import Topics
from darkroom.metrics.registry import exposition, new_registry
from darkroom.outbox.rows import COLLECTION, INDEXES
from darkroom.runtime import logging
from darkroom.runtime.health import health_server
from darkroom.runtime.kafka import configured
from darkroom.runtime.mongo import Client, Db, check_replica_set, connect, ensure_indexes, required
from darkroom.runtime.settings import load
from darkroom.runtime.shutdown import stop_on_signals
from darkroom.runtime.tracing import tracing
from outbox_relay.backlog import Backlog
from outbox_relay.metrics import RelayMetrics
from outbox_relay.publisher import BROKER_DEFAULT_BYTES, Publisher, TopicFacts, describe_topic
from outbox_relay.relay import Pace, Relay
from outbox_relay.settings import Settings
from outbox_relay.shards import ShardKeeper, ShardLeases

log = structlog.get_logger()

IDLE_LEASES = 3
"""So many leases long a relay may own nothing, as while others make room for it, before it is not ready."""


def main() -> None:
    """Run a relay, configured by the environment, until SIGTERM or SIGINT."""
    settings = load(Settings)
    logging.begin(settings, service="outbox-relay")
    stop = stop_on_signals()
    topic = Topics(settings.topic_prefix).events
    _check_kafka_config(settings, topic)
    registry = new_registry()
    metrics = RelayMetrics(registry)
    with ExitStack() as stack:
        stack.enter_context(tracing(service="outbox-relay"))
        mongo = stack.enter_context(connect(settings.mongo_url.get_secret_value(), appname="darkroom-outbox-relay"))
        db = mongo[settings.mongo_database]
        leases = ShardLeases(db, instance=settings.relay_instance, lease_seconds=settings.relay_lease_seconds)
        _prepare(mongo, db, leases)
        wake = threading.Event()
        keeper = ShardKeeper(leases, on_change=wake)
        relay = Relay(
            client=mongo,
            db=db,
            leases=leases,
            new_publisher=lambda one_by_one: new_publisher(settings, topic, one_by_one=one_by_one),
            wake=wake,
            stop=stop,
            pace=Pace(
                poll=settings.relay_poll_seconds,
                in_flight=settings.relay_in_flight,
                stall=settings.relay_stall_seconds,
                grace=settings.grace_seconds,
                max_attempts=settings.relay_max_attempts,
            ),
            observer=metrics,
        )
        metrics.watch(relay=relay, leases=leases, backlog=Backlog(db))

        def live() -> dict[str, object]:
            return {"published": relay.published, "shards": len(leases.owned.shards)}

        def ready() -> dict[str, object]:
            if time.monotonic() > leases.owned.valid_until:
                raise RuntimeError("the shard leases could not be renewed")
            if (idle := leases.idle_seconds()) > IDLE_LEASES * settings.relay_lease_seconds:
                raise RuntimeError(f"this relay owns no shard for {idle:.0f} s; db.relay_shards says who has them")
            if (silent := relay.kafka_silent()) > settings.relay_silence_seconds:
                raise RuntimeError(f"Kafka has acknowledged nothing for {silent:.0f} s")
            mongo.admin.command("ping")
            return live()

        port = stack.enter_context(
            health_server(
                host=settings.health_host,
                port=settings.health_port,
                live=live,
                ready=ready,
                metrics=exposition(registry),
            )
        )
        keeper.start()
        log.info("relay_started", instance=settings.relay_instance, health_port=port, topic=topic)
        try:
            relay.run()
        finally:
            keeper.stop()
            _leave(leases)
    log.info("relay_stopped", instance=settings.relay_instance)


def new_publisher(settings: Settings, topic: str, *, one_by_one: bool) -> Publisher:
    """A producer for the topic as it is now.

    Raises:
        ProducerFailed: there is no such topic, or no broker answered.

    """
    return Publisher(
        bootstrap=settings.kafka_bootstrap,
        topic=topic,
        facts=describe_topic(settings.kafka_bootstrap, topic, settings.kafka_config),
        extra=settings.kafka_config,
        one_by_one=one_by_one,
    )


def _check_kafka_config(settings: Settings, topic: str) -> None:
    """Raises StartRefused when librdkafka does not take the settings; nothing is sent or waited for."""
    with configured():
        Publisher(
            bootstrap=settings.kafka_bootstrap,
            topic=topic,
            facts=TopicFacts(partitions=1, max_message_bytes=BROKER_DEFAULT_BYTES),
            extra=settings.kafka_config,
        )


def _prepare(mongo: Client, db: Db, leases: ShardLeases) -> None:
    """Check the server and make what must exist.

    Raises:
        StartRefused: MongoDB does not answer, refuses us, or is no replica set; the message says which.

    """
    with required():
        check_replica_set(mongo.admin.command("hello"))
        indexes = [IndexModel(keys, **options) for keys, options in INDEXES]
        ensure_indexes(db, {COLLECTION: indexes, **ShardLeases.indexes()})
        leases.create()
        leases.refresh()


def _leave(leases: ShardLeases) -> None:
    try:
        leases.leave()
    except PyMongoError as error:
        log.warning("shards_not_released", error=str(error), free_in_seconds=leases.lease_seconds)
