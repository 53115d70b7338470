"""A MongoDB replica set on this machine: one member or three, all on 127.0.0.1."""

import contextlib
import importlib.util
import json
import os
import platform
import re
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from darkroom.local.declared import fill
from darkroom.local.disk import require_space
from darkroom.local.errors import NotAReplicaSetError, PieceMissingError, ServerNotReadyError, ServerUnreachableError
from darkroom.local.ports import HOST, start_on_ports
from darkroom.local.processes import SupervisedProcess, Supervisor, in_parallel

Document = dict[str, Any]

MEMBER_BYTES = 500_000_000  # two journal files of 100 MB, and room to work
_OLDEST_MAJOR = 6
_REPLICA_SET = "rs0"
_ALREADY_INITIALIZED = 23
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class MongoReplicaSet:
    """A running replica set. Its members can be killed and started again on the same ports and data."""

    url: str
    members: tuple[SupervisedProcess, ...]
    ports: tuple[int, ...]

    def primary(self) -> SupervisedProcess:
        """The member that is primary now. Raises ServerUnreachableError when there is none."""
        for member, port in zip(self.members, self.ports, strict=True):
            if member.running and _is_primary(port):
                return member
        raise ServerUnreachableError("No member of the local replica set is primary now.")


def find_mongod(*, search_path: str | None = None, package: str = "fiftyone") -> Path:
    """A mongod of version 6 or newer on PATH (or `search_path`), else the one inside the installed `package`.

    Raises PieceMissingError when this platform has neither.
    """
    on_path = shutil.which("mongod", path=search_path)
    if on_path is not None and _major_version(on_path) >= _OLDEST_MAJOR:
        return Path(on_path)
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(folder) / "db" / "bin" / "mongod"
        if binary.exists():
            return _runnable(binary)
    raise PieceMissingError(
        f"There is no mongod for {platform.system()} on {platform.machine()} among the Python packages"
        + (f", and the one at {on_path} is older than version {_OLDEST_MAJOR}" if on_path else "")
        + f". Put a mongod {_OLDEST_MAJOR} or newer on PATH, or name your "
        f"own replica set: DARKROOM_MONGO_URL=mongodb://host:27017/?replicaSet=rs0"
    )


def start_mongod(
    supervisor: Supervisor,
    folder: Path,
    *,
    members: int = 1,
    ports: tuple[int, ...] | None = None,
    cache_gb: float = 0.5,
    parameters: Mapping[str, str] | None = None,
    deadline: float = 30.0,
) -> MongoReplicaSet:
    """Start a replica set of `members` and return once it has a primary and every member takes part.

    Data is kept in `<folder>/mongod-N`. `ports` fixes the ports. `parameters` are given as `--setParameter` (tests:
    `{"enableTestCommands": "1"}`). `deadline` is in seconds. Raises LocalServerError.
    """
    binary = find_mongod()
    require_space(folder, MEMBER_BYTES * members, purpose="mongod")
    folder.mkdir(parents=True, exist_ok=True)

    def start(chosen: list[int]) -> MongoReplicaSet:
        processes = [
            _prepare(
                supervisor,
                folder / f"mongod-{number}",
                binary=binary,
                port=port,
                cache_gb=cache_gb,
                alone=members == 1,
                parameters=parameters or {},
                deadline=deadline,
            )
            for number, port in enumerate(chosen, start=1)
        ]
        try:
            in_parallel([process.start for process in processes])
            _initiate(chosen, processes, deadline=deadline)
        except BaseException:
            in_parallel([process.kill for process in processes])
            raise
        return MongoReplicaSet(url=_url(chosen), members=tuple(processes), ports=tuple(chosen))

    return start_on_ports(start, count=members, folder=folder, server="mongod", wanted=ports)


def require_replica_set(url: str, *, timeout: float = 5.0) -> None:
    """Check the server at an address the user gave.

    Raises ServerUnreachableError when it does not answer within `timeout` seconds, and NotAReplicaSetError when it is
    a standalone server, which has neither transactions nor change streams.
    """
    try:
        with MongoClient[Document](url, serverSelectionTimeoutMS=int(timeout * 1000)) as client:
            hello = client.admin.command("hello")
    except (PyMongoError, ValueError) as error:  # ValueError: a port that is none
        raise ServerUnreachableError(
            f"DARKROOM_MONGO_URL: no MongoDB answered within {timeout:g} s ({error}). Start that server, correct the "
            f"address, or leave the variable unset to have one started here."
        ) from error
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        raise NotAReplicaSetError(
            "DARKROOM_MONGO_URL: this MongoDB is a standalone server, and Darkroom needs transactions and change "
            "streams, which only a replica set has. Start it with --replSet rs0 and run rs.initiate() once; one member "
            "is enough."
        )


def _prepare(
    supervisor: Supervisor,
    folder: Path,
    *,
    binary: Path,
    port: int,
    cache_gb: float,
    alone: bool,
    parameters: Mapping[str, str],
    deadline: float,
) -> SupervisedProcess:
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    config = folder / "mongod.conf"
    config.write_text(fill("mongod.conf", port=port, db_path=json.dumps(str(data)), cache_gb=cache_gb))
    extra = [argument for name, value in parameters.items() for argument in ("--setParameter", f"{name}={value}")]
    process = supervisor.prepare(
        folder.name,
        [str(binary), "--config", str(config), *extra],
        ready=lambda: _takes_part(port, process.pid, alone=alone),
        deadline=deadline,
    )
    return process


def _takes_part(port: int, pid: int, *, alone: bool) -> bool:
    """Whether this very process answers on the port, and is a working member (or a new one, not yet told of a set)."""
    socket.create_connection((HOST, port), timeout=1.0).close()  # the driver would wait a second for a port to open
    with _direct(port) as client:
        hello = client.admin.command("hello")
        if "setName" in hello and not hello["isWritablePrimary"] and (alone or not hello["secondary"]):
            return False
        return bool(client.admin.command("serverStatus")["pid"] == pid)


def _initiate(ports: list[int], processes: list[SupervisedProcess], *, deadline: float) -> None:
    members = [{"_id": number, "host": f"{HOST}:{port}"} for number, port in enumerate(ports)]
    settings = {"electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 500}
    with _direct(ports[0]) as client:
        try:
            client.admin.command("replSetInitiate", {"_id": _REPLICA_SET, "members": members, "settings": settings})
        except OperationFailure as error:
            if error.code != _ALREADY_INITIALIZED:
                raise
    ends = time.monotonic() + deadline
    while not _complete(ports):
        if time.monotonic() > ends:
            raise ServerNotReadyError(
                f"mongod: the replica set had no primary with all {len(ports)} member(s) after {deadline:g} s. "
                f"Its log is {processes[0].log_path}; the last lines:\n{processes[0].log_tail()}"
            )
        time.sleep(_POLL_SECONDS)


def _complete(ports: list[int]) -> bool:
    hellos = []
    for port in ports:
        with contextlib.suppress(PyMongoError), _direct(port) as client:  # asked again until the deadline
            hellos.append(client.admin.command("hello"))
    working = [hello for hello in hellos if hello["isWritablePrimary"] or hello["secondary"]]
    return len(working) == len(ports) and any(hello["isWritablePrimary"] for hello in working)


def _is_primary(port: int) -> bool:
    with contextlib.suppress(PyMongoError), _direct(port) as client:
        return bool(client.admin.command("hello")["isWritablePrimary"])
    return False


def _direct(port: int) -> MongoClient[Document]:
    return MongoClient(HOST, port, directConnection=True, serverSelectionTimeoutMS=1000)


def _url(ports: list[int]) -> str:
    return f"mongodb://{','.join(f'{HOST}:{port}' for port in ports)}/?replicaSet={_REPLICA_SET}"


def _major_version(binary: str) -> int:
    asked = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False)
    found = re.search(r"db version v(\d+)", asked.stdout)
    return int(found[1]) if found else 0


def _runnable(binary: Path) -> Path:
    if not os.access(binary, os.X_OK):
        try:
            binary.chmod(binary.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        except PermissionError as error:
            raise PieceMissingError(
                f"mongod at {binary} may not be run, and its mode cannot be changed ({error}). "
                f"Run once as its owner: chmod +x {binary}"
            ) from error
    return binary
