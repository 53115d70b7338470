"""Waiting by itself: for what the environment names, not for ever, and then the service in the same process."""

import os
import signal
import subprocess
import sys
import time

import pytest

from darkroom.setup.wait import Need, await_all, needs
from support.eventually import eventually

NOWHERE = "mongodb://127.0.0.1:9/?directConnection=true"


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DARKROOM_", "AWS_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "darkroom.setup.wait", *arguments],
        env=clean | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_only_what_the_environment_names_is_waited_for() -> None:
    assert needs({}) == []
    named = {"DARKROOM_MONGO_URL": NOWHERE, "DARKROOM_BUCKET": "b"}
    assert [need.name for need in needs(named)] == ["MongoDB (DARKROOM_MONGO_URL)", "the bucket (DARKROOM_BUCKET)"]


def test_it_goes_on_as_soon_as_everything_is_there() -> None:
    answers = iter(["not yet", None])
    await_all([Need("one", lambda: next(answers))], seconds=10, pause=0)
    assert next(answers, "used up") == "used up"


def test_at_the_deadline_it_says_what_is_missing_and_why() -> None:
    def refuse() -> None:
        raise ConnectionRefusedError("nobody listens")

    with pytest.raises(SystemExit, match=r"one was not there after 0 s: ConnectionRefusedError: nobody listens"):
        await_all([Need("one", refuse)], seconds=0, pause=0)


def test_the_module_runs_in_the_very_process_with_its_arguments() -> None:
    process = start("json.tool", "--help")
    told, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "json.tool" in told


def test_while_it_waits_it_ends_at_once_when_asked_to() -> None:
    process = start("json.tool", DARKROOM_MONGO_URL=NOWHERE, DARKROOM_WAIT_SECONDS="60")
    assert process.stderr is not None
    eventually(lambda: process.stderr and "waiting for MongoDB" in process.stderr.readline(), what="its first word")
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("seconds", ["soon", "nan", "inf", "-1", "1e300"])
def test_a_wrong_number_of_seconds_is_named(seconds: str) -> None:
    process = start("json.tool", DARKROOM_WAIT_SECONDS=seconds)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "DARKROOM_WAIT_SECONDS: must be a number of seconds, 0 to 3600" in told
