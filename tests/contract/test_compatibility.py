"""A released schema never breaks: what is committed stays compatible with every version that was ever released."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from darkroom.contracts.compatibility import breaks
from darkroom.contracts.schemas import ALL, committed, file_name

Schema = dict[str, Any]

# Copies of what was released, by hand and for good: a file is added with a version and never changed.
RELEASED = Path(__file__).with_name("released")
CURRENT = {file_name(data): committed(data) for data in ALL}


def released(name: str) -> Schema:
    schema: Schema = json.loads((RELEASED / name).read_text(encoding="utf-8"))
    return schema


@pytest.mark.parametrize("name", sorted(file.name for file in RELEASED.glob("*.json")))
def test_what_was_released_still_holds(name: str) -> None:
    assert name in CURRENT, f"{name} was released; its events are stored, so its schema must stay"
    assert breaks(released(name), CURRENT[name]) == [], "release a new version of the type (data_version) instead"


def test_every_current_schema_is_among_the_released() -> None:
    missing = CURRENT.keys() - {file.name for file in RELEASED.glob("*.json")}
    assert not missing, f"copy to {RELEASED}: what is sent to others is released"


def changed(change: Callable[[Schema], object]) -> Schema:
    schema = copy.deepcopy(released("AssetReady.v1.json"))
    change(schema)
    return schema


BREAKING: dict[str, tuple[Callable[[Schema], object], str]] = {
    "a field goes": (lambda s: s["properties"].pop("labels"), "data.labels: is gone"),
    "a nested field goes": (
        lambda s: s["$defs"]["Original"]["properties"].pop("format"),
        "data.original.format: is gone",
    ),
    "a field becomes required": (lambda s: s["required"].append("labels"), "data.labels: is required now"),
    "a field becomes optional": (lambda s: s["required"].remove("bucket"), "data.bucket: was always there"),
    "another type": (lambda s: s["properties"]["bucket"].update(type="integer"), "data.bucket: type was 'string'"),
    "a nested type": (
        lambda s: s["$defs"]["Rendition"]["properties"]["width"].update(type="string"),
        "data.renditions items.width: type was 'integer'",
    ),
    "one of several types goes": (
        lambda s: s["$defs"]["Original"]["properties"]["version_id"]["anyOf"].pop(),
        "data.original.version_id: anyOf was",
    ),
    "a bound": (lambda s: s["$defs"]["Original"]["properties"]["width"].update(minimum=2), "minimum was 1 and is 2"),
    "a bound goes": (
        lambda s: s["$defs"]["Original"]["properties"]["width"].pop("minimum"),
        "minimum was 1 and is None",
    ),
    "unknown fields are refused": (
        lambda s: s.update(additionalProperties=False),
        "data: additionalProperties was None",
    ),
    "a pattern": (lambda s: s["properties"]["bucket"].update(pattern="^a"), "data.bucket: pattern was None"),
}


@pytest.mark.parametrize(("change", "told"), BREAKING.values(), ids=BREAKING)
def test_a_break_is_found_and_named(change: Callable[[Schema], object], told: str) -> None:
    found = breaks(released("AssetReady.v1.json"), changed(change))
    assert len(found) == 1
    assert told in found[0]


HARMLESS: dict[str, Callable[[Schema], object]] = {
    "an optional field": lambda s: s["properties"].update(blurhash={"type": "string"}),
    "a nested optional field": lambda s: s["$defs"]["Original"]["properties"].update(dpi={"type": "integer"}),
    "words": lambda s: s.update(description="Said better.", title="Ready"),
    "a default": lambda s: s["properties"]["labels"].update(default={}),
}


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_what_readers_of_both_versions_can_take_is_let_through(change: Callable[[Schema], object]) -> None:
    assert breaks(released("AssetReady.v1.json"), changed(change)) == []
