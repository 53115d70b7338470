"""Free ports on 127.0.0.1, remembered with the data they belong to.

A replica set and a Kafka quorum write their addresses into their data, so a data folder keeps its ports. They are
chosen below the ranges that Linux (32768 to 60999) and macOS (49152 to 65535) take outgoing connections from.
Otherwise, while a server is down, a client's connection could hold its port, and even connect to itself.
"""

import json
import random
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from darkroom.local.errors import LocalServerError, PortTakenError, ServerDiedError

Started = TypeVar("Started")

HOST = "127.0.0.1"
_FIRST, _LAST = 20_000, 32_767
_TRIES = 200
_STARTS = 3
_TAKEN_IN_LOG = re.compile(r"address already in use|is already in use", re.IGNORECASE)


def is_free(port: int) -> bool:
    """Whether a server could listen on the port right now."""
    with socket.socket() as probe:
        # As servers do it, so that connections which were closed a moment ago do not count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def require_free(port: int, *, server: str) -> int:
    """The port, when a server can listen on it; otherwise PortTakenError."""
    if not is_free(port):
        raise PortTakenError(
            f"{server}: port {port} on {HOST} is taken by another process. End that one or choose another port."
        )
    return port


def free_ports(count: int) -> list[int]:
    """Distinct ports that are free now. Another process may still take one first: callers start again with new ones."""
    found: list[int] = []
    for port in random.sample(range(_FIRST, _LAST + 1), _TRIES):
        if len(found) == count:
            return found
        if is_free(port):
            found.append(port)
    raise LocalServerError(f"No {count} free ports between {_FIRST} and {_LAST} on {HOST} after {_TRIES} tries.")


def start_on_ports(
    start: Callable[[list[int]], Started],
    *,
    count: int,
    folder: Path,
    server: str,
    wanted: Sequence[int] | None = None,
) -> Started:
    """Call `start` with `count` ports: those wanted, else those the data in `folder` had before, else free ones.

    When a free one is taken by another process before the server listens, others are tried. Raises PortTakenError for
    ports that were wanted or remembered. `start` ends what it began when it raises.
    """

    def remember_and_start(ports: list[int]) -> Started:
        # Before the start: killed in the middle of it, the data has the addresses in it, and would be of no more use.
        folder.mkdir(parents=True, exist_ok=True)
        beside = file.with_suffix(".new")
        beside.write_text(json.dumps(ports), encoding="utf-8")
        beside.replace(file)
        return start(ports)

    file = folder / "ports.json"
    remembered: list[int] | None = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    if remembered is not None:
        _require_same(remembered, wanted, count=count, folder=folder, server=server)
    if fixed := remembered or wanted:
        return remember_and_start([require_free(port, server=server) for port in fixed])
    _, started = start_on_free_ports(remember_and_start, count=count)
    return started


def start_on_free_ports(start: Callable[[list[int]], Started], *, count: int) -> tuple[list[int], Started]:
    """Call `start` with free ports, again with others when a process died because somebody took one of them first."""
    for remaining in reversed(range(_STARTS)):
        ports = free_ports(count)
        try:
            return ports, start(ports)
        except ServerDiedError as error:
            if not (remaining and _TAKEN_IN_LOG.search(error.log_tail)):
                raise
    raise AssertionError("the last attempt returns or raises")


def _require_same(
    remembered: list[int], wanted: Sequence[int] | None, *, count: int, folder: Path, server: str
) -> None:
    if len(remembered) != count or (wanted is not None and list(wanted) != remembered):
        raise LocalServerError(
            f"{server}: the data in {folder} was made with {len(remembered)} port(s) ({remembered}) and keeps its "
            f"addresses; start it with the same number of members and the same ports, or use another data folder."
        )
