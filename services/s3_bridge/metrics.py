"""``darkroom_bridge_…``: of the container. The Lambda function tells CloudWatch the same, see ``handler``."""

from prometheus_client import CollectorRegistry, Counter

from darkroom.metrics.registry import sampled
from s3_bridge.bridge import Result
from s3_bridge.notification import Reason
from s3_bridge.poller import QueuePoller


class BridgeMetrics:
    """Counts batches."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._published = Counter(
            "darkroom_bridge_events_published_total", "AssetUploaded events that Kafka acknowledged.", registry=registry
        )
        self._failed = Counter(
            "darkroom_bridge_messages_failed_total",
            "SQS messages that were left to come back, malformed ones included.",
            registry=registry,
        )
        self._malformed = Counter(
            "darkroom_bridge_messages_malformed_total", "SQS messages that are not understood.", registry=registry
        )
        self._ignored = Counter(
            "darkroom_bridge_announcements_ignored_total",
            "Announcements that are understood and not for us, by reason.",
            ["reason"],
            registry=registry,
        )
        for reason in Reason:
            self._ignored.labels(reason.value)

    def batch(self, result: Result) -> None:
        """A batch was handled."""
        self._published.inc(result.published)
        self._failed.inc(len(result.failed))
        self._malformed.inc(result.malformed)
        for reason, count in result.ignored.items():
            self._ignored.labels(reason.value).inc(count)

    def watch(self, poller: QueuePoller) -> None:
        """Show at each scrape how the poller is."""
        sampled(
            self._registry,
            "darkroom_bridge_failing_polls",
            "Polls in a row that failed as a whole: SQS or Kafka is away. 0 while all is well.",
            lambda: poller.failures,
        )
