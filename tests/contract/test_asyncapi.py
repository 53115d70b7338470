"""The AsyncAPI document is the models', is valid, and describes the records that are really sent."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from darkroom.contracts.asyncapi import committed, generate, render
from darkroom.contracts.envelope import BRIDGE_SOURCE, STREAM_SOURCE, Record, to_record
from darkroom.contracts.events import EventType
from darkroom.contracts.topics import Topics
from support.events import failed, processing, ready, registered, step, uploaded

META = json.loads(Path(__file__).with_name("asyncapi-3.0.0.schema.json").read_text(encoding="utf-8"))
DOCUMENT = committed()


def inlined(schema: Any) -> Any:
    """The schema with the document's components beside it, for a validator of JSON Schema."""
    return {**schema, "components": DOCUMENT["components"]}


def records() -> list[tuple[EventType, Record]]:
    first = registered(checksum_sha256="A" * 43 + "=")
    second = step(first.after, processing())
    streamed = [first, second, step(second.after, ready(second.after)), step(second.after, failed())]
    sent = [(one.event.type, to_record(one.event, source=STREAM_SOURCE)) for one in streamed]
    upload = uploaded(first.after)
    return [*sent, (upload.type, to_record(upload, source=BRIDGE_SOURCE))]


def test_the_committed_document_is_the_models() -> None:
    assert json.loads(render()) == DOCUMENT, "run: python -m darkroom.contracts.asyncapi"


def test_it_is_a_document_of_asyncapi_3() -> None:
    jsonschema.Draft7Validator(META).validate(DOCUMENT)


@pytest.mark.parametrize("fault", ["asyncapi", "info"])
def test_the_check_finds_what_is_missing(fault: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(META).validate({key: part for key, part in DOCUMENT.items() if key != fault})


def test_the_check_finds_a_misspelt_part_of_a_channel() -> None:
    wrong = generate()
    wrong["channels"]["events"]["adress"] = wrong["channels"]["events"].pop("address")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(META).validate(wrong)


def test_every_reference_leads_somewhere() -> None:
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', render())):
        found: Any = DOCUMENT
        for part in reference.split("/"):
            found = found[part]
        assert found


def test_every_topic_and_every_type_is_in_it_with_its_settings() -> None:
    told = {channel["address"]: channel["bindings"]["kafka"] for channel in DOCUMENT["channels"].values()}
    for topic in Topics().specs():
        binding = told.pop(topic.name)
        assert binding["partitions"] == topic.partitions
        written = {k: ",".join(v) if isinstance(v, list) else str(v) for k, v in binding["topicConfiguration"].items()}
        assert written == topic.config
    assert told == {}
    assert {*EventType} <= DOCUMENT["components"]["messages"].keys()


@pytest.mark.parametrize(("kind", "record"), records(), ids=lambda given: str(given) if isinstance(given, str) else "")
def test_a_record_as_it_is_sent_is_what_its_message_says(kind: EventType, record: Record) -> None:
    message = DOCUMENT["components"]["messages"][kind.value]
    headers = {name: value.decode() if isinstance(value, bytes) else value for name, value in record.headers}
    jsonschema.Draft7Validator(message["headers"]).validate(headers)
    assert headers.keys() <= message["headers"]["properties"].keys()
    jsonschema.Draft7Validator(inlined(message["payload"])).validate(json.loads(record.value))
    jsonschema.Draft7Validator(message["bindings"]["kafka"]["key"]).validate(record.key.decode())
