"""The sweeper as a program: ``darkroom sweep``, or ``python -m darkroom.life`` where only the sweeper is installed."""

import threading
from contextlib import ExitStack
from datetime import timedelta

import structlog
from pydantic import Field
from pymongo.errors import PyMongoError

from darkroom.life.objects import ObjectStore
from darkroom.life.sweep import Sweeper, Swept
from darkroom.runtime import logging
from darkroom.runtime.leased import LeasedJob
from darkroom.runtime.mongo import check_replica_set, connect, ensure_indexes
from darkroom.runtime.s3 import s3_client
from darkroom.runtime.settings import LifeSettings, LogSettings, MongoSettings, S3Settings, load
from darkroom.runtime.shutdown import stop_on_signals

log = structlog.get_logger()


class Settings(MongoSettings, S3Settings, LifeSettings, LogSettings):
    """What a sweep can be told."""

    sweep_lease_seconds: float = Field(default=60.0, ge=3, description="how long a sweep that died keeps others out")


def sweep(*, every: float | None = None) -> Swept | None:
    """Sweep once, or every so many seconds until SIGTERM or SIGINT. Gives what the last sweep did; None: another one
    was sweeping.

    Raises:
        SystemExit: a setting is missing or wrong.
        pymongo.errors.PyMongoError: the database cannot be used, at the start or in a single sweep.

    """
    settings = load(Settings)
    logging.begin(settings, service="sweeper")
    stop = stop_on_signals()
    with ExitStack() as stack:
        mongo = stack.enter_context(connect(settings.mongo_url.get_secret_value(), appname="darkroom-sweeper"))
        check_replica_set(mongo.admin.command("hello"))
        db = mongo[settings.mongo_database]
        ensure_indexes(db, Sweeper.indexes())
        sweeper = Sweeper(
            client=mongo,
            db=db,
            objects=ObjectStore(s3_client(), bucket=settings.bucket),
            job=LeasedJob(db, "sweep", settings.sweep_lease_seconds),
            uploading=timedelta(hours=settings.uploading_hours),
            retention=timedelta(days=settings.trash_days),
        )
        return sweeper.run(stop) if every is None else _again_and_again(sweeper, every, stop)


def _again_and_again(sweeper: Sweeper, every: float, stop: threading.Event) -> Swept | None:
    swept = None
    while not stop.is_set():
        try:
            swept = sweeper.run(stop)
        except PyMongoError as error:
            # Whatever was not done is still due in the next round.
            log.warning("sweep_failed", error=type(error).__name__, reason=str(error)[:300])
        stop.wait(every)
    return swept
