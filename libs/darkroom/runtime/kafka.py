"""How every producer and consumer of Darkroom is set up, so that all agree on partitions and guarantees."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType  # type: ignore[attr-defined]  # not in its __all__

from darkroom.runtime.start import StartRefused

PARTITIONER = "murmur2_random"
"""Java's default. With librdkafka's own (CRC32) one asset's events would be split over two partitions."""


class Topic(Protocol):
    """What ``ensure_topics`` needs to know of a topic."""

    @property
    def name(self) -> str: ...
    @property
    def partitions(self) -> int: ...
    @property
    def config(self) -> dict[str, str]: ...


def producer_config(bootstrap: str, extra: Mapping[str, Any] | None = None, **own: Any) -> dict[str, Any]:
    """Settings of an idempotent producer that waits for all replicas. ``own`` uses _ for the dots in a name.

    ``extra`` is the user's (security, client ids); what the guarantees rest on cannot be overridden by it.
    """
    return {
        **(extra or {}),
        **{name.replace("_", "."): value for name, value in own.items()},
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "partitioner": PARTITIONER,
    }


@contextmanager
def configured() -> Iterator[None]:
    """Around the making of Kafka's clients, which neither sends nor waits for anything.

    Raises:
        StartRefused: librdkafka does not take the settings.

    """
    try:
        yield
    except KafkaException as error:
        raise StartRefused(f"DARKROOM_KAFKA_CONFIG: {error.args[0].str()}") from None


def ensure_topics(bootstrap: str, topics: Iterable[Topic], extra: Mapping[str, Any] | None = None) -> list[str]:
    """Create the topics that do not exist; gives the names of those created. Replication is the broker's default.

    Raises:
        KafkaException: the broker did not answer in 30 s or refused.

    """
    # The client must outlive the futures that it gave.
    admin = AdminClient({**(extra or {}), "bootstrap.servers": bootstrap})
    new = [NewTopic(t.name, num_partitions=t.partitions, replication_factor=-1, config=t.config) for t in topics]
    created = []
    for name, future in admin.create_topics(new, request_timeout=30).items():
        try:
            future.result()
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    return created


def deviations(
    bootstrap: str, topics: Iterable[Topic], extra: Mapping[str, Any] | None = None
) -> dict[str, dict[str, tuple[str, str]]]:
    """What topics that exist have otherwise than here: by topic and setting, what it is and what was asked for.

    Raises:
        KafkaException: the broker did not answer in 30 s or refused.

    """
    if not (wanted := {topic.name: topic for topic in topics}):
        return {}
    admin = AdminClient({**(extra or {}), "bootstrap.servers": bootstrap})
    there = admin.list_topics(timeout=30).topics
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in wanted if name in there]
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for resource, future in admin.describe_configs(resources, request_timeout=30).items():
        topic, settings = wanted[resource.name], future.result()
        pairs = {name: (settings[name].value, asked) for name, asked in topic.config.items() if name in settings}
        pairs["partitions"] = (str(len(there[resource.name].partitions)), str(topic.partitions))
        found[resource.name] = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return found
