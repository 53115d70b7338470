"""docs/tracing.md names every span and every attribute that the code has, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from darkroom.runtime import sampling, tracing
from darkroom.runtime.settings import LogSettings

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "tracing.md").read_text(encoding="utf-8")
BEGINNERS = {"begin", "span", "root", "update_name"}
ATTRIBUTE = re.compile(r"(?:darkroom|messaging|http|url)\.(?!response\.start)[a-z_.]+")


def test_spans() -> None:
    named = set(re.findall(r"^\| `([^`]+)` \| (?:server|client|consumer|producer|internal) \|", PAGE, re.MULTILINE))
    assert {name for tree in _trees() for name in _spans(tree)} == named


def test_attributes() -> None:
    section = PAGE.partition("| attribute |")[2].partition("\n\n")[0]
    named = set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))
    assert {name for tree in _trees() for name in _attributes(tree)} == named


def test_variables() -> None:
    sources = [Path(module.__file__ or "").read_text(encoding="utf-8") for module in (tracing, sampling)]
    known = {name for source in sources for name in re.findall(r"OTEL_[A-Z_]+[A-Z]", source)}
    named = set(re.findall(r"OTEL_[A-Z_]+[A-Z]", PAGE))
    # The SDK's own, which need nothing from us, and two that are for those who know them.
    assert named - known == {"OTEL_RESOURCE_ATTRIBUTES", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_BSP"}
    assert known - named == {"OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"}
    ours = set(re.findall(r"DARKROOM_(\w+)", PAGE))
    assert ours == {name.upper() for name in LogSettings.model_fields}


def _trees() -> Iterator[ast.Module]:
    for top in ("libs", "services"):
        for path in (ROOT / top).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            if "darkroom.tracing" in source and path.parent.name != "tracing":
                yield ast.parse(source)


def _spans(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in BEGINNERS:
            match node.args[:1]:
                case [ast.Constant(value=str(name))]:
                    yield name
                case [ast.JoinedStr() as text]:
                    yield re.sub(r"\{.*?(\w+)\W*\}", r"{\1}", ast.unparse(text)[2:-1])


def _attributes(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and ATTRIBUTE.fullmatch(node.value):
            yield node.value
