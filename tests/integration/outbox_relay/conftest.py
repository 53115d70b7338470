"""The stage on which each test of the relay plays."""

from collections.abc import Callable, Iterator

import pytest

from darkroom.contracts.topics import Topics
from darkroom.runtime.mongo import Db, connect
from support.relay_stage import Stage


@pytest.fixture
def stage(mongo_url: str, mongo_db: Db, kafka_bootstrap: str, topic_names: Callable[[str], str]) -> Iterator[Stage]:
    """An empty outbox and topic."""
    prefix = topic_names(Topics().events).removesuffix(Topics().events)
    with connect(mongo_url) as client:
        stage = Stage(client, client[mongo_db.name], mongo_url, kafka_bootstrap, prefix)
        stage.set_up()
        yield stage
