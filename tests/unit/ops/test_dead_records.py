"""Whatever lies in the dead letters' topic can be shown."""

import pytest

from darkroom.ops.letters import kafka_letter
from darkroom.ops.topics import TopicRecord


@pytest.mark.parametrize("value", [b"[" * 100_000, b"{", b"\xff\xfe\x00", b"", None])
def test_a_record_that_is_no_json_is_told_as_text(value: bytes | None) -> None:
    record = TopicRecord("assets.uploaded.dlq", 0, 7, b"\xff", value, (), None, 0.0)
    letter = kafka_letter(record, redriven=False)
    assert letter.id == "0/7"
    assert letter.told["value"] == (value or b"").decode(errors="backslashreplace")
