"""The bridge for those without Lambda: a container that receives, publishes and deletes what was acknowledged."""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from darkroom.runtime.s3 import aws_client, aws_session
from s3_bridge.bridge import Message, Result, sent_at

log = logging.getLogger(__name__)

BATCH = 10
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0

Handle = Callable[[Sequence[Message]], Result]


class QueuePoller:
    """Takes messages from one queue and deletes those that ``handle`` does not report as failed."""

    def __init__(
        self,
        *,
        sqs: Any,
        queue_url: str,
        handle: Handle,
        poll_seconds: int,
        handled: Callable[[Result], None] = lambda _: None,
    ) -> None:
        """``handled`` is told what became of each batch."""
        self._sqs = sqs
        self._queue_url = queue_url
        self._handle = handle
        self._poll_seconds = poll_seconds
        self._handled = handled
        self.failures = 0
        """Polls in a row that failed as a whole."""
        self.last_poll = time.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set; the batch in hand is finished.

        While SQS or Kafka fails, it pauses longer and longer, so that an outage uses up few of a message's receives.
        """
        while not stop.is_set():
            self.failures = 0 if self._succeeds() else self.failures + 1
            self.last_poll = time.monotonic()
            if self.failures:
                longest = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(self.failures, 10))
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
        self._handled(result)
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
    return aws_client(aws_session(), "sqs", config=config)
