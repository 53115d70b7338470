"""The Lambda function: an SQS batch in, the ids of the messages that must come back out.

The batch is published as a whole and flushed once, which Powertools' BatchProcessor, made for one record after another,
cannot do; its other trait is not wanted either: it raises when all records failed, and the queue would then not learn
which messages were malformed. The response has the same form.
"""

import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from darkroom.contracts.topics import Topics
from darkroom.runtime.redaction import Redactor, secrets_in
from darkroom.runtime.settings import load
from darkroom.runtime.tracing import Flush, tracing
from s3_bridge.bridge import Message, Publisher, Result, bridge, sent_at
from s3_bridge.notification import LOUD
from s3_bridge.publisher import KafkaPublisher
from s3_bridge.settings import FunctionSettings

if TYPE_CHECKING:
    # Only names of types; at run time the module would load every event that Lambda knows.
    from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse

# The loggers below this name write through Powertools' formatter: one JSON object a line, with the request's id.
SERVICE = "s3_bridge"
METRICS_NAMESPACE = "Darkroom"
# Of the invocation's time: to purge what was not acknowledged and to answer.
MARGIN_SECONDS = 1.0
# A receiver of traces that is away must not keep events from being acknowledged for long.
FLUSH_SECONDS = 2.0
_FOR_LIFE = ExitStack()

Event = dict[str, Any]
Entry = Callable[[Event, LambdaContext], "PartialItemFailureResponse"]


def handler(event: Event, context: LambdaContext) -> "PartialItemFailureResponse":
    """What Lambda calls. Settings are read and Kafka is connected at the first call of a process.

    Raises:
        SystemExit: settings are missing or wrong; every message comes back.
        KafkaException: the settings for Kafka are not librdkafka's; every message comes back.

    """
    return _composed()(event, context)


@cache
def _composed() -> Entry:
    settings = load(FunctionSettings)
    kafka_config = {**settings.kafka_config, **_secret_config(settings.kafka_config_secret)}
    publisher = KafkaPublisher(
        bootstrap=settings.kafka_bootstrap,
        topic=Topics(settings.topic_prefix).uploaded,
        config=kafka_config,
    )
    redactor = Redactor(settings.secrets() | secrets_in({"kafka_config": kafka_config}, {}))
    # Entered for as long as the process lives: nobody tells a function that it ends.
    flush = _FOR_LIFE.enter_context(tracing(service="s3-bridge"))
    return compose(
        bucket=settings.bucket, publisher=publisher, log_level=settings.log_level, redactor=redactor, flush=flush
    )


def compose(
    *,
    bucket: str,
    publisher: Publisher,
    log_level: str = "INFO",
    redactor: Redactor | None = None,
    flush: Flush = lambda _seconds: None,
) -> Entry:
    """The function with its dependencies. ``flush`` sends the batch's spans before the process may be frozen."""
    logger = Logger(service=SERVICE, level=log_level, logger_formatter=_Formatter(redactor or Redactor()))
    metrics = Metrics(namespace=METRICS_NAMESPACE, service=SERVICE)

    @logger.inject_lambda_context
    @metrics.log_metrics
    def entry(event: Event, context: LambdaContext) -> "PartialItemFailureResponse":
        sqs_records: list[Event] = event["Records"]
        result = bridge(
            [_message(record) for record in sqs_records],
            bucket=bucket,
            publisher=publisher,
            timeout=context.get_remaining_time_in_millis() / 1000 - MARGIN_SECONDS,
        )
        _count(metrics, result)
        flush(min(FLUSH_SECONDS, max(0.0, context.get_remaining_time_in_millis() / 1000 - MARGIN_SECONDS / 2)))
        return response(sqs_records, result.failed)

    return entry


class _Formatter(LambdaPowertoolsFormatter):
    """Lines with the keys that the other services' lines have, and without secrets."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def serialize(self, log: Any) -> str:
        """One line."""
        told = {"event": log.get("message"), **{name: value for name, value in log.items() if name != "message"}}
        return super().serialize(self._redactor.fields(told))


def response(sqs_records: list[Event], failed: tuple[int, ...]) -> "PartialItemFailureResponse":
    """Lambda's partial batch response.

    A message without an id cannot be named. If it failed, an empty id stands for it, upon which Lambda takes the whole
    batch as failed: messages then repeat, with the same event ids, and none is lost.
    """
    return {"batchItemFailures": [{"itemIdentifier": sqs_records[place].get("messageId") or ""} for place in failed]}


def _message(record: Event) -> Message:
    attributes = record.get("attributes") or {}
    return Message(record.get("messageId"), record.get("body"), sent_at(attributes.get("SentTimestamp")))


def _count(metrics: Metrics, result: Result) -> None:
    for name, value in (
        ("EventsPublished", result.published),
        ("MessagesFailed", len(result.failed)),
        ("MessagesMalformed", result.malformed),
        ("AnnouncementsIgnored", result.ignored.total()),
        ("AnnouncementsSuspect", sum(result.ignored[reason] for reason in LOUD)),
    ):
        metrics.add_metric(name, MetricUnit.Count, value)


def _secret_config(arn: str | None) -> dict[str, Any]:
    if arn is None:
        return {}
    # Brings boto3, which Lambda's runtime has; without a secret nobody pays for loading it.
    from aws_lambda_powertools.utilities import parameters

    config: dict[str, Any] = json.loads(parameters.get_secret(arn))
    return config
