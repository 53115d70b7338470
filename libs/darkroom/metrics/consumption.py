"""``darkroom_consumer_…`` and ``darkroom_inbox_…``: the same for every consumer built on ``darkroom.inbox``."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from darkroom.inbox.consumer import OrderedConsumer, State
from darkroom.inbox.observer import Answer, Observer, Outcome, Write
from darkroom.metrics.registry import SECONDS, Computed, Kept, sampled


class ConsumptionMetrics(Observer):
    """Counts what it is told; what is asked for at a scrape comes with ``watch``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._handled = Counter(
            "darkroom_consumer_handovers_total",
            "Hand-overs of a record to its handler that ended, by how: finished, later, outage, defect.",
            ["outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "darkroom_consumer_handling_seconds",
            "How long hand-overs took that ended with an answer of the handler.",
            registry=registry,
            buckets=SECONDS,
        )
        self._outages = Counter(
            "darkroom_consumer_outages_total",
            "Hand-overs that met a server that does not answer, by server.",
            ["server"],
            registry=registry,
        )
        self._claims = Counter(
            "darkroom_inbox_claims_total", "Claims by their answer: claimed, held, done.", ["answer"], registry=registry
        )
        self._rejected = Counter(
            "darkroom_inbox_fence_rejected_total",
            "Writes that changed nothing because another worker had taken the event over.",
            ["write"],
            registry=registry,
        )
        self._lost = Counter(
            "darkroom_inbox_lease_lost_total",
            "Work under way that was called off because its lease was lost.",
            registry=registry,
        )
        self._released = Counter(
            "darkroom_inbox_released_total",
            "Events given back: retry (an attempt failed) or called_off (no attempt is spent).",
            ["why"],
            registry=registry,
        )
        # A series that begins at its first event hides that event from rate().
        for outcome in Outcome:
            self._handled.labels(outcome.value)
        for answer in Answer:
            self._claims.labels(answer.value)
        for write in Write:
            self._rejected.labels(write.value)
        for why in ("retry", "called_off"):
            self._released.labels(why)

    def handled(self, outcome: Outcome, seconds: float) -> None:
        """See ``Observer``."""
        self._handled.labels(outcome.value).inc()
        if outcome in (Outcome.FINISHED, Outcome.LATER):
            self._seconds.observe(seconds)

    def outage(self, server: str) -> None:
        """See ``Observer``."""
        self._outages.labels(server).inc()

    def claim_answered(self, answer: Answer) -> None:
        """See ``Observer``."""
        self._claims.labels(answer.value).inc()

    def fence_rejected(self, write: Write) -> None:
        """See ``Observer``."""
        self._rejected.labels(write.value).inc()

    def lease_lost(self) -> None:
        """See ``Observer``."""
        self._lost.inc()

    def released(self, *, called_off: bool) -> None:
        """See ``Observer``."""
        self._released.labels("called_off" if called_off else "retry").inc()

    def watch(self, consumer: OrderedConsumer) -> None:
        """Show at each scrape how the consumer is."""
        # One look serves all gauges of a scrape.
        look = Kept(consumer.state, seconds=0.05)

        def gauge(name: str, help_text: str, part: str) -> None:
            sampled(self._registry, name, help_text, lambda: float(getattr(look(), part)))

        gauge("darkroom_consumer_assigned_partitions", "Partitions assigned to this process.", "assigned")
        gauge("darkroom_consumer_paused_partitions", "Of these, those paused because too much is in hand.", "paused")
        gauge("darkroom_consumer_unfinished_records", "Records in hand and not finished.", "unfinished")
        gauge("darkroom_consumer_in_flight_records", "Records being worked on.", "running")
        gauge(
            "darkroom_consumer_oldest_unfinished_seconds",
            "How long the oldest unfinished record has been in hand.",
            "oldest",
        )
        gauge(
            "darkroom_consumer_stalled_seconds",
            "How long no record has moved although there are some to work on; 0 while all is well.",
            "stalled",
        )
        gauge(
            "darkroom_consumer_last_progress_timestamp_seconds",
            "When a handler last answered, as Unix time.",
            "progress_at",
        )
        sampled(
            self._registry,
            "darkroom_consumer_breaker_open",
            "1 while all work waits for a server that does not answer.",
            lambda: float(consumer.outage is not None),
        )
        Computed(self._registry, lambda: _lag(look()))


def _lag(state: State) -> Iterable[Metric]:
    family = GaugeMetricFamily(
        "darkroom_consumer_lag_records",
        "Records behind the lowest unfinished one of each assigned partition, as of the last fetch.",
        labels=["topic", "partition"],
    )
    for (topic, partition), lag in state.lag.items():
        family.add_metric([topic, str(partition)], lag)
    yield family
