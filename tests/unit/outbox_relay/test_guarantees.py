"""What the relay asks of its producer, whatever the user's own settings say."""

from typing import Any

import pytest

from outbox_relay.publisher import Publisher, TopicFacts


def test_no_record_is_ever_given_up_while_its_successors_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that expires in the client's queue, while the next one is delivered, is a gap in an asset's order."""
    made: list[dict[str, Any]] = []
    # The client tells nobody its configuration, and to see a record expire takes minutes.
    monkeypatch.setattr("outbox_relay.publisher.Producer", made.append)
    extra = {"message.timeout.ms": 1000, "enable.gapless.guarantee": False, "acks": 1, "client.id": "mine"}
    Publisher(bootstrap="b:1", topic="t", facts=TopicFacts(partitions=1, max_message_bytes=1000), extra=extra)
    (config,) = made
    wanted = {
        "message.timeout.ms": 0,
        "enable.gapless.guarantee": True,
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "client.id": "mine",
    }
    assert {name: config[name] for name in wanted} == wanted
