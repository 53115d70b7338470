"""``darkroom setup``: what must exist on your own servers before the first service starts."""

from collections.abc import Mapping
from typing import Annotated, Any

from confluent_kafka import KafkaException
from rich.console import Console

from darkroom.cli.operation import Json, between, plain, print_json
from darkroom.contracts.topics import Topics
from darkroom.runtime.kafka import deviations, ensure_topics
from darkroom.runtime.settings import KafkaSettings, load


def setup(
    partitions: Annotated[int, between(1, 10_000, "Partitions of each topic: the bound on processors.")] = 12,
    retention_days: Annotated[int, between(1, 3650, "How long events are kept in Kafka.")] = 7,
    as_json: Json = False,
) -> None:
    """Create the Kafka topics that are missing. Indexes are made by the services when they start.

    A topic that is there stays as it is; what it has otherwise than asked for is told.
    """
    settings = load(KafkaSettings)
    topics = Topics(settings.topic_prefix).specs(partitions=partitions, retention_days=retention_days)
    created = ensure_topics(settings.kafka_bootstrap, topics, settings.kafka_config)
    there = [topic for topic in topics if topic.name not in created]
    try:
        other = deviations(settings.kafka_bootstrap, there, settings.kafka_config)
    except KafkaException as error:
        # Who may create topics need not be allowed to read their settings.
        Console(stderr=True).print(f"What exists could not be compared: {plain(error.args[0].str())}", highlight=False)
        other = {}
    if as_json:
        print_json([_told(topic.name, created=topic.name in created, other=other) for topic in topics])
        return
    for topic in topics:
        Console().print(f"{topic.name}: {'created' if topic.name in created else 'there already'}", highlight=False)
        for name, (now, asked) in other.get(topic.name, {}).items():
            Console().print(f"  {name} stays {now}, not {asked}: see docs/upgrading.md, Topics", highlight=False)


def _told(topic: str, *, created: bool, other: Mapping[str, Mapping[str, tuple[str, str]]]) -> dict[str, Any]:
    differs = {name: {"is": now, "asked": asked} for name, (now, asked) in other.get(topic, {}).items()}
    return {"topic": topic, "created": created, "differs": differs}
