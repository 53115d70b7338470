"""One run from its start to its report."""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from darkroom.chaos.aftermath import Waiting, gather, settle
from darkroom.chaos.arena import Arena, start_arena
from darkroom.chaos.checks import check_all
from darkroom.chaos.faults import Fault, plan
from darkroom.chaos.frontend import OWNER, Frontends
from darkroom.chaos.injector import Injector
from darkroom.chaos.messages import Messages
from darkroom.chaos.report import Report, count_documents, count_events, count_uploads
from darkroom.chaos.watch import Watch, longest_stall

LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class Options:
    """What a run does. ``minutes`` is how long uploads and faults go on; ``settle_seconds`` bounds the time after."""

    seed: int
    assets: int
    minutes: float
    brokers: int = 3
    only: tuple[Fault, ...] = ()
    settle_seconds: float = 240.0


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    phase: str
    registered: int = 0
    uploaded: int = 0
    ended: int = 0
    faults: int = 0


def run(options: Options, data_dir: Path, *, on_progress: Callable[[Progress], None]) -> Report:
    """Start everything, upload under faults, wait for the end, and check.

    Raises:
        LocalServerError: something could not be started.
        PyMongoError, KafkaException, TimeoutError: at the end a server could not be read.

    """
    lanes = plan(options.seed, seconds=options.minutes * 60, only=options.only)
    on_progress(Progress("starting"))
    with start_arena(data_dir, brokers=options.brokers, seed=options.seed) as arena, Watch(arena) as watch:
        messages = Messages(arena.stack, arena.sqs)
        frontends = Frontends(
            arena.stack.api_urls,
            arena.stack.token(OWNER),
            count=options.assets,
            seconds=options.minutes * 60,
            seed=options.seed,
        )
        injector = Injector(arena, lanes, messages=messages, uploaded=watch.uploaded)

        def tell(phase: str) -> None:
            uploads = frontends.uploads
            on_progress(
                Progress(
                    phase,
                    registered=sum(bool(upload.asset_ids) for upload in uploads),
                    uploaded=sum(upload.sent is not None for upload in uploads),
                    ended=len(watch.ended),
                    faults=len(injector.injected),
                )
            )

        began = time.monotonic()
        _load(frontends, injector, tell)
        loaded = time.monotonic()
        waiting = settle(
            arena,
            frontends.uploads,
            messages=messages,
            aws_windows=injector.aws_windows,
            seconds=options.settle_seconds,
            on_look=lambda waiting: tell(f"waiting for {waiting}"),
        )
        settled = time.monotonic()
        tell("checking")
        return _report(options, arena, frontends, injector, messages, watch, waiting, (began, loaded, settled))


def _load(frontends: Frontends, injector: Injector, tell: Callable[[str], None]) -> None:
    """Upload everything under faults; returns when all is uploaded and healed, whatever else was planned."""
    load = threading.Thread(target=frontends.run, name="load", daemon=True)
    injector.start()
    load.start()
    try:
        while load.is_alive():
            load.join(LOOK_SECONDS)
            tell("uploading under faults")
    finally:
        frontends.stop()
        tell("healing")
        injector.stop()


def _report(
    options: Options,
    arena: Arena,
    frontends: Frontends,
    injector: Injector,
    messages: Messages,
    watch: Watch,
    waiting: Waiting,
    moments: tuple[float, float, float],
) -> Report:
    messages.close()
    injector.close()
    evidence = gather(arena, frontends.uploads, messages=messages, injector=injector, watch=watch)
    began, loaded, settled = moments
    return Report(
        seed=options.seed,
        options=asdict(options),
        checked=check_all(evidence),
        plan=plan(options.seed, seconds=options.minutes * 60, only=options.only),
        injected=injector.injected,
        events=count_events(evidence),
        documents=count_documents(evidence),
        uploads=count_uploads(frontends.uploads),
        longest_stall=longest_stall(
            [upload.sent for upload in frontends.uploads if upload.sent is not None], list(watch.ended.values())
        ),
        loaded=loaded - began,
        settled=settled - loaded,
        left_open="nothing" if waiting.nothing else str(waiting),
        resent=waiting.resent,
        redriven=messages.redriven,
        remarks=injector.remarks,
    )


def described_plan(seed: int, *, minutes: float, only: Collection[Fault]) -> str:
    """The schedule in lines, as it is printed with the result."""
    lines = []
    for lane, planned in zip(("servers", "services"), plan(seed, seconds=minutes * 60, only=only), strict=True):
        lines.append(f"{lane}:")
        lines += [f"  {one.at:7.2f} s  {one.fault:18} {one.seconds:5.2f} s  target {one.choice:.4f}" for one in planned]
    return "\n".join(lines)
