"""Which faults there are, and a schedule of them that depends on a seed alone. Pure."""

import random
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """One kind of fault; its value is what ``--only`` takes."""

    PROCESSOR_KILL = "processor-kill"
    PROCESSOR_STALL = "processor-stall"
    PROCESSOR_ROLLING = "processor-rolling"
    PROCESSOR_SCALE = "processor-scale"
    RELAY_KILL = "relay-kill"
    RELAY_STALL = "relay-stall"
    API_KILL = "api-kill"
    API_STALL = "api-stall"
    LAMBDA_KILL = "lambda-kill"
    LAMBDA_STALL = "lambda-stall"
    AWS_RESTART = "aws-restart"
    BROKER_KILL = "broker-kill"
    MONGO_STEPDOWN = "mongo-stepdown"
    MONGO_KILL = "mongo-kill"
    S3_SLOW_DOWN = "s3-503"
    S3_SLOW = "s3-slow"
    S3_CUT = "s3-cut"
    SQS_DUPLICATE = "sqs-duplicate"
    SQS_LATE = "sqs-late"
    KAFKA_DUPLICATE = "kafka-duplicate"
    KAFKA_GARBAGE = "kafka-garbage"


SERVERS = (
    Fault.BROKER_KILL,
    Fault.MONGO_STEPDOWN,
    Fault.MONGO_KILL,
    Fault.AWS_RESTART,
    Fault.LAMBDA_KILL,
    Fault.LAMBDA_STALL,
)
"""Faults of servers. Only one of them at a time, so that a quorum is left and the Lambda host has a host."""

SERVICES = tuple(fault for fault in Fault if fault not in SERVERS)
"""Faults of Darkroom's own processes, of its way to S3, and of messages; one at a time, beside one of a server."""

DURATIONS: dict[Fault, tuple[float, float]] = {
    Fault.PROCESSOR_KILL: (0.2, 4.0),
    # Past the lease (3 s), and at times past the group's session (15 s), so that partitions are lost.
    Fault.PROCESSOR_STALL: (4.0, 18.0),
    Fault.PROCESSOR_ROLLING: (0.0, 0.5),
    Fault.PROCESSOR_SCALE: (2.0, 6.0),
    Fault.RELAY_KILL: (0.2, 4.0),
    Fault.RELAY_STALL: (4.0, 8.0),
    Fault.API_KILL: (0.2, 3.0),
    Fault.API_STALL: (1.0, 6.0),
    Fault.LAMBDA_KILL: (0.0, 0.0),
    Fault.LAMBDA_STALL: (2.0, 7.0),
    Fault.AWS_RESTART: (0.2, 2.0),
    Fault.BROKER_KILL: (0.5, 6.0),
    Fault.MONGO_STEPDOWN: (3.0, 6.0),
    Fault.MONGO_KILL: (0.5, 6.0),
    Fault.S3_SLOW_DOWN: (2.0, 8.0),
    Fault.S3_SLOW: (3.0, 8.0),
    Fault.S3_CUT: (2.0, 8.0),
    Fault.SQS_DUPLICATE: (0.0, 0.0),
    Fault.SQS_LATE: (1.0, 15.0),
    Fault.KAFKA_DUPLICATE: (0.0, 0.0),
    Fault.KAFKA_GARBAGE: (0.0, 0.0),
}
"""Seconds that a fault lasts before it is healed; healing takes as long as it takes."""

LONGEST_PAUSE = 3.0
"""Seconds of peace between two faults of one lane, at most."""


@dataclass(frozen=True)
class Planned:
    """One fault to come. ``at`` and ``seconds`` are seconds; ``choice`` in [0, 1) picks the target among those there.

    ``at`` is the earliest moment from the start: a fault waits for the healing of the one before it in its lane.
    """

    at: float
    fault: Fault
    seconds: float
    choice: float


def plan(seed: int, *, seconds: float, only: Collection[Fault] = ()) -> tuple[tuple[Planned, ...], ...]:
    """The faults of a run in lanes, each lane one after another; the same arguments always give the same plan.

    Every kind comes up before any comes a second time, in an order that the seed decides.
    """
    chance = random.Random(seed)  # noqa: S311 -- a schedule, no secret
    lanes = []
    for kinds in (SERVERS, SERVICES):
        allowed = [kind for kind in kinds if not only or kind in only]
        # Each lane has a generator of its own, so that leaving out kinds of one does not change the other.
        lanes.append(_lane(random.Random(chance.random()), allowed, seconds))  # noqa: S311 -- likewise
    return tuple(lanes)


def _lane(chance: random.Random, kinds: list[Fault], seconds: float) -> tuple[Planned, ...]:
    planned: list[Planned] = []
    waiting: list[Fault] = []
    at = chance.uniform(0.5, LONGEST_PAUSE)
    while kinds:
        if not waiting:
            waiting = chance.sample(kinds, len(kinds))
        fault = waiting.pop()
        lasts = round(chance.uniform(*DURATIONS[fault]), 2)
        if at + lasts > seconds:
            break
        planned.append(Planned(round(at, 2), fault, lasts, round(chance.random(), 4)))
        at += lasts + chance.uniform(0.3, LONGEST_PAUSE)
    return tuple(planned)
