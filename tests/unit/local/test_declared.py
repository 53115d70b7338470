"""What deploy/local declares."""

import pytest

from darkroom.local.declared import declared, fill


def test_a_name_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="db_path"):
        fill("mongod.conf", port=1, cache_gb=1)


def test_topics_are_never_made_by_accident() -> None:
    assert "auto.create.topics.enable=false\n" in declared("kafka/server.properties").read_text(encoding="utf-8")
