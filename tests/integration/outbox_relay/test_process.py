"""The relay as a process: how it starts, and how it ends."""

import signal
import socket
import time
from pathlib import Path

from darkroom.local.mongod import find_mongod
from darkroom.local.ports import HOST, free_ports
from darkroom.local.processes import Supervisor
from support.eventually import eventually
from support.relay_stage import Stage

DEAD = f"{HOST}:1"


def can_connect(port: int) -> bool:
    socket.create_connection((HOST, port), timeout=1.0).close()
    return True


def test_sigterm_ends_it_in_order(stage: Stage, tmp_path: Path) -> None:
    log = tmp_path / "log"
    # With a poll this long only the signal itself can wake it.
    process = stage.process(log, DARKROOM_RELAY_POLL_SECONDS="600", DARKROOM_RELAY_LEASE_SECONDS="60")
    try:
        stage.append_assets(20, 3)
        eventually(lambda: stage.unpublished() == 0, deadline=20)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert time.monotonic() - began < 5
    finally:
        process.kill()
        process.wait()
    assert stage.db.relay_shards.count_documents({"owner": {"$exists": True}}) == 0
    assert stage.db.relay_members.count_documents({}) == 0
    assert "Traceback" not in log.read_text()


def test_without_a_broker_it_waits_and_still_ends_in_order(stage: Stage, tmp_path: Path) -> None:
    log = tmp_path / "log"
    stage.append_assets(2, 2)
    process = stage.process(log, DARKROOM_KAFKA_BOOTSTRAP=DEAD)
    try:
        eventually(lambda: "producer_failed" in log.read_text(), deadline=20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    finally:
        process.kill()
        process.wait()
    assert stage.unpublished() == 4
    assert stage.db.relay_shards.count_documents({"owner": {"$exists": True}}) == 0
    assert "Traceback" not in log.read_text()


WRONG = [
    ({"DARKROOM_RELAY_LEASE_SECONDS": "soon"}, "DARKROOM_RELAY_LEASE_SECONDS (length of a shard's lease)"),
    ({"DARKROOM_MONGO_URL": f"mongodb://{DEAD}/"}, "DARKROOM_MONGO_URL: this MongoDB cannot be used"),
    ({"DARKROOM_MONGO_URL": "http://nonsense"}, "DARKROOM_MONGO_URL: no connection string"),
    ({"DARKROOM_KAFKA_CONFIG": '{"no.such.setting": 1}'}, "DARKROOM_KAFKA_CONFIG: No such configuration property"),
]


def test_wrong_settings_and_a_standalone_mongod_end_it_with_a_message(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (port,) = free_ports(1)
    standalone = ({"DARKROOM_MONGO_URL": f"mongodb://{HOST}:{port}"}, "--replSet")
    argv = [str(find_mongod()), "--dbpath", str(tmp_path / "data"), "--port", str(port), "--bind_ip", HOST]
    with Supervisor(tmp_path / "logs") as supervisor:
        supervisor.start("mongod", argv, ready=lambda: can_connect(port))
        # All at once, since one of them waits for a server that never answers.
        tried = [
            (stage.process(tmp_path / f"log-{number}", **settings), tmp_path / f"log-{number}", told)
            for number, (settings, told) in enumerate([*WRONG, standalone])
        ]
        codes = [process.wait(40) for process, _, _ in tried]
    assert codes == [1] * len(tried)
    for _, log, told in tried:
        assert told in log.read_text()
        assert "Traceback" not in log.read_text()
