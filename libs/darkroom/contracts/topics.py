"""The Kafka topics. They are made by a set-up step (``darkroom setup``), never by a producer's first record."""

from dataclasses import dataclass, field

DAY_MS = 24 * 3600 * 1000
RECORD_BYTES = 1_048_588
"""The largest record of a topic: Kafka's own default, said here so that what follows from it holds on every broker."""
DEAD_LETTER_BYTES = 2 * RECORD_BYTES
"""A dead letter is a whole record with notes beside it, so its topic must take more than the topic it came from."""


@dataclass(frozen=True)
class TopicSpec:
    """What to create: ``config`` holds Kafka's topic settings by their own names."""

    name: str
    partitions: int
    config: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Topics:
    """The names, with a prefix so that several installations can share a cluster."""

    prefix: str = ""

    @property
    def uploaded(self) -> str:
        """AssetUploaded, from the bridge to the processors."""
        return f"{self.prefix}assets.uploaded"

    @property
    def uploaded_dlq(self) -> str:
        """Records of ``uploaded`` that are no AssetUploaded of ours, with the reason in their headers."""
        return f"{self.prefix}assets.uploaded.dlq"

    @property
    def events(self) -> str:
        """Every event of every asset's stream, from the relay to everybody who subscribes."""
        return f"{self.prefix}assets.events"

    def specs(self, *, partitions: int = 12, retention_days: int = 7) -> tuple[TopicSpec, ...]:
        """All topics; the key is always the asset_id, so a partition keeps one asset's order."""

        def kept(days: int, record_bytes: int) -> dict[str, str]:
            # Never compacted: by the key only an asset's last event would stay, and a stream is all of them.
            return {
                "retention.ms": str(days * DAY_MS),
                "cleanup.policy": "delete",
                "max.message.bytes": str(record_bytes),
            }

        return (
            TopicSpec(self.uploaded, partitions, kept(retention_days, RECORD_BYTES)),
            TopicSpec(self.uploaded_dlq, partitions, kept(4 * retention_days, DEAD_LETTER_BYTES)),
            TopicSpec(self.events, partitions, kept(retention_days, RECORD_BYTES)),
        )
