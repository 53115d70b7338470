"""``darkroom_notifier_…``: what was told to whom, by channel."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter

from notifier.journal import State
from notifier.notify import Observer


class NotifierMetrics(Observer):
    """Counts the ends of attempts on channels."""

    def __init__(self, registry: CollectorRegistry, *, channels: Iterable[str]) -> None:
        self._ends = Counter(
            "darkroom_notifier_attempts_total",
            "Attempts to notify, by channel and how they ended: sent, not_sent, refused, in_doubt.",
            ["channel", "outcome"],
            registry=registry,
        )
        self._given_up = Counter(
            "darkroom_notifier_given_up_total", "Events of which somebody was not told in the end.", registry=registry
        )
        for channel in channels:
            for state in (State.SENT, State.NOT_SENT, State.REFUSED, State.IN_DOUBT):
                self._ends.labels(channel, state.lower())

    def ended(self, channel: str, state: State) -> None:
        """An attempt on a channel ended so."""
        self._ends.labels(channel, state.lower()).inc()

    def given_up(self) -> None:
        """Nothing more is tried for an event."""
        self._given_up.inc()
