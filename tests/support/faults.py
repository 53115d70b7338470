"""Faults that a real mongod commits on request."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pymongo import MongoClient


@contextmanager
def failing(
    admin: MongoClient[dict[str, Any]],
    *commands: str,
    app: str,
    times: int | None = None,
    **fault: Any,
) -> Iterator[None]:
    """While the block runs, `commands` from clients of that appname fail: with `errorCode`, `closeConnection`, ...

    `times` ends it sooner. The server must be one that the tests started (enableTestCommands).
    """
    mode: Mapping[str, int] | str = "alwaysOn" if times is None else {"times": times}
    data = {"failCommands": list(commands), "appName": app, **fault}
    admin.admin.command("configureFailPoint", "failCommand", mode=mode, data=data)
    try:
        yield
    finally:
        admin.admin.command("configureFailPoint", "failCommand", mode="off")
