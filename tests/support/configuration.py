"""The configuration reference, docs/configuration.md: made from the settings of every program, and committed.

``make reference`` writes it anew; a test holds both equal. It stands among the tests, since it reads the settings of
all services, and no service and no part of the library may know them all.
"""

import json
import types
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python
from pydantic_settings import BaseSettings

import asset_api.settings
import notifier.settings
import outbox_relay.settings
import processor.settings
import s3_bridge.settings
from darkroom.cli import reconciler
from darkroom.life import app as life
from darkroom.local.stack import STACK_VARIABLE
from darkroom.ops import installation
from darkroom.runtime.settings import PREFIX, BaseUrl, Group, HttpUrl, HttpUrlWithUserinfo
from darkroom.setup import prepare, wait

FILE = Path(__file__).parents[2] / "docs" / "configuration.md"


@dataclass(frozen=True)
class Program:
    """What is started, and the class of its settings."""

    name: str
    title: str
    settings: type[BaseSettings]


PROGRAMS = (
    Program("asset_api", "The API: `python -m asset_api`", asset_api.settings.Settings),
    Program("s3_bridge (function)", "The bridge as a Lambda function", s3_bridge.settings.FunctionSettings),
    Program("s3_bridge", "The bridge as a container: `python -m s3_bridge`", s3_bridge.settings.PollerSettings),
    Program("processor", "Processors: `python -m processor`", processor.settings.Settings),
    Program("outbox_relay", "Relays: `python -m outbox_relay`", outbox_relay.settings.Settings),
    Program("notifier", "The notifier: `python -m notifier`", notifier.settings.Settings),
    Program("sweeper", "The sweeper: `darkroom sweep` or `python -m darkroom.life`", life.Settings),
    Program(
        "operations",
        "Operations: `darkroom status`, `why`, `dlq`, `verify`, `rebuild`, `reconcile`",
        installation.OpsSettings,
    ),
    Program("reconciler", "The reconciler: `darkroom reconcile --every`", reconciler.ReconcilerSettings),
    Program("prepare", "Preparing new servers: `python -m darkroom.setup.prepare`", prepare.Settings),
)

MADE_AT_THE_START = {
    "relay_instance": "host, process and a random part",
    "processor_instance": "host and process",
    "processor_decoders": "as many as the machine has processors",
    "operator": "the login's name",
}
"""Defaults that differ from machine to machine, in words."""

_ADDRESSES = [rule for kind in (HttpUrl, HttpUrlWithUserinfo, BaseUrl) for rule in get_args(kind)[1:]]
"""By what a text that is a URL is told from others."""

HEAD = """\
# Configuration

Every setting is an environment variable. A variable that is missing or wrong ends the program before anything is
started, with one line for each. Variables that a program does not know are ignored.

<!-- Made by `make reference` from the classes of the settings; a test fails when it is not current. -->

**required**: there is no default. **secret**: keep it in a secret store; programs that print their settings print stars
for it.

Credentials and region come by AWS's own variables (`AWS_REGION`, `AWS_ACCESS_KEY_ID`, …) or the role of whatever runs
the program, and `AWS_ENDPOINT_URL` names an endpoint other than AWS. The local stack (`make up`, `make demo`) sets
everything by itself; which of these variables it takes over from you is in the
[README](../README.md#on-your-own-servers). `darkroom setup` reads what Kafka needs, and `darkroom token` reads
`DARKROOM_JWT_SECRET`. Who should know which secret: [security](security.md#secrets).
"""


def render() -> str:
    """The page."""
    parts = [HEAD]
    for group in _groups():
        readers = ", ".join(program.name for program in PROGRAMS if issubclass(program.settings, group))
        parts.append(f"## {_sentence(group)}\n\nRead by: {readers}.\n\n{_table(group, _fields(group))}")
    for program in PROGRAMS:
        shared = [group for group in _groups() if issubclass(program.settings, group)]
        also = ", ".join(f"[{_sentence(group)}](#{anchor(_sentence(group))})" for group in shared)
        own = _fields(program.settings)
        table = _table(program.settings, own) if own else "Nothing of its own.\n"
        parts.append(f"## {program.title}\n\nAlso: {also}.\n\n{table}")
    parts.append(
        "## Containers\n\n"
        "Their entry point, `python -m darkroom.setup.wait MODULE`, waits for the servers that the variables name.\n\n"
        "| variable | type | default | meaning |\n|---|---|---|---|\n"
        f"| `{wait.SECONDS_VARIABLE}` | number, from 0, to {wait.MOST_SECONDS:,.0f} | `{wait.DEFAULT_SECONDS:g}` | "
        "how many seconds each server may take, before the container ends with the reason |\n"
    )
    parts.append(
        "## Set by the local stack\n\n"
        "| variable | type | default | meaning |\n|---|---|---|---|\n"
        f"| `{STACK_VARIABLE}` | text | none | in the environment file that `darkroom up` writes: the folder of its "
        "stack; where it is set, `up` and `demo` start nothing at that stack's servers |\n"
    )
    return "\n".join(parts)


def names() -> frozenset[str]:
    """Every variable there is."""
    fields = {name for program in PROGRAMS for name in program.settings.model_fields}
    return frozenset({PREFIX + name.upper() for name in fields} | {wait.SECONDS_VARIABLE, STACK_VARIABLE})


def numbers(settings: type[BaseSettings]) -> list[tuple[str, FieldInfo]]:
    """The settings that are numbers."""
    return [(name, field) for name, field in settings.model_fields.items() if field.annotation in (int, float)]


def bounds(field: FieldInfo) -> tuple[float | None, float | None]:
    """The least and the most that a number may be; what is only above or below something has no such bound."""
    least: Any = None
    most: Any = None
    for rule in field.metadata:
        match rule:
            case Ge(ge=bound):
                least = bound
            case Le(le=bound):
                most = bound
            case _:
                pass  # no bound
    return least, most


def anchor(heading: str) -> str:
    """The fragment that GitHub gives a heading."""
    kept = "".join(c for c in heading.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _groups() -> list[type[BaseSettings]]:
    """What several programs share, in the order in which programs name it."""
    found: dict[type[BaseSettings], None] = {}
    for program in PROGRAMS:
        for base in program.settings.__mro__[1:]:
            if issubclass(base, Group) and base is not Group:
                found[base] = None
    return list(found)


def _sentence(group: type[BaseSettings]) -> str:
    return (group.__doc__ or group.__name__).strip().splitlines()[0].split(". ")[0].rstrip(".")


def _fields(settings: type[BaseSettings]) -> dict[str, FieldInfo]:
    """What the class itself adds."""
    return {name: field for name, field in settings.model_fields.items() if name in settings.__annotations__}


def _table(settings: type[BaseSettings], fields: dict[str, FieldInfo]) -> str:
    lines = ["| variable | type | default | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        if not field.description:
            raise ValueError(f"{settings.__module__}.{settings.__name__}.{name}: has no description")
        cells = (f"`{PREFIX}{name.upper()}`", _type(field), _default(name, field), field.description)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    if name in MADE_AT_THE_START:
        return MADE_AT_THE_START[name]
    value: Any = field.get_default(call_default_factory=True, validated_data={})
    return "none" if value is None or value in ("", ()) else f"`{_as_written(value)}`"


def _as_written(value: Any) -> str:
    """The value as one would set it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, tuple) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    if isinstance(value, (tuple, dict)):
        return json.dumps(to_jsonable_python(value, exclude_none=True))
    return str(value)


def _type(field: FieldInfo) -> str:
    secret = _is(field.annotation, SecretStr)
    # What a type is annotated with stands in the field where the type stands alone.
    address = any(rule in _ADDRESSES for rule in field.metadata)
    said = ["address" if address else _kind(field.annotation), *_bounds(field.metadata)]
    if secret:
        said.append("**secret**")
    elif not field.repr:
        said.append("may hold a **secret**")
    return ", ".join(said)


def _is(annotation: Any, wanted: type) -> bool:
    return annotation is wanted or wanted in get_args(annotation)


def _kind(annotation: Any) -> str:
    if get_origin(annotation) in (Union, types.UnionType):
        (annotation,) = (one for one in get_args(annotation) if one is not type(None))
    if get_origin(annotation) is Annotated and any(rule in _ADDRESSES for rule in get_args(annotation)[1:]):
        return "address"
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{one}`" for one in get_args(annotation))
    if get_origin(annotation) is tuple:
        return "texts, separated by commas" if get_args(annotation)[0] is str else "JSON list"
    if get_origin(annotation) is dict:
        return "JSON object"
    if issubclass(annotation, StrEnum):
        return " or ".join(f"`{one}`" for one in annotation)
    return {str: "text", SecretStr: "text", bool: "`true` or `false`", int: "whole number"}.get(annotation, "number")


def _bounds(metadata: list[Any]) -> list[str]:
    said = []
    for rule in metadata:
        match rule:
            case Ge(ge=least):
                said.append(f"from {least:,}")
            case Le(le=most):
                said.append(f"to {most:,}")
            case MinLen(min_length=1):
                said.append("not empty")
            case MinLen(min_length=least):
                said.append(f"{least} characters or more")
            case MaxLen(max_length=most):
                said.append(f"{most} characters at most")
            case _ if getattr(rule, "pattern", None):
                said.append(f"`{rule.pattern}`")
            case _:
                pass  # how a value is read, not what it may be
    return said


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
