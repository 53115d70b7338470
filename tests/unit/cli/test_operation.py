"""How operations end when they cannot run, and what they ask for before they change anything."""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import get_args, get_type_hints
from unittest import mock

import pytest
import typer
from rich.console import Console
from typer.models import OptionInfo
from typer.testing import CliRunner

from darkroom.cli import dlq
from darkroom.cli.main import app
from darkroom.cli.operation import COULD_NOT, age, fail, plain, print_json
from darkroom.ops import letters
from darkroom.ops.letters import Letter, Redriven, Source

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


def numbers(typed: typer.Typer, *words: str) -> Iterator[tuple[list[str], str, OptionInfo]]:
    """Of each command its words and, for each of its options that is a number, name and rules."""
    for group in typed.registered_groups:
        assert group.typer_instance is not None
        yield from numbers(group.typer_instance, *words, str(group.name))
    for command in typed.registered_commands:
        assert command.callback is not None
        called = [*words, command.name or command.callback.__name__]
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            kind, *extras = get_args(hint) or (hint,)
            if {int, float} & {kind, *get_args(kind)}:
                (option,) = extras
                yield called, (option.param_decls or [f"--{name.replace('_', '-')}"])[0], option


NUMBERS = list(numbers(app))


def test_the_numbers_are_found() -> None:
    assert len(NUMBERS) > 20
    assert (["dlq", "list"], "--older-than") in [(words, name) for words, name, _ in NUMBERS]


@pytest.mark.parametrize(("words", "name", "option"), NUMBERS, ids=lambda one: str(one) if len(str(one)) < 40 else "")
def test_every_number_of_a_command_has_a_least_and_a_most(
    run: CliRunner, words: list[str], name: str, option: OptionInfo
) -> None:
    assert option.min is not None
    assert option.max is not None
    required = ["somebody"] if words in (["token"], ["why"]) else []
    for wrong in ("inf", "nan", "1e300", str(option.min - 1), str(option.max + 1)):
        done = run.invoke(app, [*words, *required, name, wrong])
        assert (done.exit_code, done.stdout) == (2, ""), done.output
        assert f"'{name}'" in done.stderr


@pytest.mark.parametrize("command", [["reconcile"], ["dlq", "redrive", "1", "--why", "mended"]])
def test_a_rate_is_no_bound_or_one_that_can_be_waited_for(run: CliRunner, command: list[str]) -> None:
    done = run.invoke(app, [*command, "--rate", "1e-300"])
    assert done.exit_code == COULD_NOT
    assert "must be 0, which is no bound, or 0.001 or more" in " ".join(done.stderr.replace("│", " ").split())
    for taken in ("0", "0.001"):
        assert "DARKROOM_MONGO_URL" in run.invoke(app, [*command, "--rate", taken]).stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["reconcile", "--every", "60", "--dry-run"], "leave out --every"),
        (["dlq", "redrive", "1", "--all", "--why", "mended"], "leave one of them out"),
        (["chaos", "--json", "/nowhere/at/all.json"], "No such file"),
        (["demo", "--json", "/"], "Is a directory"),
        (["up", "--owner", "two\nlines"], "printable"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_call_that_means_two_things_or_nothing_is_refused_before_anything_begins(
    run: CliRunner, command: list[str], says: str
) -> None:
    done = run.invoke(app, command)
    assert done.exit_code == COULD_NOT
    assert says in " ".join(done.stderr.replace("│", " ").split())


def test_a_reason_is_told_as_it_is_whatever_stands_in_its_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        fail("refused [red]by[/nope] [errno 111]")
    assert ended.value.code == COULD_NOT
    assert "Could not run: refused [red]by[/nope] [errno 111]" in capsys.readouterr().err


EVIL = "[/bold] [red]x[/red] \x1b[31m \ud800 two\nlines \\"


def test_anybodys_text_is_printed_as_it_is_and_no_terminal_obeys_it(capsys: pytest.CaptureFixture[str]) -> None:
    Console(width=200).print(f"[bold]{plain(EVIL)}[/]", highlight=False)
    assert capsys.readouterr().out == "[/bold] [red]x[/red] \\x1b[31m \\ud800 two\\nlines \\\n"


def test_letters_findings_and_documents_may_say_what_they_like(
    monkeypatch: pytest.MonkeyPatch, run: CliRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    letter = Letter(Source.KAFKA, "0/1", EVIL, asset_id=EVIL, told={"value": EVIL})
    monkeypatch.setattr(dlq, "installation", lambda: contextlib.nullcontext(mock.Mock(now=datetime.now, queue=None)))
    monkeypatch.setattr(letters, "find", lambda *_, **__: [letter])
    monkeypatch.setattr(letters, "redrive_all", lambda *_, **__: iter([Redriven(letter), Redriven(letter, EVIL)]))
    for command, code in ((["list"], 1), (["show", "0/1"], 0), (["redrive", "0/1", "--why", "x"], 1)):
        done = run.invoke(app, ["dlq", *command])
        assert done.exit_code == code, done.output
        assert "\x1b" not in done.stdout
        assert "[red]x" in done.stdout
