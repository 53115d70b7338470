"""What a run leaves behind, as plain values: what the checks look at, and nothing that only a server could tell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from darkroom.chaos.frontend import Upload
from darkroom.contracts.events import EventType
from darkroom.contracts.topics import Topics
from darkroom.ops.integrity import Kept
from darkroom.ops.topics import Place, TopicRecord

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Stored:
    """An object as it was read back: ``size`` in bytes, and the picture's pixels."""

    size: int
    width: int
    height: int


@dataclass(frozen=True)
class Evidence:
    """Everything after the end of a run."""

    owner: str
    topics: Topics
    uploads: Sequence[Upload]
    assets: Sequence[Document]
    rows: Sequence[Document]
    inbox: Sequence[Document]
    records: Sequence[TopicRecord]
    """Of all topics, in each partition's order."""
    committed: Mapping[Place, int]
    announced: Mapping[str, str]
    """From an asset's id to the id that AssetUploaded must have for its object in S3."""
    objects: Mapping[str, Stored | str]
    """Renditions by key; a text says why one could not be read."""
    garbage: frozenset[tuple[int, int]] = frozenset()
    """Partition and offset of records that were put on ``assets.uploaded`` and are no events of ours."""
    queued: int = 0
    dead_lettered: int = 0
    """Messages in the SQS queue and in its dead-letter queue."""
    strangers: Mapping[str, int] = field(default_factory=dict)
    """What another owner was answered, by request."""
    deaths: Sequence[str] = ()
    """Processes that ended though nobody killed them."""
    early_commits: Sequence[str] = ()
    """Offsets seen committed past unfinished events during the run."""
    early_marks: Sequence[str] = ()
    """Rows seen marked during the run though Kafka did not have them."""
    commits_watched: int = 0
    marks_watched: int = 0

    @cached_property
    def streams(self) -> dict[str, list[Document]]:
        """The rows of each asset by sequence."""
        found: dict[str, list[Document]] = {}
        for row in sorted(self.rows, key=lambda row: (row["asset_id"], row["sequence"])):
            found.setdefault(row["asset_id"], []).append(row)
        return found

    @cached_property
    def kept(self) -> list[Kept]:
        """Every asset that has a document or a stream, with both."""
        documents = {asset["_id"]: asset for asset in self.assets}
        ids = sorted(documents.keys() | self.streams.keys())
        return [Kept(asset_id, documents.get(asset_id), self.streams.get(asset_id, ())) for asset_id in ids]

    @cached_property
    def by_key(self) -> dict[str, list[Document]]:
        """Assets by their idempotency key."""
        found: dict[str, list[Document]] = {}
        for asset in self.assets:
            found.setdefault(asset["idempotency_key"], []).append(asset)
        return found

    @cached_property
    def inbox_by_event(self) -> dict[str, Document]:
        """The inbox's rows by event."""
        return {row["event_id"]: row for row in self.inbox}

    @cached_property
    def terminal_rows(self) -> list[Document]:
        """AssetReady and AssetFailed."""
        return [row for row in self.rows if row["type"] in (EventType.ASSET_READY, EventType.ASSET_FAILED)]

    def of_topic(self, topic: str) -> list[TopicRecord]:
        """The records of one topic."""
        return [record for record in self.records if record.topic == topic]
