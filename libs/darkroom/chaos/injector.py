"""Commits the faults of a plan, and heals each before the next of its lane."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from confluent_kafka import KafkaException
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from darkroom.chaos.arena import Arena
from darkroom.chaos.faults import Fault, Planned
from darkroom.chaos.messages import Messages, pick
from darkroom.chaos.proxy import Trouble
from darkroom.contracts.events import AssetUploaded
from darkroom.local.errors import LocalServerError
from darkroom.local.ports import HOST
from darkroom.local.processes import SupervisedProcess
from darkroom.ops.topics import TopicRecord

START_SECONDS = 120.0
"""A service that is started while its database is down ends again; whoever runs it starts it again, for so long."""
WATCH_SECONDS = 0.5
PRIMARY_SECONDS = 30.0
FAILURES = (LocalServerError, PyMongoError, KafkaException, BufferError, OSError)
"""What committing or healing a fault may raise; it is remarked, and the next one's turn comes."""
TROUBLES = {
    Fault.S3_SLOW_DOWN: Trouble.SLOW_DOWN,
    Fault.S3_SLOW: Trouble.SLOW,
    Fault.S3_CUT: Trouble.CUT,
}


@dataclass(frozen=True)
class Injected:
    """One fault that was committed. Seconds since the start; ``healed`` is when all was well again."""

    planned: Planned
    target: str
    began: float
    healed: float


class Injector:
    """Runs the lanes of a plan beside each other until ``stop``. ``uploaded`` are the records there are to repeat."""

    def __init__(
        self,
        arena: Arena,
        lanes: Sequence[Sequence[Planned]],
        *,
        messages: Messages,
        uploaded: Sequence[TopicRecord],
    ) -> None:
        self._arena = arena
        self._lanes = lanes
        self._messages = messages
        self._uploaded = uploaded
        self._stop = threading.Event()
        self._lock = threading.RLock()
        self._touched: set[SupervisedProcess] = set()
        self._threads = [
            threading.Thread(target=self._run, args=(lane,), name=f"faults-{number}", daemon=True)
            for number, lane in enumerate(lanes)
        ]
        self._watch = threading.Thread(target=self._watch_deaths, name="deaths", daemon=True)
        self._watch_over = threading.Event()
        self._begin = 0.0
        self.injected: list[Injected] = []
        self.deaths: list[str] = []
        self.remarks: list[str] = []
        self.aws_windows: list[tuple[float, float]] = []
        """Monotonic times from the wish to stop the AWS endpoint until it was back."""

    def start(self) -> None:
        """Begin, now."""
        self._begin = time.monotonic()
        for thread in (*self._threads, self._watch):
            thread.start()

    def stop(self) -> None:
        """Commit no further fault, heal the running ones, and return when every process runs."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for process in self._arena.lasting:
            if not process.running:
                self._start(process)

    def close(self) -> None:
        """End the watch over processes that end by themselves."""
        self._stop.set()
        self._watch_over.set()
        self._watch.join()

    def _run(self, lane: Sequence[Planned]) -> None:
        for planned in lane:
            if self._stop.wait(max(0.0, self._begin + planned.at - time.monotonic())):
                return
            began = time.monotonic() - self._begin
            try:
                target = self._commit(planned)
            except FAILURES as error:
                target = f"gave up: {type(error).__name__}"
                self._remark(f"{planned.fault}: {error}")
            self.injected.append(Injected(planned, target, began, time.monotonic() - self._begin))

    def _commit(self, planned: Planned) -> str:
        match planned.fault:
            case Fault.PROCESSOR_KILL:
                return self._kill(self._arena.processors, planned)
            case Fault.RELAY_KILL:
                return self._kill(self._arena.stack.services["outbox_relay"], planned)
            case Fault.API_KILL:
                return self._kill(self._arena.stack.services["asset_api"], planned)
            case Fault.BROKER_KILL:
                return self._kill(self._arena.brokers, planned)
            case Fault.PROCESSOR_STALL:
                return self._stall(self._arena.processors, planned)
            case Fault.RELAY_STALL:
                return self._stall(self._arena.stack.services["outbox_relay"], planned)
            case Fault.API_STALL:
                return self._stall(self._arena.stack.services["asset_api"], planned)
            case Fault.S3_SLOW_DOWN | Fault.S3_SLOW | Fault.S3_CUT:
                return self._trouble_s3(planned)
            case _:
                return self._others[planned.fault](self, planned)

    def _kill(self, processes: Sequence[SupervisedProcess], planned: Planned) -> str:
        process = processes[int(planned.choice * len(processes))]
        with self._touching(process):
            process.kill()
            self._stop.wait(planned.seconds)
            self._start(process)
        return process.name

    def _stall(self, processes: Sequence[SupervisedProcess], planned: Planned) -> str:
        process = processes[int(planned.choice * len(processes))]
        process.pause()
        try:
            self._stop.wait(planned.seconds)
        finally:
            process.resume()
        return process.name

    def _trouble_s3(self, planned: Planned) -> str:
        share = 0.3 + 0.7 * planned.choice
        before = self._arena.proxy.hits
        with self._arena.proxy.trouble(TROUBLES[planned.fault], share=share):
            self._stop.wait(planned.seconds)
        return f"{share:.0%} of the requests: {self._arena.proxy.hits - before}"

    def _rolling(self, planned: Planned) -> str:
        for process in self._arena.processors:
            with self._touching(process):
                self._end_orderly(process)
                self._start(process)
            if self._stop.wait(planned.seconds):
                break
        return "all processors"

    def _scale(self, planned: Planned) -> str:
        count = len(self._arena.processors)
        first = int(planned.choice * count)
        one, two = self._arena.processors[first], self._arena.processors[(first + 1) % count]
        with self._touching(one), self._touching(two):
            self._end_orderly(one)
            self._stop.wait(planned.seconds)
            self._end_orderly(two)
            for process in (one, self._arena.spare_processor, two):
                self._start(process)
        self._stop.wait(planned.seconds)
        self._end_orderly(self._arena.spare_processor)
        return f"{count} → {count - 1} → {count - 2} → {count + 1} → {count}"

    def _hit_function(self, planned: Planned) -> str:
        workers = children_of(self._arena.aws.pid)
        for worker in workers:
            _signal(worker, signal.SIGKILL if planned.fault is Fault.LAMBDA_KILL else signal.SIGSTOP)
        if planned.fault is Fault.LAMBDA_STALL:
            self._stop.wait(planned.seconds)
            for worker in set(workers) & set(children_of(self._arena.aws.pid)):
                _signal(worker, signal.SIGCONT)
        return f"{len(workers)} workers"

    def _restart_aws(self, planned: Planned) -> str:
        process = self._arena.aws
        with self._touching(process):
            began = time.monotonic()
            self._end_orderly(process)
            self._stop.wait(planned.seconds)
            self._start(process)
            self.aws_windows.append((began, time.monotonic()))
        return process.name

    def _step_down(self, planned: Planned) -> str:
        primary = self._primary()
        port = dict(zip(self._arena.mongo.members, self._arena.mongo.ports, strict=True))[primary]
        with MongoClient[dict[str, object]](HOST, port, directConnection=True) as client:
            client.admin.command("replSetStepDown", max(1, round(planned.seconds)), secondaryCatchUpPeriodSecs=1)
        self._primary()
        return primary.name

    def _kill_primary(self, planned: Planned) -> str:
        primary = self._primary()
        with self._touching(primary):
            primary.kill()
            self._stop.wait(planned.seconds)
            self._start(primary)
        self._primary()
        return primary.name

    def _notify(self, planned: Planned) -> str:
        record = pick(self._uploaded, planned.choice)
        if record is None or record.event is None or not isinstance(record.event.data, AssetUploaded):
            return "nothing there yet"
        late = planned.fault is Fault.SQS_LATE
        times = 1 if late else 1 + int(planned.choice * 1000) % 3
        uploaded = record.event.data
        return self._messages.notify(uploaded.bucket, uploaded, times=times, delay=round(planned.seconds))

    def _repeat(self, planned: Planned) -> str:
        record = pick(self._uploaded, planned.choice)
        if record is None:
            return "nothing there yet"
        times = 1 + int(planned.choice * 1000) % 3
        self._messages.repeat(record, times=times)
        return f"{times} x partition {record.partition} offset {record.offset}"

    def _spoil(self, planned: Planned) -> str:
        return self._messages.spoil(int(planned.choice * 1000), like=pick(self._uploaded, planned.choice))

    _others: ClassVar[dict[Fault, Callable[["Injector", Planned], str]]] = {
        Fault.PROCESSOR_ROLLING: _rolling,
        Fault.PROCESSOR_SCALE: _scale,
        Fault.LAMBDA_KILL: _hit_function,
        Fault.LAMBDA_STALL: _hit_function,
        Fault.AWS_RESTART: _restart_aws,
        Fault.MONGO_STEPDOWN: _step_down,
        Fault.MONGO_KILL: _kill_primary,
        Fault.SQS_DUPLICATE: _notify,
        Fault.SQS_LATE: _notify,
        Fault.KAFKA_DUPLICATE: _repeat,
        Fault.KAFKA_GARBAGE: _spoil,
    }

    def _primary(self) -> SupervisedProcess:
        deadline = time.monotonic() + PRIMARY_SECONDS
        while True:
            try:
                return self._arena.mongo.primary()
            except LocalServerError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _end_orderly(self, process: SupervisedProcess) -> None:
        began = time.monotonic()
        process.stop()
        if process.exit_code != 0:
            took = time.monotonic() - began
            self._remark(f"{process.name}: ended with {process.exit_code} and not 0, {took:.1f} s after SIGTERM")

    def _start(self, process: SupervisedProcess) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                process.start()
            except LocalServerError as error:
                if time.monotonic() > deadline:
                    raise
                self._remark(f"{process.name} did not start at once: {str(error).splitlines()[0]}")
            else:
                return

    def _remark(self, text: str) -> None:
        with self._lock:
            self.remarks.append(f"{time.monotonic() - self._begin:.1f} s: {text}")

    @contextlib.contextmanager
    def _touching(self, process: SupervisedProcess) -> Iterator[None]:
        """While the block runs, nobody wonders if the process ends."""
        with self._lock:
            self._touched.add(process)
        try:
            yield
        finally:
            with self._lock:
                self._touched.discard(process)

    def _watch_deaths(self) -> None:
        while not self._watch_over.wait(WATCH_SECONDS):
            for process in self._arena.lasting:
                with self._lock:
                    if process in self._touched or process.running:
                        continue
                    self._touched.add(process)
                at = time.monotonic() - self._begin
                last = process.log_tail().splitlines()[-1:]
                self.deaths.append(f"{process.name} ended by itself with {process.exit_code} at {at:.1f} s: {last}")
                try:
                    self._start(process)
                except LocalServerError as error:
                    self._remark(f"{process.name}: {error}")
                finally:
                    with self._lock:
                        self._touched.discard(process)


def children_of(pid: int) -> list[int]:
    """The processes that a process started (Linux; elsewhere none are found)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # "pid (command) state parent …"; the command may hold blanks and brackets
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it ended while we looked
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
