"""The committed JSON Schemas of every event's data, one file a type and version.

``python -m darkroom.contracts.schemas`` writes them anew from the models; a test holds both equal.
"""

import json
from importlib.resources import files
from typing import Any

from darkroom.contracts.events import EVENT_DATA, EventData


def generate(data: type[EventData]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of one event type's data."""
    schema = data.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": data.dataschema(), **schema}


def file_name(data: type[EventData]) -> str:
    """The schema's file, such as ``AssetReady.v1.json``."""
    return f"{data.event_type}.v{data.data_version}.json"


def committed(data: type[EventData]) -> dict[str, Any]:
    """The schema as it is published with this version.

    Raises:
        FileNotFoundError: no schema of that type and version was committed.

    """
    text = files(__name__).joinpath(file_name(data)).read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def render(data: type[EventData]) -> str:
    """The file's text."""
    return json.dumps(generate(data), indent=2, sort_keys=True) + "\n"


ALL = tuple(EVENT_DATA.values())
