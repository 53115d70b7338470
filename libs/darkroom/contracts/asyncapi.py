"""The AsyncAPI 3 document of all topics and events, for everybody who subscribes: made from the models, and committed.

``python -m darkroom.contracts.asyncapi`` writes it anew; a test holds both equal.
"""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from darkroom.contracts.envelope import BRIDGE_SOURCE, STREAM_SOURCE
from darkroom.contracts.events import EVENT_DATA, UUID_PATTERN, EventData, EventType
from darkroom.contracts.topics import Topics, TopicSpec

FILE = "asyncapi.json"
VERSION = "1.0.0"
"""Of the contract: its first number changes with a break, the second with a new type, topic or optional field."""

_UUID = {"type": "string", "pattern": UUID_PATTERN}
_TEXT = {"type": "string", "minLength": 1}
_SHARED_HEADERS: dict[str, dict[str, Any]] = {
    "content-type": {"const": "application/json"},
    "ce_specversion": {"const": "1.0"},
    "ce_id": {**_UUID, "description": "The event's id. It is the same whenever the event is sent again."},
    "ce_subject": {**_UUID, "description": "The asset_id, which is the record's key as well."},
    "ce_time": {"type": "string", "format": "date-time", "description": "When it happened, in UTC."},
    "ce_causationid": {**_TEXT, "description": "The id of the event that caused this one."},
    "ce_correlationid": {**_TEXT, "description": "The same for everything that one request set off."},
    "ce_traceparent": {**_TEXT, "description": "W3C Trace Context."},
}
_OF_THE_STREAM: dict[str, dict[str, Any]] = {
    "ce_sequence": {
        "type": "string",
        "pattern": "^[1-9][0-9]*$",
        "description": "Place in the asset's stream, from 1.",
    },
    "ce_ownerid": {**_TEXT, "description": "Whose asset it is."},
}
_REASON: dict[str, Any] = {
    "type": "object",
    "required": ["dlq_reason"],
    "properties": {"dlq_reason": {"type": "string", "description": "Why the record could not be read."}},
}


def generate() -> dict[str, Any]:
    """The document."""
    topics = Topics()
    uploaded, dead, events = topics.specs()
    streamed = [data for kind, data in EVENT_DATA.items() if kind is not EventType.ASSET_UPLOADED]
    _, definitions = models_json_schema(
        [(data, "serialization") for data in EVENT_DATA.values()], ref_template="#/components/schemas/{model}"
    )
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Darkroom",
            "version": VERSION,
            "description": (
                "CloudEvents 1.0 in Kafka's binary mode: attributes are ce_ headers, the value is the data as JSON. "
                "Delivery is at least once, so a reader remembers ce_id; one asset's events are in order in their "
                "partition. Fields that are not known must be ignored: they may be added under the same version."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {
            "uploaded": _channel(uploaded, "From S3's notifications to the processors.", [EventType.ASSET_UPLOADED]),
            "events": _channel(events, "Every event of every asset's stream.", [data.event_type for data in streamed]),
            "uploadedDeadLetters": _channel(
                dead, "Records of assets.uploaded that are no event of ours.", ["DeadLetter"]
            ),
        },
        "operations": {
            "publishUploaded": _operation("send", "uploaded", "The bridge publishes that an original is in S3."),
            "processUploaded": _operation("receive", "uploaded", "The processors make the renditions."),
            "publishEvents": _operation("send", "events", "The relay publishes each committed event."),
            "setAside": _operation("send", "uploadedDeadLetters", "A processor puts away what it cannot read."),
        },
        "components": {
            "messages": {
                **{data.event_type.value: _message(data) for data in EVENT_DATA.values()},
                "DeadLetter": {
                    "summary": "The record as it came, byte for byte, with the reason beside its own headers.",
                    "headers": _REASON,
                    "contentType": "application/octet-stream",
                    "payload": {},
                },
            },
            "schemas": definitions["$defs"],
        },
    }


def _channel(topic: TopicSpec, description: str, messages: list[Any]) -> dict[str, Any]:
    return {
        "address": topic.name,
        "description": description,
        "messages": {str(name): {"$ref": f"#/components/messages/{name}"} for name in messages},
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "partitions": topic.partitions,
                "topicConfiguration": _binding(topic.config),
                "bindingVersion": "0.5.0",
            }
        },
    }


def _binding(config: dict[str, str]) -> dict[str, Any]:
    """Kafka's settings as the binding writes them: numbers as such, policies as a list."""
    return {
        name: value.split(",") if name == "cleanup.policy" else int(value) if value.isdigit() else value
        for name, value in config.items()
    }


def _operation(action: str, channel: str, summary: str) -> dict[str, Any]:
    return {"action": action, "channel": {"$ref": f"#/channels/{channel}"}, "summary": summary}


def _message(data: type[EventData]) -> dict[str, Any]:
    streamed = data.event_type is not EventType.ASSET_UPLOADED
    headers = {
        **_SHARED_HEADERS,
        **(_OF_THE_STREAM if streamed else {}),
        "ce_type": {"const": data.event_type.value},
        "ce_source": {"const": STREAM_SOURCE if streamed else BRIDGE_SOURCE},
        "ce_dataschema": {"const": data.dataschema()},
    }
    optional = {"ce_causationid", "ce_correlationid", "ce_traceparent"}
    return {
        "name": data.event_type.value,
        "summary": (data.__doc__ or "").strip().splitlines()[0],
        "contentType": "application/json",
        "headers": {"type": "object", "properties": headers, "required": sorted(headers.keys() - optional)},
        "payload": {"$ref": f"#/components/schemas/{data.__name__}"},
        "bindings": {"kafka": {"key": _UUID, "bindingVersion": "0.5.0"}},
    }


def render() -> str:
    """The file's text."""
    return json.dumps(generate(), indent=2) + "\n"


def committed() -> dict[str, Any]:
    """The document as it is published with this version."""
    document: dict[str, Any] = json.loads(files("darkroom.contracts").joinpath(FILE).read_text(encoding="utf-8"))
    return document


if __name__ == "__main__":
    Path(__file__).with_name(FILE).write_text(render(), encoding="utf-8")
