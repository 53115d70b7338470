"""The composition root of the relay: reads settings, connects, and runs until it is told to stop."""

import threading
import time
from contextlib import ExitStack

import structlog
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]  # not in its __all__
from pymongo import IndexModel

from darkroom.contracts.topics import Topics
from darkroom.outbox.rows import COLLECTION, INDEXES
from darkroom.runtime import logging
from darkroom.runtime.health import health_server
from darkroom.runtime.mongo import check_replica_set, connect, ensure_indexes
from darkroom.runtime.settings import load
from darkroom.runtime.shutdown import stop_on_signals
from outbox_relay.publisher import Publisher
from outbox_relay.relay import Pace, Relay
from outbox_relay.settings import Settings
from outbox_relay.shards import ShardKeeper, ShardLeases

log = structlog.get_logger()

PRODUCER_DEFAULT_BYTES = 1_000_000


def main() -> None:
    """Run a relay, configured by the environment, until SIGTERM or SIGINT."""
    settings = load(Settings)
    logging.configure(service="outbox-relay", level=settings.log_level)
    stop = stop_on_signals()
    topic = Topics(settings.topic_prefix).events
    with ExitStack() as stack:
        mongo = stack.enter_context(connect(settings.mongo_url.get_secret_value(), appname="darkroom-outbox-relay"))
        check_replica_set(mongo.admin.command("hello"))
        db = mongo[settings.mongo_database]
        ensure_indexes(
            db, {COLLECTION: [IndexModel(keys, **options) for keys, options in INDEXES], **ShardLeases.indexes()}
        )
        leases = ShardLeases(db, instance=settings.relay_instance, lease_seconds=settings.relay_lease_seconds)
        leases.create()
        leases.refresh()
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
        )

        def live() -> dict[str, object]:
            return {"published": relay.published, "shards": len(leases.owned.shards)}

        def ready() -> dict[str, object]:
            if time.monotonic() > leases.owned.valid_until:
                raise RuntimeError("the shard leases could not be renewed")
            mongo.admin.command("ping")
            return live()

        port = stack.enter_context(
            health_server(host=settings.health_host, port=settings.health_port, live=live, ready=ready)
        )
        keeper.start()
        log.info("relay_started", instance=settings.relay_instance, health_port=port, topic=topic)
        try:
            relay.run()
        finally:
            keeper.stop()
            leases.leave()
    log.info("relay_stopped", instance=settings.relay_instance)


def new_publisher(settings: Settings, topic: str, *, one_by_one: bool) -> Publisher:
    """A producer whose largest message is what the topic takes, so that a larger one is refused before it is sent."""
    return Publisher(
        bootstrap=settings.kafka_bootstrap,
        topic=topic,
        extra=settings.kafka_config,
        max_message_bytes=_largest_message(settings, topic),
        one_by_one=one_by_one,
    )


def _largest_message(settings: Settings, topic: str) -> int:
    admin = AdminClient({**settings.kafka_config, "bootstrap.servers": settings.kafka_bootstrap})
    (future,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)], request_timeout=10).values()
    return min(PRODUCER_DEFAULT_BYTES, int(future.result()["max.message.bytes"].value))
