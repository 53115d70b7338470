"""How operations end when they cannot run, and what they ask for before they change anything."""

from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from darkroom.cli.main import app
from darkroom.cli.operation import COULD_NOT, age, print_json

COMMANDS = [
    ["status"],
    ["why", "0b8f5f2e-6c1d-4d8e-9f0a-3c2b1a4d5e6f"],
    ["verify"],
    ["rebuild"],
    ["reconcile"],
    ["dlq", "list"],
    ["dlq", "show", "1"],
    ["dlq", "redrive", "1", "--why", "mended"],
]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    for name in ("MONGO_URL", "KAFKA_BOOTSTRAP", "BUCKET"):
        monkeypatch.delenv(f"DARKROOM_{name}", raising=False)
    return CliRunner()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_without_settings_it_says_which_are_missing_and_ends_with_2(run: CliRunner, command: list[str]) -> None:
    done = run.invoke(app, command)
    assert done.exit_code == COULD_NOT
    assert "DARKROOM_MONGO_URL" in done.stderr
    assert "DARKROOM_BUCKET" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [([], "nothing is named"), (["--source", "inbox"], "nothing is named"), (["1"], "--why is missing")],
)
def test_a_redrive_needs_to_know_what_and_why(run: CliRunner, arguments: list[str], says: str) -> None:
    done = run.invoke(app, ["dlq", "redrive", *arguments])
    assert done.exit_code == COULD_NOT
    assert says in done.stderr


def test_lengths_of_time_are_told_as_people_say_them() -> None:
    assert [age(seconds) for seconds in (None, 0.25, 59.04, 119.9, 3_725, 90_000)] == [
        "-",
        "250 ms",
        "59.0 s",
        "119.9 s",
        "1:02:05",
        "1 day, 1:00:00",
    ]


def test_json_holds_times_and_other_values_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"at": datetime(2026, 3, 1, tzinfo=UTC), "who": {1}})
    assert '"2026-03-01T00:00:00+00:00"' in capsys.readouterr().out


def test_a_pace_of_objects_alone_is_refused(run: CliRunner) -> None:
    done = run.invoke(app, ["reconcile", "--objects-every", "60"])
    assert done.exit_code == COULD_NOT
    assert "--objects-every goes with --every" in done.stderr
