"""An installation without services: what operations look at, and hands to bring it into any state."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pymongo import IndexModel

from darkroom.assets import Asset, Change, change, documents, to_document
from darkroom.contracts.events import EventData
from darkroom.contracts.topics import Topics
from darkroom.inbox import Inbox
from darkroom.ops.installation import Installation, Queue
from darkroom.outbox import rows, to_row
from darkroom.runtime.kafka import ensure_topics
from darkroom.runtime.mongo import connect, ensure_indexes
from support import events
from support.servers import aws_client

GROUP = "ops-test"
RENDITION = b"0123456789"


@dataclass
class Place:
    """An installation and what a test does to it."""

    installation: Installation

    @property
    def db(self) -> Any:
        return self.installation.db

    def store(self, made: Change) -> Asset:
        """Write a change as a service does: document and event."""
        self.db.assets.replace_one({"_id": made.after.id}, to_document(made.after), upsert=True)
        self.db.outbox_events.insert_one(to_row(made.event) | {"published": True})
        return made.after

    def register(self, **fields: Any) -> Asset:
        return self.store(events.registered(**fields))

    def put(self, key: str, data: bytes = RENDITION) -> Any:
        return self.installation.s3.put_object(Bucket=self.installation.bucket, Key=key, Body=data)

    def delete(self, key: str) -> None:
        self.installation.s3.delete_object(Bucket=self.installation.bucket, Key=key)

    def upload(self) -> Asset:
        """Registered, and its original is in the bucket."""
        asset = self.register()
        self.put(asset.object_key, b"x" * asset.size)
        return asset

    def begin(self, asset: Asset) -> Asset:
        """PROCESSING, under the event id that the bridge gave."""
        head = self.installation.s3.head_object(Bucket=self.installation.bucket, Key=asset.object_key)
        upload = events.uploaded(
            asset, bucket=self.installation.bucket, version_id=head["VersionId"], etag=head["ETag"].strip('"')
        )
        return self.step(asset, events.processing(upload.id), causation_id=upload.id)

    def step(self, asset: Asset, data: EventData, *, causation_id: str | None = None) -> Asset:
        cause = causation_id or (asset.upload.event_id if asset.upload else events.new_id())
        return self.store(
            change(asset, data, occurred_at=events.NOW + timedelta(seconds=asset.version), causation_id=cause)
        )

    def ready(self) -> Asset:
        """READY, with its rendition in the bucket and its inbox row."""
        asset = self.begin(self.upload())
        self.put(f"assets/{asset.id}/thumb.jpg")
        asset = self.step(asset, events.ready(asset, bucket=self.installation.bucket))
        self.inbox(asset, state="COMPLETED", outcome="ready")
        return asset

    def dead(self) -> Asset:
        """FAILED because the attempts were used up."""
        asset = self.step(self.begin(self.upload()), events.failed("retries_exhausted"))
        self.inbox(asset, state="DEAD", outcome="dead: retries_exhausted", attempts=5, last_error="S3 said 500")
        return asset

    def inbox(self, asset: Asset, **fields: Any) -> None:
        assert asset.upload is not None
        given = {"attempts": 1, "fence": 1, "claimed_at": events.NOW, **fields}
        self.db.consumer_inbox.insert_one({"consumer": GROUP, "event_id": asset.upload.event_id, **given})

    def row(self, asset: Asset) -> dict[str, Any]:
        assert asset.upload is not None
        found: dict[str, Any] = self.db.consumer_inbox.find_one({"event_id": asset.upload.event_id})
        return found

    def stored(self, asset: Asset) -> dict[str, Any]:
        found: dict[str, Any] = self.db.assets.find_one({"_id": asset.id})
        return found


@pytest.fixture
def place(mongo_url: str, mongo_db: Any, aws_endpoint: str, bucket: str) -> Iterator[Place]:
    """MongoDB and S3; Kafka is not to be reached."""
    s3 = aws_client("s3", aws_endpoint)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    with connect(mongo_url, appname="ops-test") as client:
        db = client[mongo_db.name]
        indexes = {
            documents.COLLECTION: [IndexModel(keys, **options) for keys, options in documents.INDEXES],
            rows.COLLECTION: [IndexModel(keys, **options) for keys, options in rows.INDEXES],
        }
        ensure_indexes(db, indexes | Inbox.indexes())
        yield Place(
            Installation(
                mongo=client,
                db=db,
                s3=s3,
                bucket=bucket,
                bootstrap="127.0.0.1:9",
                topics=Topics("none."),
                group=GROUP,
                by="operator",
                inbox=Inbox(db, consumer=GROUP, lease_seconds=30),
            )
        )
    s3.close()


@pytest.fixture
def whole(place: Place, kafka_bootstrap: str, aws_endpoint: str, topic_names: Callable[[str], str]) -> Iterator[Place]:
    """With Kafka, and with a queue and its dead-letter queue."""
    topics = Topics(topic_names(""))
    ensure_topics(kafka_bootstrap, topics.specs(partitions=2))
    sqs = aws_client("sqs", aws_endpoint)
    names = [topics.prefix.replace(".", "") + end for end in ("-dlq", "-queue")]
    dlq = sqs.create_queue(QueueName=names[0])["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dlq, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
    url = sqs.create_queue(QueueName=names[1], Attributes={"RedrivePolicy": policy})["QueueUrl"]
    queue = Queue(client=sqs, url=url, known_dlq_url=None)
    given = vars(place.installation) | {"bootstrap": kafka_bootstrap, "topics": topics, "queue": queue}
    yield Place(Installation(**given))
    for made in (url, dlq):
        sqs.delete_queue(QueueUrl=made)
    sqs.close()
