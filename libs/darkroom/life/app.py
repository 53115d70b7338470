"""The sweeper as a program: ``darkroom sweep``, or ``python -m darkroom.life`` where only the sweeper is installed."""

from contextlib import ExitStack
from datetime import timedelta

import structlog
from pydantic import Field
from pymongo.errors import PyMongoError

from darkroom.life.objects import ObjectStore
from darkroom.life.sweep import Sweeper, Swept
from darkroom.metrics.keeping import SweeperMetrics
from darkroom.metrics.registry import exposition, new_registry
from darkroom.runtime import logging
from darkroom.runtime.health import health_server
from darkroom.runtime.leased import LeasedJob
from darkroom.runtime.mongo import check_replica_set, connect, ensure_indexes, required
from darkroom.runtime.periodic import Periodic, PeriodicJobs
from darkroom.runtime.s3 import s3_client
from darkroom.runtime.settings import HealthSettings, LifeSettings, LogSettings, MongoSettings, S3Settings, load
from darkroom.runtime.shutdown import stop_on_signals

log = structlog.get_logger()


class Settings(MongoSettings, S3Settings, LifeSettings, LogSettings, HealthSettings):
    """What a sweep can be told."""

    sweep_lease_seconds: float = Field(
        default=60.0, ge=3, le=3600, description="how long a sweep that died keeps others out"
    )


def sweep(*, every: float | None = None) -> Swept | None:
    """Sweep once, or every so many seconds until SIGTERM or SIGINT. Gives what the last sweep did; None: another one
    was sweeping.

    Raises:
        SystemExit: a setting is missing or wrong.
        StartRefused: MongoDB cannot be used, or the health port is taken.
        pymongo.errors.PyMongoError: a single sweep ended early.

    """
    settings = load(Settings)
    logging.begin(settings, service="sweeper")
    stop = stop_on_signals()
    with ExitStack() as stack:
        mongo = stack.enter_context(connect(settings.mongo_url.get_secret_value(), appname="darkroom-sweeper"))
        db = mongo[settings.mongo_database]
        with required():
            check_replica_set(mongo.admin.command("hello"))
            ensure_indexes(db, Sweeper.indexes())
        sweeper = Sweeper(
            client=mongo,
            db=db,
            objects=ObjectStore(s3_client(), bucket=settings.bucket),
            job=LeasedJob(db, "sweep", settings.sweep_lease_seconds),
            uploading=timedelta(hours=settings.uploading_hours),
            retention=timedelta(days=settings.trash_days),
        )
        if every is None:
            return sweeper.run(stop)
        registry = new_registry()
        metrics = SweeperMetrics(registry, last_end=sweeper.job.last_end)
        last: Swept | None = None

        def once() -> None:
            nonlocal last
            last = sweeper.run(stop)
            metrics.swept(None if last is None else vars(last))

        jobs = PeriodicJobs(
            [Periodic(name="sweep", every=every, run=once, outages=(PyMongoError,), on_outage=metrics.failed)],
            stop=stop,
        )
        port = stack.enter_context(
            health_server(
                host=settings.health_host,
                port=settings.health_port,
                live=dict,
                ready=jobs.ready,
                metrics=exposition(registry),
            )
        )
        log.info("sweeper_started", every=every, health_port=port)
        jobs.run()
        return last
