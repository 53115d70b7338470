"""The committed schemas are those of the models, and real events satisfy them."""

import json

import jsonschema
import pytest

from darkroom.contracts.envelope import STREAM_SOURCE, to_record
from darkroom.contracts.events import EventData
from darkroom.contracts.schemas import ALL, committed, generate
from support.events import failed, processing, ready, registered, step, uploaded


@pytest.mark.parametrize("data", ALL, ids=lambda data: str(data.event_type))
def test_the_committed_schema_is_the_models(data: type[EventData]) -> None:
    assert committed(data) == generate(data), "run: python -m darkroom.contracts.schemas"


def test_records_satisfy_their_schemas() -> None:
    first = registered(checksum_sha256="A" * 43 + "=")
    second = step(first.after, processing())
    events = [first.event, second.event, step(second.after, ready(second.after)).event]
    events += [step(second.after, failed()).event, uploaded(first.after)]
    for event in events:
        record = to_record(event, source=STREAM_SOURCE)
        jsonschema.validate(json.loads(record.value), committed(type(event.data)))
