"""MongoDB's own fail points: make a server fail, or stand still, at a named command of a named client."""

from typing import Any

from pymongo import MongoClient

PROCESSOR = "darkroom-processor"
RELAY = "darkroom-outbox-relay"


class FailPoints:
    """Turns ``failCommand`` on and off. The server must accept test commands, as the tests' local one does."""

    def __init__(self, client: MongoClient[dict[str, Any]]) -> None:
        self._admin = client.admin

    def fail(
        self, *commands: str, app: str, times: int | None = None, code: int = 91, labels: list[str] | None = None
    ) -> None:
        """Let the client's commands fail with ``code`` (91: the server shuts down), ``times`` times or until off."""
        self._set(app, times, {"failCommands": list(commands), "errorCode": code, "errorLabels": labels or []})

    def stall(self, *commands: str, app: str, seconds: float, times: int | None = None) -> None:
        """Let the client's commands stand still before they take effect."""
        block = {"blockConnection": True, "blockTimeMS": round(seconds * 1000)}
        self._set(app, times, {"failCommands": list(commands), **block})

    def entered(self) -> int:
        """How often the fail point was hit since it was set."""
        answer = self._admin.command({"configureFailPoint": "failCommand", "mode": "off"})
        return int(answer["count"])

    def off(self) -> None:
        """Back to normal."""
        self._admin.command({"configureFailPoint": "failCommand", "mode": "off"})

    def _set(self, app: str, times: int | None, data: dict[str, Any]) -> None:
        mode: Any = "alwaysOn" if times is None else {"times": times}
        self._admin.command({"configureFailPoint": "failCommand", "mode": mode, "data": {**data, "appName": app}})
