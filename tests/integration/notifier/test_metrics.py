"""What the notifier tells of each channel."""

from dataclasses import replace
from typing import Any

from darkroom.metrics.registry import new_registry
from notifier.metrics import NotifierMetrics
from support.scrape import scraped

from .conftest import delivery


def test_attempts_are_counted_by_channel_and_end(world: Any, receiver: Any) -> None:
    registry = new_registry()
    tell = replace(world.notifier, max_attempts=1, observer=NotifierMetrics(registry, channels=["email", "webhook"]))
    tell(delivery(world.ready()))
    receiver.statuses[:] = [500]
    tell(delivery(world.failed()))
    samples = scraped(registry)

    def attempts(channel: str, outcome: str) -> float:
        return samples.value("darkroom_notifier_attempts_total", channel=channel, outcome=outcome)

    assert attempts("email", "sent") == 2
    assert attempts("webhook", "sent") == 1
    assert attempts("webhook", "not_sent") == 1
    assert samples.value("darkroom_notifier_given_up_total") == 1
