"""``darkroom setup``: what must exist on your own servers before the first service starts."""

from typing import Annotated

import typer
from rich.console import Console

from darkroom.cli.operation import Json, print_json
from darkroom.contracts.topics import Topics
from darkroom.runtime.kafka import ensure_topics
from darkroom.runtime.settings import KafkaSettings, load


def setup(
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of each topic: the bound on processors.")] = 12,
    retention_days: Annotated[int, typer.Option(min=1, help="How long events are kept in Kafka.")] = 7,
    as_json: Json = False,
) -> None:
    """Create the Kafka topics that are missing. Indexes are made by the services when they start."""
    settings = load(KafkaSettings)
    topics = Topics(settings.topic_prefix).specs(partitions=partitions, retention_days=retention_days)
    created = ensure_topics(settings.kafka_bootstrap, topics, settings.kafka_config)
    if as_json:
        print_json([{"topic": topic.name, "created": topic.name in created} for topic in topics])
        return
    for topic in topics:
        Console().print(f"{topic.name}: {'created' if topic.name in created else 'there already'}", highlight=False)
