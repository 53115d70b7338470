"""`darkroom setup` on a real broker: it creates what is missing, changes nothing, and says so."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from darkroom.cli.main import app
from darkroom.contracts.topics import Topics
from support.servers import delete_topics


@pytest.fixture
def topics(kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Topics]:
    own = Topics(f"setup{uuid.uuid4().hex[:8]}.")
    monkeypatch.setenv("DARKROOM_KAFKA_BOOTSTRAP", kafka_bootstrap)
    monkeypatch.setenv("DARKROOM_TOPIC_PREFIX", own.prefix)
    yield own
    delete_topics(kafka_bootstrap, own.prefix)


def setup(*options: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["setup", "--json", *options])
    assert (done.exit_code, done.stderr) == (0, "")
    told: list[dict[str, Any]] = json.loads(done.stdout)
    return told


def test_topics_are_created_once_and_what_stays_otherwise_is_told(topics: Topics) -> None:
    first = setup("--partitions", "3")
    assert [one["topic"] for one in first] == [topics.uploaded, topics.uploaded_dlq, topics.events]
    assert all(one["created"] and one["differs"] == {} for one in first)
    assert not any(one["created"] or one["differs"] for one in setup("--partitions", "3"))
    for one in setup("--partitions", "5", "--retention-days", "2"):
        assert one["differs"]["partitions"] == {"is": "3", "asked": "5"}
        assert one["differs"].keys() == {"partitions", "retention.ms"}
    said = CliRunner().invoke(app, ["setup", "--partitions", "5"]).stdout
    assert said.count("partitions stays 3, not 5") == 3
