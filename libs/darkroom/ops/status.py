"""How an installation is: what every part says of itself, and what of it somebody should look at."""

import json
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import datetime
from http.client import HTTPException
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pymongo.errors import PyMongoError

from darkroom.assets import Status
from darkroom.assets.documents import COLLECTION as ASSETS
from darkroom.inbox.leases import COLLECTION as INBOX
from darkroom.inbox.leases import DEAD, OPEN_OR_DEAD, PROCESSING
from darkroom.ops import audit
from darkroom.ops.findings import Patience
from darkroom.ops.installation import Installation, NoDeadLetterQueue
from darkroom.ops.letters import Source
from darkroom.ops.reconcile import Reconciler
from darkroom.ops.topics import of_coordinator
from darkroom.outbox import COLLECTION as OUTBOX
from darkroom.outbox import SHARDS
from darkroom.runtime import leased

RELAY_SHARDS, RELAY_MEMBERS = "relay_shards", "relay_members"
HEALTH_SECONDS = 3.0
GROUP_SECONDS = 10.0
SAMPLE = 100
"""So many of the oldest unfinished assets of each status are looked for in S3."""
_FAILURES = (PyMongoError, KafkaException, ClientError, BotoCoreError, NoDeadLetterQueue, TimeoutError)


@dataclass(frozen=True)
class Service:
    """What one address of /readyz answered: ``problem`` is None when the service is fit."""

    url: str
    facts: Mapping[str, Any]
    problem: str | None = None


@dataclass(frozen=True)
class Partition:
    """One partition of ``assets.uploaded``: the offset behind its last record, and how far the processors are."""

    number: int
    end: int
    committed: int

    @property
    def lag(self) -> int:
        """Records not finished yet."""
        return self.end - self.committed


@dataclass(frozen=True)
class Waiting:
    """Things that wait: how many, and since how many seconds the oldest of them."""

    count: int = 0
    oldest: float | None = None


@dataclass
class Snapshot:
    """One look at everything. A part that could not be asked is in ``unknown``, with the reason."""

    at: datetime
    services: list[Service] = field(default_factory=list)
    processors: int | None = None
    """Members of the consumer group."""
    partitions: list[Partition] = field(default_factory=list)
    relays: dict[str, int] = field(default_factory=dict)
    """Live relays, and how many shards each has."""
    shards_without_relay: int = 0
    unpublished: Waiting = field(default_factory=Waiting)
    under_way: dict[str, Waiting] = field(default_factory=dict)
    """By status: assets that are UPLOADING or PROCESSING."""
    lost: dict[str, int] = field(default_factory=dict)
    """Among the oldest of those: what the reconciler would find."""
    lost_sample: int = 0
    leases_held: Waiting = field(default_factory=Waiting)
    leases_run_out: Waiting = field(default_factory=Waiting)
    backing_off: int = 0
    queued: int | None = None
    letters: dict[str, int | None] = field(default_factory=dict)
    """By source; None where it is not known."""
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        """Records of ``assets.uploaded`` that are not finished."""
        return sum(partition.lag for partition in self.partitions)

    def as_json(self, *, late: float) -> dict[str, Any]:
        """For programs."""
        partitions = [{**asdict(one), "lag": one.lag} for one in self.partitions]
        told = asdict(self) | {"partitions": partitions, "lag": self.lag}
        return told | {"problems": [asdict(problem) for problem in problems(self, late=late)]}


@dataclass(frozen=True)
class Problem:
    """Something to look at, in a sentence, and the command that mends it or tells more."""

    what: str
    mend: str


def look(installation: Installation, *, late: float) -> Snapshot:
    """Ask every part; one that does not answer makes a problem and no failure, except for MongoDB itself.

    ``late`` is after how many seconds an unfinished asset is looked for in S3.

    Raises:
        PyMongoError: MongoDB does not answer.

    """
    snapshot = Snapshot(installation.now())
    parts: dict[str, Callable[[], None]] = {
        "services": lambda: _services(installation, snapshot),
        "Kafka": lambda: _kafka(installation, snapshot),
        "processors": lambda: _processors(installation, snapshot),
        "relays": lambda: _relays(installation, snapshot),
        "outbox": lambda: _outbox(installation, snapshot),
        "assets": lambda: _assets(installation, snapshot),
        "inbox": lambda: _inbox(installation, snapshot),
        "SQS": lambda: _sqs(installation, snapshot),
        "jobs": lambda: _jobs(installation, snapshot),
        "S3": lambda: _lost(installation, snapshot, late),
    }

    def ask(name: str) -> None:
        try:
            parts[name]()
        except _FAILURES as error:
            snapshot.unknown[name] = f"{type(error).__name__}: {error}"

    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(ask, parts))
    return snapshot


def problems(snapshot: Snapshot, *, late: float) -> Iterator[Problem]:
    """What somebody should look at, the worst first. ``late`` is after how many seconds waiting is a problem. Pure."""
    for name, why in snapshot.unknown.items():
        yield Problem(f"{name} could not be asked: {why}", "see to that server first; the rest may follow from it")
    for service in snapshot.services:
        if service.problem is not None:
            yield Problem(
                f"{service.url} is not ready: {service.problem}",
                "look at its log; start it again (what `darkroom up` runs: Ctrl-C there, then `darkroom up` once more)",
            )
    yield from _missing(snapshot, late)
    yield from _late(snapshot, late)
    for kind, count in snapshot.lost.items():
        what = f"{count} of the {snapshot.lost_sample} oldest unfinished assets: {kind}"
        yield Problem(what, "darkroom reconcile --pass unfinished --dry-run")
    for source, depth in snapshot.letters.items():
        if depth:
            yield Problem(f"{depth} letters in {_LETTERS[Source(source)]}", f"darkroom dlq list --source {source}")
    for name, job in snapshot.jobs.items():
        again = "darkroom sweep" if name == "sweep" else "darkroom reconcile --dry-run"
        for kind, count in _left(job).items():
            if count:
                yield Problem(f"{name} left {count} of {kind} when it last ran", again)


def _left(job: Mapping[str, Any]) -> dict[str, int]:
    """What the job could not do, by kind."""
    failed = job.get("failed", {})
    # The reconciler counts by kind; the sweeper has one number.
    by_kind = dict(failed) if isinstance(failed, Mapping) else {"its steps": int(failed)}
    return by_kind | {kind: count for kind, count in job.get("found", {}).items() if kind in _ONLY_TOLD}


_LETTERS = {
    Source.SQS: "SQS's dead-letter queue",
    Source.KAFKA: "Kafka's dead-letter topic",
    Source.INBOX: "the inbox: events that are DEAD",
    Source.OUTBOX: "the outbox: rows that are parked",
}
_ONLY_TOLD = ("original_gone", "inconsistent")


def _missing(snapshot: Snapshot, late: float) -> Iterator[Problem]:
    if snapshot.processors == 0:
        yield Problem("no processor is in the consumer group", "start processors: python -m processor")
    elif snapshot.lag and (snapshot.under_way.get(Status.PROCESSING, Waiting()).oldest or 0) > late:
        yield Problem(f"{snapshot.lag} records wait for the processors", "start more processors, or see why they wait")
    if "relays" not in snapshot.unknown and not snapshot.relays:
        yield Problem(
            "no relay is alive", "start relays: python -m outbox_relay; until then nothing reaches subscribers"
        )
    elif snapshot.shards_without_relay:
        yield Problem(
            f"{snapshot.shards_without_relay} of {SHARDS} shards are owned by no relay",
            "wait one lease (10 s); if it stays so, look at the relays' logs",
        )


def _late(snapshot: Snapshot, late: float) -> Iterator[Problem]:
    waits = snapshot.unpublished.oldest or 0
    if waits > late:
        what = f"the oldest of {snapshot.unpublished.count} unpublished events waits for {waits:.0f} s"
        yield Problem(what, "look at the relays' logs; `darkroom why ASSET` tells of one")
    if (snapshot.leases_run_out.oldest or 0) > 0:
        what = f"{snapshot.leases_run_out.count} leases have run out: whoever held them is gone, and nobody took over"
        yield Problem(what, "start processors: python -m processor; then darkroom reconcile --pass unfinished")
    oldest = snapshot.under_way.get(Status.PROCESSING, Waiting()).oldest or 0
    if oldest > late:
        yield Problem(f"the oldest PROCESSING asset is so for {oldest:.0f} s", "darkroom reconcile --dry-run")


# --- each part ---


def _services(installation: Installation, snapshot: Snapshot) -> None:
    if installation.health_urls:
        with ThreadPoolExecutor(len(installation.health_urls)) as pool:
            snapshot.services = list(pool.map(_service, installation.health_urls))


def _service(url: str) -> Service:
    try:
        with urllib.request.urlopen(url, timeout=HEALTH_SECONDS) as answer:  # noqa: S310 -- the operator's own setting
            return Service(url, json.load(answer))
    except (OSError, ValueError, HTTPException) as error:
        return Service(url, {}, str(error))


def _kafka(installation: Installation, snapshot: Snapshot) -> None:
    topic, dlq = installation.topics.uploaded, installation.topics.uploaded_dlq
    with installation.offsets() as offsets:
        bounds = offsets.bounds([topic, dlq])
        committed = offsets.committed(topic)
    snapshot.partitions = [
        Partition(place[1], high, committed.get(place, low))
        for place, (low, high) in sorted(bounds.items())
        if place[0] == topic
    ]
    lying = sum(high - low for place, (low, high) in bounds.items() if place[0] == dlq)
    done = {"source": str(Source.KAFKA), "done_at": {"$exists": True}}
    snapshot.letters[Source.KAFKA] = max(0, lying - len(installation.db[audit.COLLECTION].distinct("letter", done)))


def group_members(installation: Installation) -> int:
    """How many processors are in the consumer group.

    Raises:
        KafkaException: no broker answered.

    """
    # The client must outlive the future. It is asked for no offsets: that can end the process in librdkafka.
    admin = AdminClient({"log_level": 0, **installation.kafka_config, "bootstrap.servers": installation.bootstrap})

    def members() -> int:
        (future,) = admin.describe_consumer_groups([installation.group], request_timeout=GROUP_SECONDS).values()
        return len(future.result(timeout=GROUP_SECONDS + 1).members)

    return of_coordinator(members)


def _processors(installation: Installation, snapshot: Snapshot) -> None:
    snapshot.processors = group_members(installation)


def _relays(installation: Installation, snapshot: Snapshot) -> None:
    alive = {"$expr": {"$gt": ["$alive_until", "$$NOW"]}}
    relays = {member["_id"]: 0 for member in installation.db[RELAY_MEMBERS].find(alive)}
    owned = installation.db[RELAY_SHARDS].find({"$expr": {"$gt": ["$lease_until", "$$NOW"]}}, {"owner": 1})
    shards = Counter(row["owner"] for row in owned)
    snapshot.relays = relays | dict(shards)
    snapshot.shards_without_relay = SHARDS - shards.total()


def _outbox(installation: Installation, snapshot: Snapshot) -> None:
    parked = {"$cond": [{"$gt": ["$parked_at", None]}, True, False]}
    rows = installation.db[OUTBOX].aggregate(
        [
            {"$match": {"published": False}},
            {"$group": {"_id": parked, "count": {"$sum": 1}, "oldest": {"$min": "$occurred_at"}}},
        ],
        hint="unpublished",
    )
    found = {row["_id"]: row for row in rows}
    snapshot.letters[Source.OUTBOX] = found[True]["count"] if True in found else 0
    if False in found:
        snapshot.unpublished = Waiting(found[False]["count"], _age(snapshot, found[False]["oldest"]))


def _assets(installation: Installation, snapshot: Snapshot) -> None:
    assets = installation.db[ASSETS]
    for status in (Status.UPLOADING, Status.PROCESSING):
        wanted = {"status": str(status)}
        oldest = assets.find_one(wanted, {"updated_at": 1}, sort=[("updated_at", 1)])
        if oldest is not None:
            count = assets.count_documents(wanted)
            snapshot.under_way[status] = Waiting(count, _age(snapshot, oldest["updated_at"]))


def _inbox(installation: Installation, snapshot: Snapshot) -> None:
    rows, mine = installation.db[INBOX], {"consumer": installation.group}
    held, run_out = [], []
    wanted = {"lease_until": 1, "claimed_at": 1}
    for row in rows.find({**mine, "state": PROCESSING}, wanted).hint(OPEN_OR_DEAD):
        if row.get("lease_until") is None:
            snapshot.backing_off += 1
        elif row["lease_until"] > snapshot.at:
            held.append(_age(snapshot, row["claimed_at"]))
        else:
            run_out.append(_age(snapshot, row["lease_until"]))
    snapshot.leases_held = Waiting(len(held), max(held, default=None))
    snapshot.leases_run_out = Waiting(len(run_out), max(run_out, default=None))
    snapshot.letters[Source.INBOX] = rows.count_documents({**mine, "state": DEAD}, hint=OPEN_OR_DEAD)


def _sqs(installation: Installation, snapshot: Snapshot) -> None:
    snapshot.letters[Source.SQS] = None
    if installation.queue is not None:
        snapshot.queued, snapshot.letters[Source.SQS] = installation.queue.depths()


def _jobs(installation: Installation, snapshot: Snapshot) -> None:
    for job in installation.db[leased.COLLECTION].find():
        running = job.get("lease_until") is not None and job["lease_until"] > snapshot.at
        snapshot.jobs[job["_id"]] = {"running": running, **job.get("last", {})}


def _lost(installation: Installation, snapshot: Snapshot, late: float) -> None:
    report = Reconciler(installation=installation, patience=Patience(unfinished=late), rate=0).sample(SAMPLE)
    snapshot.lost, snapshot.lost_sample = dict(report.found), report.looked_at


def _age(snapshot: Snapshot, moment: datetime) -> float:
    return max(0.0, (snapshot.at - moment).total_seconds())
