"""The Kafka topics. They are made by a set-up step (``darkroom setup``), never by a producer's first record."""

from dataclasses import dataclass, field

DAY_MS = 24 * 3600 * 1000


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
        retention = {"retention.ms": str(retention_days * DAY_MS), "cleanup.policy": "delete"}
        return (
            TopicSpec(self.uploaded, partitions, retention),
            TopicSpec(self.uploaded_dlq, partitions, {**retention, "retention.ms": str(4 * retention_days * DAY_MS)}),
            TopicSpec(self.events, partitions, retention),
        )
