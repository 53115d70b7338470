"""One process's metrics, and how they are answered to who scrapes.

Names are ``darkroom_<part>_<thing>_<unit>``, with ``_total`` for what only counts up; units are seconds and bytes. No
label ever holds an id of an asset, an owner or an event: each has a few values that are known beforehand.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

AnswerT = TypeVar("AnswerT")

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Buckets of every histogram of seconds, so that panels can be compared."""


def new_registry() -> CollectorRegistry:
    """A registry that holds what the operating system knows of this process (``process_…``) and nothing else."""
    # When each counter began is a time series a counter more, which nobody asks for.
    disable_created_metrics()  # type: ignore[no-untyped-call]  # its author forgot
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def exposition(registry: CollectorRegistry) -> Callable[[str], tuple[str, bytes]]:
    """For the health server: from the request's Accept header to the content type and the text."""

    def answer(accept: str) -> tuple[str, bytes]:
        encode, content_type = choose_encoder(accept)
        return content_type, encode(registry)

    return answer


def sampled(registry: CollectorRegistry, name: str, help_text: str, value: Callable[[], float]) -> None:
    """A gauge that is asked for at each scrape. Asking must be quick; what it raises is NaN, and fails no scrape."""
    Gauge(name, help_text, registry=registry).set_function(or_nan(value))


def or_nan(value: Callable[[], float]) -> Callable[[], float]:
    """The same; NaN for what it raises."""

    def ask() -> float:
        try:
            return float(value())
        except Exception:  # noqa: BLE001 -- one value that cannot be had must not hide all others
            return math.nan

    return ask


class Computed(Collector):
    """Families that are made anew at each scrape, for labels that come and go."""

    def __init__(self, registry: CollectorRegistry, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """What there is now."""
        return self._families()


class Kept(Generic[AnswerT]):
    """The answer of ``ask``, which costs something, for ``seconds``, however often it is wanted. Thread-safe."""

    def __init__(self, ask: Callable[[], AnswerT], *, seconds: float) -> None:
        self._ask = ask
        self._seconds = seconds
        self._lock = threading.Lock()
        self._until = 0.0
        self._answer: AnswerT | Exception | None = None

    def __call__(self) -> AnswerT:
        """The answer; what asking raised is raised for as long, so that a server that is away is not asked at once."""
        with self._lock:
            if self._answer is None or time.monotonic() >= self._until:
                try:
                    self._answer = self._ask()
                except Exception as error:  # noqa: BLE001 -- told to every caller below
                    self._answer = error
                self._until = time.monotonic() + self._seconds
            if isinstance(self._answer, Exception):
                raise self._answer
            return self._answer
