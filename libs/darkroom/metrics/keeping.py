"""``darkroom_sweeper_…`` and ``darkroom_reconciler_…``: what the two that tidy up have done."""

from collections.abc import Collection, Mapping
from datetime import datetime
from itertools import product
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge


class SweeperMetrics:
    """Told of each sweep."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._actions = Counter(
            "darkroom_sweeper_actions_total",
            "Done to assets: expired, purged; objects: removed; left: unseen (uploads no event of which has come).",
            ["kind"],
            registry=registry,
        )
        self._failed = Counter(
            "darkroom_sweeper_failures_total",
            "What could not be done and will be tried again, and sweeps that ended early.",
            registry=registry,
        )
        self._swept_at = Gauge(
            "darkroom_sweeper_last_sweep_timestamp_seconds",
            "When a sweep was last done, by whatever process, as Unix time; 0: never.",
            registry=registry,
        )
        for kind in ("expired", "purged", "removed", "unseen"):
            self._actions.labels(kind)

    def swept(self, counts: Mapping[str, int] | None) -> None:
        """A sweep ended; None: another process was sweeping."""
        for kind, count in (counts or {}).items():
            if kind == "failed":
                self._failed.inc(count)
            else:
                self._actions.labels(kind).inc(count)

    def ended(self, at: datetime | None) -> None:
        """When a sweep was last done; None: never."""
        self._swept_at.set(0 if at is None else at.timestamp())

    def failed(self) -> None:
        """A sweep ended early."""
        self._failed.inc()


class ReconcilerMetrics:
    """Told of each pass. ``passes`` and ``kinds`` are all that there are."""

    def __init__(self, registry: CollectorRegistry, *, passes: Collection[str], kinds: Collection[str]) -> None:
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
        self._passed_at = Gauge(
            "darkroom_reconciler_last_pass_timestamp_seconds",
            "When a pass was last done, by whatever process, as Unix time; 0: never.",
            ["pass"],
            registry=registry,
        )
        self._broken_off = Counter(
            "darkroom_reconciler_broken_off_total",
            "Passes that were ended early by a server that is away, and go on from there.",
            ["pass"],
            registry=registry,
        )
        for name in passes:
            self._broken_off.labels(name)
        for name, kind in product(passes, kinds):
            self._found.labels(name, kind)
            self._failed.labels(name, kind)

    def passed(self, name: str, report: Mapping[str, Any] | None) -> None:
        """A pass ended; None: another process was at it."""
        for kind, count in (report or {}).get("found", {}).items():
            self._found.labels(name, kind).inc(count)
        for kind, count in (report or {}).get("failed", {}).items():
            self._failed.labels(name, kind).inc(count)

    def ended(self, name: str, at: datetime | None) -> None:
        """When a pass was last done; None: never."""
        self._passed_at.labels(name).set(0 if at is None else at.timestamp())

    def broken_off(self, name: str) -> None:
        """A pass was ended early by a server that is away."""
        self._broken_off.labels(name).inc()
