"""Processes are started, watched and ended; none outlives its starter."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from darkroom.local.errors import PieceMissingError, ServerDiedError, ServerNotReadyError
from darkroom.local.processes import SupervisedProcess, Supervisor
from support.eventually import eventually
from support.process_groups import alive_in_group

# A server with a worker of its own, as the AWS endpoint has for its Lambda functions.
WITH_WORKER = "sleep 600 & echo up; wait"
# Takes no notice of SIGTERM.
STUBBORN = "trap '' TERM; echo up; while :; do sleep 0.05; done"

STARTER = """
import os, signal, sys
from pathlib import Path
from darkroom.local.processes import Supervisor

supervisor = Supervisor(Path(sys.argv[1]))
polite = supervisor.start("polite", ["sh", "-c", sys.argv[2]])
paused = supervisor.start("paused", ["sleep", "600"])
paused.pause()
child = os.fork() if sys.argv[3] == "with a child" else None
if child != 0:
    print(polite.pid, paused.pid, child or "", flush=True)
signal.pause()
"""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(tmp_path / "logs") as started:
        yield started


def _start(supervisor: Supervisor, script: str, *, grace: float = 10.0) -> SupervisedProcess:
    process = supervisor.prepare("it", ["sh", "-c", script], ready=lambda: "up" in process.log(), grace=grace)
    process.start()
    return process


def test_stop_ends_the_program_and_its_workers(supervisor: Supervisor) -> None:
    process = _start(supervisor, WITH_WORKER)
    eventually(lambda: len(alive_in_group(process.pid)) == 2, what="the worker")
    process.stop()
    assert process.exit_code == -signal.SIGTERM
    assert alive_in_group(process.pid) == []


def test_workers_of_a_crashed_program_are_ended_too(supervisor: Supervisor) -> None:
    process = _start(supervisor, WITH_WORKER)
    os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: not process.running)
    assert alive_in_group(process.pid) != []
    process.stop()
    eventually(lambda: not alive_in_group(process.pid), what="the end of the worker")


def test_what_ignores_sigterm_is_killed_after_the_grace_time(supervisor: Supervisor) -> None:
    process = _start(supervisor, STUBBORN, grace=0.2)
    process.stop()
    assert process.exit_code == -signal.SIGKILL


def test_a_paused_process_is_stopped_in_order(supervisor: Supervisor) -> None:
    process = _start(supervisor, WITH_WORKER)
    process.pause()
    assert process.running
    process.stop()
    assert process.exit_code == -signal.SIGTERM


def test_a_paused_process_does_nothing_until_it_is_resumed(supervisor: Supervisor, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    process = _start(supervisor, f"echo up; while :; do echo . >>{beat}; sleep 0.01; done")
    eventually(beat.exists)
    process.pause()
    # What it was doing at the signal is over once two looks agree.
    eventually(lambda: beat.stat().st_size == eventually(lambda: beat.stat().st_size), what="standing still")
    before = beat.stat().st_size
    process.resume()
    eventually(lambda: beat.stat().st_size > before, what="going on")


def test_restart_runs_the_same_again_and_appends_to_the_log(supervisor: Supervisor) -> None:
    process = _start(supervisor, "echo up; exec sleep 600")
    first = process.pid
    process.kill()
    assert process.exit_code == -signal.SIGKILL
    process.restart()
    assert process.running
    assert process.pid != first
    assert process.log() == "up\n"
    assert process.log_path.read_text() == "up\nup\n"


def test_a_program_that_dies_at_start_shows_its_last_words(supervisor: Supervisor) -> None:
    with pytest.raises(ServerDiedError) as caught:
        _start(supervisor, "echo 'no such database'; exit 3")
    for part in ("it ended with exit code 3", "no such database", str(supervisor.log_dir / "it.log")):
        assert part in str(caught.value)


def test_a_program_that_does_not_get_ready_is_ended(supervisor: Supervisor) -> None:
    process = supervisor.prepare("it", ["sleep", "600"], ready=lambda: 1 // 0 > 0, deadline=0.2)
    with pytest.raises(ServerNotReadyError, match=r"not ready after 0\.2 s \(ZeroDivisionError"):
        process.start()
    assert not process.running


def test_a_missing_program_is_named(supervisor: Supervisor) -> None:
    with pytest.raises(PieceMissingError, match="no-such-program"):
        supervisor.start("it", ["no-such-program"])


def test_it_gets_the_environment_and_folder_it_is_given(supervisor: Supervisor, tmp_path: Path) -> None:
    process = supervisor.prepare(
        "it",
        ["sh", "-c", "echo up $COLOUR in $(pwd); exec sleep 600"],
        env={"PATH": os.environ["PATH"], "COLOUR": "red"},
        cwd=tmp_path,
        ready=lambda: process.log() == f"up red in {tmp_path.resolve()}\n",
    )
    process.start()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
# A child that it forked holds a copy of the pipe to the watchdog and outlives it.
@pytest.mark.parametrize("fork", ["alone", "with a child"])
def test_nothing_outlives_a_starter_that_is_killed(tmp_path: Path, number: signal.Signals, fork: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path), WITH_WORKER, fork],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as starter:
        assert starter.stdout is not None
        polite, paused, *child = [int(word) for word in starter.stdout.readline().split()]
        groups = [polite, paused]
        assert all(alive_in_group(group) for group in groups)
        starter.send_signal(number)
        starter.wait(timeout=5)
        eventually(lambda: not any(alive_in_group(group) for group in groups), what="the end of what it started")
        for pid in child:
            os.kill(pid, signal.SIGKILL)
