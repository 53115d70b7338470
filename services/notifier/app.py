"""The composition root of the notifier: reads settings, connects, and runs until it is told to stop."""

import time
from contextlib import ExitStack

import httpx
import structlog
from botocore.config import Config

from darkroom.contracts.topics import Topics
from darkroom.inbox import Inbox
from darkroom.inbox.consumer import Bounds, OrderedConsumer, consumer_config
from darkroom.inbox.keeper import LeaseKeeper
from darkroom.metrics.consumption import ConsumptionMetrics
from darkroom.metrics.registry import exposition, new_registry
from darkroom.runtime import logging
from darkroom.runtime.health import health_server
from darkroom.runtime.mongo import connect, ensure_indexes, required
from darkroom.runtime.s3 import aws_client, aws_session, s3_client
from darkroom.runtime.settings import load
from darkroom.runtime.shutdown import stop_on_signals
from darkroom.runtime.tracing import tracing
from notifier.channels import Channel, Email, SignedWebhook
from notifier.journal import Journal
from notifier.links import Links
from notifier.metrics import NotifierMetrics
from notifier.notify import Notifier
from notifier.settings import Settings

log = structlog.get_logger()

POLL_SILENCE = 30.0
"""Seconds without a poll after which the process is no longer alive in any useful sense."""


def main() -> None:
    """Run a notifier, configured by the environment, until SIGTERM or SIGINT."""
    settings = load(Settings)
    logging.begin(settings, service="notifier")
    stop = stop_on_signals()
    registry = new_registry()
    consumption = ConsumptionMetrics(registry)
    with ExitStack() as stack:
        stack.enter_context(tracing(service="notifier"))
        mongo = stack.enter_context(connect(settings.mongo_url.get_secret_value(), appname="darkroom-notifier"))
        db = mongo[settings.mongo_database]
        with required():
            ensure_indexes(db, {**Inbox.indexes(), **Journal.indexes()})
        inbox = Inbox(
            db,
            consumer=settings.notifier_group,
            lease_seconds=settings.notifier_lease_seconds,
            observer=consumption,
        )
        keeper = LeaseKeeper(inbox)
        stack.callback(keeper.close)
        journal = Journal(db)
        session = aws_session()
        links = Links(
            session, s3_client(session=session), bucket=settings.bucket, seconds=settings.notifier_link_seconds
        )
        links.check()
        channels = _channels(settings, session, stack)
        consumer = OrderedConsumer(
            config=consumer_config(
                settings.kafka_bootstrap,
                group=settings.notifier_group,
                extra=settings.kafka_config,
                session_seconds=settings.session_seconds,
            ),
            topics=[Topics(settings.topic_prefix).events],
            handler=Notifier(
                inbox=inbox,
                keeper=keeper,
                journal=journal,
                links=links,
                channels=channels,
                max_attempts=settings.notifier_max_attempts,
                backoff_seconds=settings.notifier_backoff_seconds,
                observer=NotifierMetrics(registry, channels=[channel.name for channel in channels]),
            ),
            slots=settings.notifier_slots,
            bounds=Bounds(grace=settings.notifier_grace_seconds),
            observer=consumption,
        )
        consumption.watch(consumer)

        def live() -> dict[str, object]:
            silence = time.monotonic() - consumer.last_poll
            if silence > POLL_SILENCE:
                raise RuntimeError(f"the poll thread stands still for {silence:.0f} s")
            return {"assigned": consumer.assigned}

        def ready() -> dict[str, object]:
            if consumer.outage is not None:
                raise RuntimeError(f"waiting for {consumer.outage}")
            if (stalled := consumer.state().stalled) > settings.notifier_stalled_seconds:
                raise RuntimeError(f"no record has moved for {stalled:.0f} s, although there are some in hand")
            journal.probe()
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
        log.info("notifier_started", channels=[channel.name for channel in channels], health_port=port)
        consumer.run(stop)
    log.info("notifier_stopped")


def _channels(settings: Settings, session: object, stack: ExitStack) -> list[Channel]:
    channels: list[Channel] = []
    if settings.email_from is not None:
        # One attempt: whether a mail whose answer was lost goes out again is decided here, not in the client.
        once = Config(connect_timeout=5, read_timeout=30, retries={"mode": "standard", "total_max_attempts": 1})
        channels.append(
            Email(
                aws_client(session, "sesv2", config=once),
                sender=settings.email_from,
                to=settings.email_to,
                resend_in_doubt=settings.notifier_resend_in_doubt,
            )
        )
    if settings.webhook_url is not None and settings.webhook_secret is not None:
        client = stack.enter_context(httpx.Client(timeout=settings.webhook_seconds, follow_redirects=False))
        channels.append(
            SignedWebhook(client, url=settings.webhook_url, secret=settings.webhook_secret.get_secret_value())
        )
    return channels
