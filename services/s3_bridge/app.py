"""The composition root of the long-polling container: reads settings, connects, and runs until it is told to stop."""

import logging
import time
from functools import partial

from confluent_kafka import Producer

from darkroom.contracts.topics import Topics
from darkroom.metrics.registry import exposition, new_registry
from darkroom.runtime.health import health_server
from darkroom.runtime.kafka import configured, producer_config
from darkroom.runtime.logging import begin
from darkroom.runtime.settings import load
from darkroom.runtime.shutdown import stop_on_signals
from darkroom.runtime.tracing import tracing
from s3_bridge.bridge import bridge
from s3_bridge.metrics import BridgeMetrics
from s3_bridge.poller import QueuePoller, sqs_client
from s3_bridge.publisher import KafkaPublisher
from s3_bridge.settings import PollerSettings

log = logging.getLogger(__name__)

FAILING_POLLS = 3
"""So many polls in a row that fail as a whole are no passing trouble."""
SLACK_SECONDS = 60.0
"""Beside receiving and publishing: for the client's own retries, and the pause after a failure."""


def main() -> None:
    """Run the poller until SIGTERM or SIGINT."""
    settings = load(PollerSettings)
    begin(settings, service="s3-bridge")
    stop = stop_on_signals()
    registry = new_registry()
    metrics = BridgeMetrics(registry)
    with configured():
        # Found out now: the publisher connects at the first message, which would come back without end.
        Producer(producer_config(settings.kafka_bootstrap, settings.kafka_config))
    publisher = KafkaPublisher(
        bootstrap=settings.kafka_bootstrap,
        topic=Topics(settings.topic_prefix).uploaded,
        config=settings.kafka_config,
    )
    poller = QueuePoller(
        sqs=sqs_client(poll_seconds=settings.poll_seconds),
        queue_url=settings.queue_url,
        handle=partial(bridge, bucket=settings.bucket, publisher=publisher, timeout=settings.publish_seconds),
        poll_seconds=settings.poll_seconds,
        handled=metrics.batch,
    )
    metrics.watch(poller)

    def live() -> dict[str, object]:
        silence = time.monotonic() - poller.last_poll
        if silence > 2 * settings.poll_seconds + settings.publish_seconds + SLACK_SECONDS:
            raise RuntimeError(f"the poller stands still for {silence:.0f} s")
        return {}

    def ready() -> dict[str, object]:
        if poller.failures >= FAILING_POLLS:
            raise RuntimeError(f"{poller.failures} polls in a row failed: SQS or Kafka does not answer")
        return live()

    with (
        tracing(service="s3-bridge"),
        health_server(
            host=settings.health_host, port=settings.health_port, live=live, ready=ready, metrics=exposition(registry)
        ) as port,
    ):
        log.info("poller_started", extra={"queue_url": settings.queue_url, "health_port": port})
        poller.run(stop)
    log.info("poller_stopped")
