"""The configuration reference is the settings' own, and knows every program's."""

import ast
from pathlib import Path

import pytest

from support.configuration import FILE, PROGRAMS, names, render
from support.markdown import ROOT


def settings_in_the_code() -> set[str]:
    """Module and class of everything derived from a group of settings, but for the groups themselves."""
    found = set()
    for root in (ROOT / "libs", ROOT / "services"):
        for path in root.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and any(_name(base).endswith("Settings") for base in node.bases):
                    module = ".".join(path.relative_to(root).with_suffix("").parts)
                    found.add(f"{module}.{node.name}")
    return {name for name in found if not name.startswith("darkroom.runtime.")}


def _name(base: ast.expr) -> str:
    return base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""


def test_the_committed_page_is_the_settings() -> None:
    assert FILE.read_text(encoding="utf-8") == render(), "run: make reference"


def test_every_class_of_settings_is_on_the_page() -> None:
    told = {f"{program.settings.__module__}.{program.settings.__qualname__}" for program in PROGRAMS}
    assert told == settings_in_the_code(), "name the new one in PROGRAMS of tests/support/configuration.py"


def test_each_variable_has_a_row_wherever_it_is_read() -> None:
    page = render()
    for program in PROGRAMS:
        for name in program.settings.model_fields:
            assert f"| `DARKROOM_{name.upper()}` |" in page, f"{program.name}: {name}"


@pytest.mark.parametrize(
    "row",
    [
        "| `DARKROOM_MONGO_URL` | text, **secret** | **required** |",
        "| `DARKROOM_KAFKA_CONFIG` | JSON object, may hold a **secret** | `{}` |",
        "| `DARKROOM_HTTP_PORT` | whole number, from 0, to 65,535 | `8080` |",
        "| `DARKROOM_CLASSIFIER_ON_FAILURE` | `skip` or `retry` | `skip` |",
        "| `DARKROOM_CORS_ORIGINS` | texts, separated by commas | `http://localhost:8080` |",
        "| `DARKROOM_RELAY_INSTANCE` | text | host, process and a random part |",
    ],
)
def test_a_row_says_type_bounds_default_and_secrecy(row: str) -> None:
    assert row in render()


def test_nothing_of_this_machine_is_on_the_page(tmp_path: Path) -> None:
    assert str(Path.home()) not in render()
    assert "DARKROOM_WAIT_SECONDS" in names()
