"""The sweeper as a program: ``darkroom sweep``, or ``python -m darkroom.life`` where only the sweeper is installed."""

import threading
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
from darkroom.runtime.mongo import check_replica_set, connect, ensure_indexes
from darkroom.runtime.s3 import s3_client
from darkroom.runtime.settings import HealthSettings, LifeSettings, LogSettings, MongoSettings, S3Settings, load
from darkroom.runtime.shutdown import stop_on_signals

log = structlog.get_logger()


class Settings(MongoSettings, S3Settings, LifeSettings, LogSettings, HealthSettings):
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
        if every is None:
            return sweeper.run(stop)
        rounds = _Rounds(sweeper, every, stop)
        port = stack.enter_context(
            health_server(
                host=settings.health_host,
                port=settings.health_port,
                live=dict,
                ready=rounds.ready,
                metrics=exposition(rounds.registry),
            )
        )
        log.info("sweeper_started", every=every, health_port=port)
        return rounds.run()


class _Rounds:
    """Sweeps again and again, and can say how that goes."""

    def __init__(self, sweeper: Sweeper, every: float, stop: threading.Event) -> None:
        self.registry = new_registry()
        self._metrics = SweeperMetrics(self.registry)
        self._sweeper = sweeper
        self._every = every
        self._stop = stop
        self._failed: str | None = None

    def run(self) -> Swept | None:
        """Until told to stop; gives what the last sweep did."""
        swept = None
        while not self._stop.is_set():
            try:
                swept = self._sweeper.run(self._stop)
            except PyMongoError as error:
                # Whatever was not done is still due in the next round.
                log.warning("sweep_failed", error=type(error).__name__, reason=str(error)[:300])
                self._failed = type(error).__name__
                self._metrics.failed()
            else:
                self._failed = None
                self._metrics.swept(None if swept is None else vars(swept))
            self._stop.wait(self._every)
        return swept

    def ready(self) -> dict[str, object]:
        """Raises RuntimeError when the last sweep ended early."""
        if self._failed is not None:
            raise RuntimeError(f"the last sweep failed: {self._failed}")
        return {}
