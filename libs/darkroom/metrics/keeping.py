"""``darkroom_sweeper_…`` and ``darkroom_reconciler_…``: what the two that tidy up have done."""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import partial
from itertools import product
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from darkroom.metrics.registry import or_nan, sampled


class SweeperMetrics:
    """Told of each sweep. ``last_end`` is asked at each scrape when a sweep was last done; None: never."""

    def __init__(self, registry: CollectorRegistry, *, last_end: Callable[[], datetime | None]) -> None:
        self._actions = Counter(
            "darkroom_sweeper_actions_total",
            "Done to assets: expired, purged; objects: removed, put_away (rejected, and no processor came to it); "
            "left: unseen (uploads no event of which has come).",
            ["kind"],
            registry=registry,
        )
        self._failed = Counter(
            "darkroom_sweeper_failures_total",
            "What could not be done and will be tried again, and sweeps that ended early.",
            registry=registry,
        )
        sampled(
            registry,
            "darkroom_sweeper_last_sweep_timestamp_seconds",
            "When a sweep was last done, by whatever process, as Unix time; 0: never.",
            lambda: _moment(last_end()),
        )
        for kind in ("expired", "purged", "removed", "unseen", "put_away"):
            self._actions.labels(kind)

    def swept(self, counts: Mapping[str, int] | None) -> None:
        """A sweep ended; None: another process was sweeping."""
        for kind, count in (counts or {}).items():
            if kind == "failed":
                self._failed.inc(count)
            else:
                self._actions.labels(kind).inc(count)

    def failed(self) -> None:
        """A sweep ended early."""
        self._failed.inc()


class ReconcilerMetrics:
    """Told of each pass. ``passes`` and ``kinds`` are all that there are; ``last_end`` is asked at each scrape when a
    pass was last done; None: never."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        passes: Collection[str],
        kinds: Collection[str],
        last_end: Callable[[str], datetime | None],
    ) -> None:
        self._found = Counter(
            "darkroom_reconciler_findings_total",
            "What was found, by pass and kind.",
            ["pass", "kind"],
            registry=registry,
        )
        self._failed = Counter(
            "darkroom_reconciler_failures_total",
            "What was found and could not be mended, by pass and kind.",
            ["pass", "kind"],
            registry=registry,
        )
        self._broken_off = Counter(
            "darkroom_reconciler_broken_off_total",
            "Passes that were ended early by a server that is away, and go on from there.",
            ["pass"],
            registry=registry,
        )
        passed_at = Gauge(
            "darkroom_reconciler_last_pass_timestamp_seconds",
            "When a pass was last done, by whatever process, as Unix time; 0: never.",
            ["pass"],
            registry=registry,
        )

        def ended(name: str) -> float:
            return _moment(last_end(name))

        for name in passes:
            self._broken_off.labels(name)
            passed_at.labels(name).set_function(or_nan(partial(ended, name)))
        for name, kind in product(passes, kinds):
            self._found.labels(name, kind)
            self._failed.labels(name, kind)

    def passed(self, name: str, report: Mapping[str, Any] | None) -> None:
        """A pass ended; None: another process was at it."""
        for kind, count in (report or {}).get("found", {}).items():
            self._found.labels(name, kind).inc(count)
        for kind, count in (report or {}).get("failed", {}).items():
            self._failed.labels(name, kind).inc(count)

    def broken_off(self, name: str) -> None:
        """A pass was ended early by a server that is away."""
        self._broken_off.labels(name).inc()


def _moment(at: datetime | None) -> float:
    return 0.0 if at is None else at.timestamp()
