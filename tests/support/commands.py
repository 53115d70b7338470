"""See what a client really sends to MongoDB."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent


class Commands(CommandListener):
    """Keeps every command; give it to a client as one of its ``event_listeners``."""

    def __init__(self) -> None:
        self.sent: list[Mapping[str, Any]] = []

    def started(self, event: CommandStartedEvent) -> None:
        """Called by the driver, before the command is sent."""
        self.sent.append(event.command)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Called by the driver; of no meaning here."""

    def failed(self, event: CommandFailedEvent) -> None:
        """Called by the driver; of no meaning here."""

    def named(self, name: str, collection: str) -> list[Mapping[str, Any]]:
        """The commands of that name to that collection."""
        return [command for command in self.sent if command.get(name) == collection]

    def times(self) -> list[datetime]:
        """Every date in any command: what the client's own clock, or its caller, has said."""
        return [date for command in self.sent for date in _dates(command)]


def _dates(value: Any) -> Iterator[datetime]:
    if isinstance(value, datetime):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _dates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _dates(inner)
