"""``darkroom_relay_…``: told a batch at a time, for an event costs the relay some twenty microseconds in all."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram

from darkroom.metrics.registry import SECONDS, Kept, sampled
from outbox_relay.backlog import LIMIT, Backlog
from outbox_relay.relay import Observer, Relay
from outbox_relay.shards import ShardLeases

BACKLOG_SECONDS = 5.0
"""How old the answer about unpublished rows may be: so often MongoDB is asked at most, whoever scrapes."""


class RelayMetrics(Observer):
    """Counts what the relay tells."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._published = Counter(
            "darkroom_relay_published_total", "Events that Kafka acknowledged.", registry=registry
        )
        self._latency = Histogram(
            "darkroom_relay_publish_latency_seconds",
            "From an event's commit, by the clock of who made it, to Kafka's acknowledgement; a sample of events.",
            registry=registry,
            buckets=SECONDS,
        )
        self._parked = Counter(
            "darkroom_relay_parked_total", "Rows set aside because they cannot be sent.", registry=registry
        )
        self._rebuilds = Counter(
            "darkroom_relay_producer_rebuilds_total", "Kafka producers that were given up.", registry=registry
        )
        self._failures = Counter(
            "darkroom_relay_sweep_failures_total",
            "Sweeps that failed, by whose fault: kafka or mongodb.",
            ["server"],
            registry=registry,
        )
        for server in ("kafka", "mongodb"):
            self._failures.labels(server)

    def acknowledged(self, count: int, latencies: Iterable[float]) -> None:
        """See ``Observer``."""
        self._published.inc(count)
        for seconds in latencies:
            self._latency.observe(seconds)

    def parked(self) -> None:
        """See ``Observer``."""
        self._parked.inc()

    def producer_given_up(self) -> None:
        """See ``Observer``."""
        self._rebuilds.inc()

    def sweep_failed(self, server: str) -> None:
        """See ``Observer``."""
        self._failures.labels(server).inc()

    def watch(self, *, relay: Relay, leases: ShardLeases, backlog: Backlog) -> None:
        """Show at each scrape how the relay is, and what waits for all relays."""
        registry = self._registry
        sampled(registry, "darkroom_relay_in_flight_rows", "Rows sent and not acknowledged.", lambda: relay.in_flight)
        sampled(
            registry, "darkroom_relay_unmarked_rows", "Rows acknowledged and not yet marked.", lambda: relay.unmarked
        )
        sampled(
            registry,
            "darkroom_relay_shards_owned",
            "Shards that this relay publishes, of 64.",
            lambda: len(leases.current().shards),
        )
        sampled(
            registry,
            "darkroom_relay_kafka_silent_seconds",
            "How long Kafka has acknowledged nothing although something waits for it; 0 while all is well.",
            relay.kafka_silent,
        )
        look = Kept(backlog.look, seconds=BACKLOG_SECONDS)
        sampled(
            registry,
            "darkroom_relay_unpublished_oldest_seconds",
            f"Age of the oldest of the first {LIMIT} unpublished rows of all shards, by MongoDB's clock.",
            lambda: look().oldest,
        )
        sampled(
            registry,
            "darkroom_relay_unpublished_rows",
            f"Unpublished rows of all shards that are not parked; at most {LIMIT} are counted.",
            lambda: look().waiting,
        )
        sampled(
            registry,
            "darkroom_relay_parked_rows",
            f"Rows of all shards that are parked, among the first {LIMIT} unpublished ones.",
            lambda: look().parked,
        )
