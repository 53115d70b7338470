"""Whether a schema may take the place of a released one under the same version.

Events are kept for ever and read by programs of any age. So what was valid must stay valid, for the sake of the events
that are stored, and what is written anew must be valid for those who read by the released schema. What passes both ways
is little: an optional field may be added, and descriptions may change. Anything else is a new version of the type.
"""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_ANNOTATIONS = frozenset({"$comment", "$defs", "$id", "$ref", "$schema", "default", "description", "examples", "title"})
_BY_NAME = frozenset({"properties", "required"})


def breaks(released: Schema, proposed: Schema) -> list[str]:
    """Each way in which ``proposed`` breaks what ``released`` promised, as a sentence that names the field."""
    return list(_differences(released, proposed, roots=(released, proposed), at="data"))


def _differences(old: Any, new: Any, *, roots: tuple[Schema, Schema], at: str) -> Iterator[str]:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield f"{at}: was {old!r} and is {new!r}"
        return
    old, new = _resolved(old, roots[0]), _resolved(new, roots[1])
    yield from _fields(old, new, roots=roots, at=at)
    for keyword in sorted((old.keys() | new.keys()) - _ANNOTATIONS - _BY_NAME):
        before, after = old.get(keyword), new.get(keyword)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differences(before, after, roots=roots, at=f"{at} {keyword}")
        elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
            for place, (one, other) in enumerate(zip(before, after, strict=True)):
                yield from _differences(one, other, roots=roots, at=f"{at} {keyword}[{place}]")
        elif before != after:
            yield f"{at}: {keyword} was {before!r} and is {after!r}"


def _fields(old: Schema, new: Schema, *, roots: tuple[Schema, Schema], at: str) -> Iterator[str]:
    before, after = old.get("properties", {}), new.get("properties", {})
    needed_before, needed_after = set(old.get("required", ())), set(new.get("required", ()))
    for name in before:
        if name not in after:
            yield f"{at}.{name}: is gone; readers of the released version may use it"
            continue
        if name in needed_before - needed_after:
            yield f"{at}.{name}: was always there and is optional now; readers of the released version count on it"
        yield from _differences(before[name], after[name], roots=roots, at=f"{at}.{name}")
    for name in sorted(needed_after - needed_before):
        yield f"{at}.{name}: is required now, and events that are stored do not have it"


def _resolved(schema: Schema, root: Schema) -> Schema:
    """The schema with its ``$ref`` into ``$defs`` followed."""
    while (reference := schema.get("$ref")) is not None:
        name = str(reference).removeprefix("#/$defs/")
        schema = {**root["$defs"][name], **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema
