"""Every name that the documentation uses exists, and every name that somebody may look for is in the documentation.

To hold another kind of name (metrics, alerts, spans) to the code, add a test like these: what the pages say, what the
code has, both ways.
"""

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from asset_api.problems import Problems
from darkroom.assets import Status
from darkroom.cli.main import app
from darkroom.contracts.events import EventType
from darkroom.contracts.failures import FailureCode
from darkroom.contracts.topics import Topics
from support.configuration import names as settings_names
from support.markdown import ROOT, Page, pages, sources

PAGES = pages()
TEXT = "\n".join(page.text for page in PAGES)
COMMANDS = sorted({line for page in PAGES for line in page.commands})

NOT_EVENTS = {"AssetId", "AssetApiRole", "AssetApiRoleArn"}


def page(name: str) -> Page:
    return Page(ROOT / name)


# Settings


def test_every_variable_in_a_page_is_a_setting_or_a_switch_of_the_tests() -> None:
    told = set(re.findall(r"DARKROOM_[A-Z0-9_]*[A-Z0-9]", TEXT))
    assert told <= settings_names() | switches()


def test_every_switch_of_the_tests_is_explained() -> None:
    explained = set(re.findall(r"`(DARKROOM_[A-Z0-9_]+)`", page("CONTRIBUTING.md").text))
    assert switches() <= explained


def test_whatever_sets_a_variable_sets_one_that_exists() -> None:
    text = sources("deploy", endings=(".yaml", ".env", ".properties", "")) + sources("benchmarks", "libs", "services")
    text += sources("Makefile")
    used = set(re.findall(r"\bDARKROOM_[A-Z0-9_]*[A-Z0-9]\b", text))
    assert used <= settings_names() | switches()


def switches() -> set[str]:
    """Variables that only the tests read."""
    text = sources("tests")
    read = re.findall(r'environ(?:\.get\(|\[)"(DARKROOM_[A-Z0-9_]+)"', text)
    named = re.findall(r'_VARIABLE = "(DARKROOM_[A-Z0-9_]+)"', text)
    return {*read, *named} - settings_names()


# Events, topics, problems, failures


def test_every_event_in_a_page_is_a_type_and_every_type_is_explained() -> None:
    told = set(re.findall(r"\bAsset(?:[A-Z][a-z]+)+\b", TEXT)) - NOT_EVENTS
    assert told == {str(kind) for kind in EventType}
    rows = re.findall(r"^\| (`Asset.*?) \|", page("docs/architecture.md").text, re.MULTILINE)
    explained = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert explained == {str(kind) for kind in EventType}


def test_every_topic_is_one_and_is_explained() -> None:
    told = {name.rstrip(".") for name in re.findall(r"`(assets\.[a-z.]+)`", TEXT)}
    topics = Topics()
    assert told == {topics.uploaded, topics.uploaded_dlq, topics.events}


def test_every_problem_in_a_page_is_one() -> None:
    told = set(re.findall(r"urn:darkroom:problem:[a-z-]+", TEXT))
    assert told == {kind.value.type for kind in Problems}


def test_every_failure_is_explained_and_the_others_name_no_other() -> None:
    told = set(re.findall(r"^\| `([a-z_]+)` \|", page("docs/failures.md").text, re.MULTILINE))
    assert told == {str(code) for code in FailureCode}
    codes = re.findall(r"FAILED (?:for [a-z ]+|with|as) \(?`?([a-z]+_[a-z_]+)", TEXT)
    assert set(codes) <= {str(code) for code in FailureCode}


def test_every_status_is_in_the_picture() -> None:
    told = set(re.findall(r"^    ([A-Z]+|\[\*\]) --> ", page("docs/architecture.md").text, re.MULTILINE))
    ends = set(re.findall(r" --> ([A-Z]+):", page("docs/architecture.md").text))
    assert (told | ends) - {"[*]"} == {str(status) for status in Status}


# The command line


def commands() -> Iterator[tuple[str, Any]]:
    """Each command that can be called, by its words behind ``darkroom``."""

    def below(command: Any, words: str) -> Iterator[tuple[str, Any]]:
        if isinstance(children := getattr(command, "commands", None), dict):
            for name, child in children.items():
                yield from below(child, f"{words} {name}".strip())
        else:
            yield words, command

    yield from below(typer.main.get_command(app), "")


CLI = dict(commands())
GROUPS = {words.split()[0] for words in CLI}
# A target of make that is a command hands its arguments on.
CALLS = [re.sub(r'^make ([a-z]+) ARGS="(.*)"$', r"darkroom \1 \2", line) for line in COMMANDS]
CALLS = [
    line for line in CALLS if (found := re.match(r"(?:\. \S+ && )?darkroom ([a-z]+)", line)) and found[1] in GROUPS
]


@pytest.mark.parametrize("line", CALLS)
def test_what_is_to_be_typed_is_a_command_with_these_options(line: str) -> None:
    words = line.split("&&")[-1].split()[1:]
    called = next((name for name in (" ".join(words[:2]), words[0]) if name in CLI), None)
    if called is None:
        assert words == words[:1], f"`darkroom {words[0]}` has no command {words[1:]}"
        assert words[0] in GROUPS, f"there is no command {words[0]}"
        return
    options = {option for parameter in CLI[called].params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = {word.split("=")[0] for word in words if word.startswith("--")}
    assert given <= options, f"darkroom {called} has no {given - options}"


def test_every_command_is_in_the_documentation() -> None:
    told = " ".join(COMMANDS)
    missing = {words for words in CLI if not re.search(rf"darkroom (?:{words}|{words.split()[0]})\b", told)}
    assert missing == set()


# Make, modules, files


def test_every_make_target_is_one_and_is_told_of() -> None:
    made = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    lines = [line for line in COMMANDS if line.startswith("make ")]
    told = {word for line in lines for word in shlex.split(line)[1:] if "=" not in word}
    assert told <= made
    assert made - told == set()


def test_every_extra_that_is_to_be_installed_is_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    told = {name for given in re.findall(r"darkroom\[([a-z,-]+)\]", TEXT) for name in given.split(",")}
    assert told <= project["optional-dependencies"].keys()


def test_every_module_that_is_to_be_run_is_there() -> None:
    named = {module for line in COMMANDS for module in re.findall(r"python -m ([a-z_0-9.]+)", line)}
    assert named
    for module in sorted(named - {"pytest"}):
        assert importlib.util.find_spec(module) is not None, module


def test_every_file_that_is_named_is_there() -> None:
    folders = "benchmarks|deploy|docs|libs|requirements|services|tests"
    named = {
        found for page in PAGES for span in page.spans for found in re.findall(rf"\b(?:{folders})/[\w./*-]+", span)
    }
    assert named
    missing = [name for name in sorted(named) if not any(ROOT.glob(name.rstrip("/.")))]
    assert missing == []


ENDINGS = (".py", ".toml", ".yaml", ".json", ".properties", ".js", ".html", ".conf")
CODE = sources("libs", "services", "tests", "benchmarks", "deploy", endings=ENDINGS)
CODE += sources("Makefile", "pyproject.toml")
FOREIGN = {
    # What Prometheus's own client tells of every process.
    *("process_max_fds", "process_start_time_seconds", "process_virtual_memory_bytes"),
    # Of MongoDB and AWS, told to whoever sets them up.
    *("periodicNoopIntervalSecs", "shardCollection", "GetQueueUrl", "GetObjectTagging", "ChangeMessageVisibility"),
}
# A decision is never rewritten, so it may speak of what is no more.
OF_TODAY = [page for page in PAGES if "decisions" not in page.path.parts]


@pytest.mark.parametrize("page", OF_TODAY, ids=lambda page: page.name)
def test_every_name_written_as_code_exists(page: Page) -> None:
    """Names with an underscore or of several words, such as a function, a field, a class, or a code."""
    spans = {span for span in page.spans if re.fullmatch(r"[A-Za-z]\w*(?:_\w+|[a-z][A-Z]\w*)(?:\(\))?", span)}
    words = set(re.findall(r"\w+", CODE))
    named = {span.rstrip("()") for span in spans if not span.startswith("DARKROOM_")}
    wrong = named - words - FOREIGN
    assert wrong == set(), "misspelt or gone; or of another program, and then FOREIGN names it"


def test_a_path_is_no_machines(tmp_path: Path) -> None:
    assert not re.search(r"(?:/work/|/home/|/root/|/tmp/[a-z])", TEXT)
