"""What consumption tells of itself as it happens. Who listens may count it; nothing here knows how that is shown."""

from enum import StrEnum


class Outcome(StrEnum):
    """How one hand-over of a record to its handler ended."""

    FINISHED = "finished"
    LATER = "later"
    """The handler asked for it again: another holder, a back-off, or it was called off."""
    OUTAGE = "outage"
    DEFECT = "defect"
    """The handler raised what it should not."""


class Answer(StrEnum):
    """What a claim was told."""

    CLAIMED = "claimed"
    HELD = "held"
    DONE = "done"


class Write(StrEnum):
    """A write under a lease."""

    RENEW = "renew"
    RELEASE = "release"
    COMPLETE = "complete"
    BURY = "bury"


class Observer:
    """Told from several threads at once, for every record; does nothing by itself. Must be quick, and not raise."""

    def handled(self, outcome: Outcome, seconds: float) -> None:
        """A hand-over ended after so long."""

    def outage(self, server: str) -> None:
        """A hand-over met a server that does not answer; ``server`` is one of the few that a handler knows."""

    def claim_answered(self, answer: Answer) -> None:
        """A claim was answered."""

    def fence_rejected(self, write: Write) -> None:
        """A write found that somebody else took the event over: it changed nothing."""

    def lease_lost(self) -> None:
        """Work that was under way was called off, because its lease is another's now."""

    def released(self, *, called_off: bool) -> None:
        """An event was given back: for another attempt, or because its work was called off."""
