"""The composition root of the processor: reads settings, connects, and runs until it is told to stop."""

import time
from contextlib import ExitStack

import structlog
from confluent_kafka import Producer

from darkroom.contracts.topics import DEAD_LETTER_BYTES, Topics
from darkroom.inbox import Inbox
from darkroom.inbox.consumer import Bounds, OrderedConsumer, consumer_config
from darkroom.inbox.keeper import LeaseKeeper
from darkroom.life.objects import ObjectStore
from darkroom.metrics.consumption import ConsumptionMetrics
from darkroom.metrics.registry import exposition, new_registry
from darkroom.runtime import logging
from darkroom.runtime.health import health_server
from darkroom.runtime.kafka import configured, producer_config
from darkroom.runtime.mongo import check_replica_set, close, connect, ensure_indexes, required
from darkroom.runtime.s3 import aws_session, s3_client
from darkroom.runtime.settings import load
from darkroom.runtime.shutdown import stop_on_signals
from darkroom.runtime.signer import Signer
from darkroom.runtime.tracing import tracing
from processor import classifier
from processor.classifier import Classifier
from processor.dead_letters import DeadLetters
from processor.direct import Direct
from processor.imaging.pool import DecoderPool
from processor.metrics import ProcessorMetrics
from processor.objects import Bucket
from processor.process import Processor
from processor.rendering import Rendering
from processor.settings import Settings
from processor.store import Store

log = structlog.get_logger()

POLL_SILENCE = 30.0
"""Seconds without a poll after which the process is no longer alive in any useful sense."""


def main() -> None:
    """Run a processor, configured by the environment, until SIGTERM or SIGINT."""
    settings = load(Settings)
    logging.begin(settings, service="processor")
    stop = stop_on_signals()
    topics = Topics(settings.topic_prefix)
    registry = new_registry()
    metrics, consumption = ProcessorMetrics(registry), ConsumptionMetrics(registry)
    with ExitStack() as stack:
        # Children first: they are fresh interpreters that share nothing with the clients made below.
        decoder = stack.enter_context(
            DecoderPool(
                size=settings.processor_decoders,
                memory_bytes=settings.decode_memory_bytes,
                cpu_seconds=settings.decode_cpu_seconds,
                wall_seconds=settings.decode_seconds,
                jobs_per_child=settings.decode_jobs_per_child,
                decoded=metrics.decoded,
            )
        )
        stack.enter_context(tracing(service="processor"))
        mongo = connect(settings.mongo_url.get_secret_value(), appname="darkroom-processor")
        stack.callback(close, mongo)
        db = mongo[settings.mongo_database]
        with required():
            check_replica_set(mongo.admin.command("hello"))
            ensure_indexes(db, Store.indexes())
        inbox = Inbox(
            db,
            consumer=settings.processor_group,
            lease_seconds=settings.lease_seconds,
            keep_seconds=settings.inbox_keep_days * 86_400,
            observer=consumption,
        )
        keeper = LeaseKeeper(inbox)
        stack.callback(keeper.close)
        store = Store(mongo, db, inbox)
        session = aws_session()
        s3 = s3_client(pool=settings.processor_slots + 4, session=session)
        bucket = Bucket(
            s3,
            name=settings.bucket,
            download_seconds=settings.download_seconds,
            direct=Direct(s3, signer=Signer(client=s3, session=session, bucket=settings.bucket)),
        )
        with configured():
            producer = Producer(
                producer_config(settings.kafka_bootstrap, settings.kafka_config, message_max_bytes=DEAD_LETTER_BYTES)
            )
        dead_letters = DeadLetters(producer, topic=topics.uploaded_dlq)
        consumer = OrderedConsumer(
            config=consumer_config(
                settings.kafka_bootstrap,
                group=settings.processor_group,
                extra=settings.kafka_config,
                protocol=settings.group_protocol,
                session_seconds=settings.session_seconds,
            ),
            topics=[topics.uploaded],
            handler=Processor(
                inbox=inbox,
                keeper=keeper,
                store=store,
                rendering=Rendering(
                    bucket=bucket,
                    decoder=decoder,
                    specs=settings.renditions,
                    limits=settings.limits,
                    max_upload_bytes=settings.max_upload_bytes,
                    rejected_originals=settings.rejected_originals,
                    classifier=_classifier(settings),
                ),
                originals=ObjectStore(s3, bucket=settings.bucket),
                dead_letters=dead_letters,
                max_attempts=settings.max_attempts,
                backoff_seconds=settings.backoff_seconds,
                observer=metrics,
            ),
            slots=settings.processor_slots,
            bounds=Bounds(
                unfinished=settings.processor_max_buffered,
                drain=settings.drain_seconds,
                grace=settings.grace_seconds,
            ),
            observer=consumption,
        )
        metrics.watch(decoder)
        consumption.watch(consumer)

        def live() -> dict[str, object]:
            silence = time.monotonic() - consumer.last_poll
            if silence > POLL_SILENCE:
                raise RuntimeError(f"the poll thread stands still for {silence:.0f} s")
            return {"assigned": consumer.assigned}

        def ready() -> dict[str, object]:
            if consumer.outage is not None:
                raise RuntimeError(f"waiting for {consumer.outage}")
            if (stalled := consumer.state().stalled) > settings.stalled_seconds:
                raise RuntimeError(f"no record has moved for {stalled:.0f} s, although there are some in hand")
            store.probe()
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
        log.info("processor_started", instance=settings.processor_instance, health_port=port, topic=topics.uploaded)
        consumer.run(stop)
    log.info("processor_stopped", instance=settings.processor_instance)


def _classifier(settings: Settings) -> Classifier | None:
    if settings.classifier is None:
        return None
    return Classifier(
        classifier.load(settings.classifier),
        seconds=settings.classifier_seconds,
        on_failure=settings.classifier_on_failure,
        limit=settings.processor_slots,
    )
