"""The bridge for those without Lambda: a container that receives, publishes and deletes what was acknowledged."""

import logging
import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka import Producer

from darkroom.contracts.topics import Topics
from darkroom.runtime.kafka import configured, producer_config
from darkroom.runtime.logging import begin
from darkroom.runtime.s3 import aws_session
from darkroom.runtime.settings import load
from darkroom.runtime.shutdown import stop_on_signals
from darkroom.runtime.start import StartRefused
from darkroom.runtime.tracing import tracing
from s3_bridge.bridge import Message, Result, bridge, sent_at
from s3_bridge.publisher import KafkaPublisher
from s3_bridge.settings import PollerSettings

log = logging.getLogger(__name__)

BATCH = 10
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0

Handle = Callable[[Sequence[Message]], Result]


class QueuePoller:
    """Takes messages from one queue and deletes those that ``handle`` does not report as failed."""

    def __init__(self, *, sqs: Any, queue_url: str, handle: Handle, poll_seconds: int) -> None:
        self._sqs = sqs
        self._queue_url = queue_url
        self._handle = handle
        self._poll_seconds = poll_seconds

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set; the batch in hand is finished.

        While SQS or Kafka fails, it pauses longer and longer, so that an outage uses up few of a message's receives.
        """
        failures = 0
        while not stop.is_set():
            failures = 0 if self._succeeds() else failures + 1
            if failures:
                longest = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(failures, 10))
                stop.wait(random.uniform(longest / 2, longest))  # noqa: S311 - spreads pollers, keeps no secret

    def run_once(self) -> Result | None:
        """Receive one batch, handle it and delete what is done; None if nothing came within the poll time.

        Raises:
            ClientError, BotoCoreError: SQS refused or did not answer.

        """
        received = self._sqs.receive_message(
            QueueUrl=self._queue_url,
            MaxNumberOfMessages=BATCH,
            WaitTimeSeconds=self._poll_seconds,
            MessageSystemAttributeNames=["SentTimestamp"],
        ).get("Messages")
        if not received:
            return None
        result = self._handle([_message(message) for message in received])
        failed = set(result.failed)
        self._delete([message for place, message in enumerate(received) if place not in failed])
        return result

    def _succeeds(self) -> bool:
        """Run once; whether there is no reason to pause. One bad message among good ones is no outage."""
        try:
            result = self.run_once()
        except (BotoCoreError, ClientError) as error:
            log.error("queue_unavailable", extra={"reason": str(error)})  # noqa: TRY400 - an outage needs no traceback
            return False
        return result is None or len(result.failed) <= result.malformed

    def _delete(self, messages: Sequence[dict[str, Any]]) -> None:
        if not messages:
            return
        answer = self._sqs.delete_message_batch(
            QueueUrl=self._queue_url,
            Entries=[{"Id": str(place), "ReceiptHandle": m["ReceiptHandle"]} for place, m in enumerate(messages)],
        )
        for failure in answer.get("Failed", []):
            # It comes back and is published again with the same id, which readers know already.
            log.warning("message_not_deleted", extra={"reason": failure.get("Message") or failure.get("Code")})


def _message(received: dict[str, Any]) -> Message:
    attributes = received.get("Attributes", {})
    return Message(received.get("MessageId"), received.get("Body"), sent_at(attributes.get("SentTimestamp")))


def sqs_client(*, poll_seconds: int) -> Any:
    """A client whose receives may take ``poll_seconds``. Region and credentials come by AWS's variables and roles.

    Raises:
        StartRefused: there is no region, or the endpoint is no URL.

    """
    config = Config(connect_timeout=5, read_timeout=poll_seconds + 10, retries={"mode": "standard", "max_attempts": 2})
    try:
        return aws_session().client("sqs", config=config)
    except (BotoCoreError, ValueError) as error:
        raise StartRefused(f"No SQS client can be made (AWS_REGION, AWS_ENDPOINT_URL): {error}") from None


def main() -> None:
    """Run the poller until SIGTERM or SIGINT."""
    settings = load(PollerSettings)
    begin(settings, service="s3-bridge")
    stop = stop_on_signals()
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
    )
    log.info("poller_started", extra={"queue_url": settings.queue_url})
    with tracing(service="s3-bridge"):
        poller.run(stop)
    log.info("poller_stopped")
