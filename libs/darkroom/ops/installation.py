"""The one place where operations read settings and connect: everything else is given an ``Installation``."""

import contextlib
import getpass
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.utils import parse_timestamp
from pydantic import Field

from darkroom.contracts.topics import Topics
from darkroom.inbox import Inbox
from darkroom.ops.topics import Offsets
from darkroom.runtime.mongo import Client, Db, check_replica_set, connect
from darkroom.runtime.s3 import aws_client, s3_client
from darkroom.runtime.settings import HttpUrl, HttpUrls, KafkaSettings, MongoSettings, S3Settings

READERS = 8
"""Requests to S3 at one time."""


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # In a container the user is often a mere number.
        return f"user {os.getuid()}"


class OpsSettings(MongoSettings, KafkaSettings, S3Settings):
    """What operations must know of the installation: the same variables as the services."""

    queue_url: HttpUrl | None = Field(default=None, description="URL of the SQS queue that S3 notifies")
    dlq_url: HttpUrl | None = Field(
        default=None, description="URL of its dead-letter queue; by default the one that the queue's policy names"
    )
    processor_group: str = Field(default="darkroom.processor", description="the processors' group and inbox consumer")
    inbox_keep_days: float = Field(default=90, ge=1, le=3650, description="how long done events are remembered")
    health_urls: HttpUrls = Field(
        default=(), description="what `status` asks: addresses of /readyz, separated by commas"
    )
    operator: str = Field(default_factory=_login, min_length=1, description="who is named in audit events")


class NoDeadLetterQueue(Exception):
    """The queue's policy names none. The message says which variable to set."""


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The SQS queue that S3 notifies, and where its messages go that nobody could handle."""

    client: Any
    url: str
    known_dlq_url: str | None = None

    @cached_property
    def dlq_url(self) -> str:
        """The dead-letter queue: the one that was named, or else the one that the queue's policy names.

        Raises:
            NoDeadLetterQueue: there is none.
            ClientError, BotoCoreError: SQS refused or did not answer.

        """
        return self.known_dlq_url or _dlq(self.client, self.url)

    def depths(self) -> tuple[int, int]:
        """About how many messages the queue and its dead-letter queue hold, those being worked on among them."""
        return self._depth(self.url), self._depth(self.dlq_url)

    def _depth(self, url: str) -> int:
        names = [f"ApproximateNumberOfMessages{suffix}" for suffix in ("", "NotVisible", "Delayed")]
        found = self.client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return sum(int(found.get(name, 0)) for name in names)


@dataclass(frozen=True, kw_only=True)
class Installation:
    """Clients of everything. ``by`` is the operator's name. Thread-safe."""

    mongo: Client
    db: Db
    s3: Any
    bucket: str
    bootstrap: str
    topics: Topics
    group: str
    by: str
    inbox: Inbox
    queue: Queue | None = None
    kafka_config: Mapping[str, Any] = field(default_factory=dict)
    health_urls: tuple[str, ...] = ()

    def now(self) -> datetime:
        """The time of MongoDB's server, by which every lease goes."""
        moment: datetime = self.db.command("hello")["localTime"]
        return moment.replace(tzinfo=UTC)  # commands are answered without a zone, in UTC

    def offsets(self) -> Offsets:
        """Asks brokers for offsets, as the processors' group; to be used as a context manager."""
        return Offsets(self.bootstrap, group=self.group, extra=self.kafka_config)


@contextlib.contextmanager
def connected(settings: OpsSettings) -> Iterator[Installation]:
    """Connect to everything that the settings name, and close it again.

    Raises:
        PyMongoError: MongoDB does not answer or refuses.
        NotAReplicaSet: the server keeps no transactions.

    """
    with contextlib.ExitStack() as stack:
        mongo = stack.enter_context(connect(settings.mongo_url.get_secret_value(), appname="darkroom-ops"))
        check_replica_set(mongo.admin.command("hello"))
        db = mongo[settings.mongo_database]
        session = session_for_listings(region_name=os.environ.get("AWS_REGION"))
        s3 = s3_client(session=session, pool=2 * READERS)
        stack.callback(s3.close)
        queue = None
        if settings.queue_url is not None:
            sqs = aws_client(session, "sqs", config=Config(connect_timeout=5, read_timeout=30))
            stack.callback(sqs.close)
            queue = Queue(client=sqs, url=settings.queue_url, known_dlq_url=settings.dlq_url)
        yield Installation(
            mongo=mongo,
            db=db,
            s3=s3,
            bucket=settings.bucket,
            bootstrap=settings.kafka_bootstrap,
            topics=Topics(settings.topic_prefix),
            group=settings.processor_group,
            by=settings.operator,
            inbox=Inbox(
                db,
                consumer=settings.processor_group,
                lease_seconds=30.0,
                keep_seconds=settings.inbox_keep_days * 86_400,
            ),
            queue=queue,
            kafka_config=settings.kafka_config,
            health_urls=settings.health_urls,
        )


def session_for_listings(**given: Any) -> Any:
    """A boto3 session that reads times quickly: with botocore's own way most of a long listing's time goes there."""
    core = botocore.session.get_session()
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_moment)
    return boto3.session.Session(botocore_session=core, **given)


def _moment(value: Any) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        # Not all services write times as S3's listings do.
        moment: datetime = parse_timestamp(value)
        return moment


def _dlq(sqs: Any, queue_url: str) -> str:
    attributes = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["RedrivePolicy"]).get("Attributes", {})
    arn = json.loads(attributes.get("RedrivePolicy", "{}")).get("deadLetterTargetArn")
    if arn is None:
        raise NoDeadLetterQueue(f"DARKROOM_QUEUE_URL: {queue_url} names no dead-letter queue; set DARKROOM_DLQ_URL")
    _, _, _, _, account, name = arn.split(":")
    url: str = sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account)["QueueUrl"]
    return url
