"""A processor with all that it needs, driven record by record."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any

import boto3
import pytest
from confluent_kafka import Producer
from PIL import Image
from pymongo.database import Database

from darkroom.assets import Asset, fold, from_document, to_document
from darkroom.contracts.envelope import Event
from darkroom.contracts.events import AssetReady
from darkroom.inbox import Claimed, Inbox
from darkroom.inbox.consumer import Delivery
from darkroom.inbox.keeper import LeaseKeeper
from darkroom.life.objects import ObjectStore
from darkroom.outbox import from_row, to_row
from darkroom.runtime.kafka import producer_config
from darkroom.runtime.mongo import connect, ensure_indexes
from darkroom.runtime.s3 import s3_client
from darkroom.runtime.signer import Signer
from processor.dead_letters import DeadLetters
from processor.direct import Direct
from processor.imaging.pool import DecoderPool
from processor.imaging.rendition import Limits, Rendered, RenditionSpec
from processor.objects import Bucket
from processor.process import Processor
from processor.rendering import Decoder, Rendering
from processor.store import Store
from support import events, pictures

PICTURE = pictures.jpeg(600, 400)
SPECS = (RenditionSpec(name="thumb", box=(64, 64)), RenditionSpec(name="preview", box=(300, 300)))


class Crash(BaseException):
    """The worker is gone: nothing after this line runs, as after SIGKILL."""


@dataclass
class Hooked:
    """The real decoder, with something that happens before or after it."""

    decoder: Decoder
    before: Callable[[threading.Event | None], object] = lambda _: None
    after: Callable[[], object] = lambda: None
    calls: int = 0

    def render(
        self,
        data: Sequence[bytes],
        specs: Sequence[RenditionSpec],
        limits: Limits,
        *,
        cancelled: threading.Event | None = None,
    ) -> Rendered:
        self.calls += 1
        self.before(cancelled)
        rendered = self.decoder.render(data, specs, limits, cancelled=cancelled)
        self.after()
        return rendered

    def probe(self, *, cancelled: threading.Event | None = None) -> None:
        self.decoder.probe(cancelled=cancelled)


@dataclass
class World:
    """One installation: `processor` is a worker; tests make others from it with `dataclasses.replace`."""

    db: Database[dict[str, Any]]
    s3: Any
    bucket: str
    processor: Processor
    app: str
    offsets: Iterator[int] = field(default_factory=lambda: iter(range(10**6)))

    def upload(self, data: bytes = PICTURE, **registered: Any) -> Asset:
        """A registered asset whose original is in the bucket."""
        change = events.registered(**{"size": len(data), **registered})
        self.db.assets.insert_one(to_document(change.after))
        self.db.outbox_events.insert_one(to_row(change.event))
        self.s3.put_object(Bucket=self.bucket, Key=change.after.object_key, Body=data)
        return change.after

    def delivery(self, asset: Asset, **fields: Any) -> Delivery:
        """The asset's upload event as this process reads it from Kafka, under a fresh owner."""
        record = events.uploaded_record(asset, **{"bucket": self.bucket, **fields})
        return Delivery(
            topic="uploads",
            partition=0,
            offset=next(self.offsets),
            key=record.key,
            value=record.value,
            headers=record.headers,
            owner=events.new_id(),
        )

    def tags(self, asset: Asset) -> dict[str, str]:
        """Of the original."""
        found = self.s3.get_object_tagging(Bucket=self.bucket, Key=asset.object_key)["TagSet"]
        return {tag["Key"]: tag["Value"] for tag in found}

    def asset(self, asset: Asset) -> Asset:
        found = self.db.assets.find_one({"_id": asset.id})
        assert found is not None
        return from_document(found)

    def stream(self, asset: Asset) -> list[Event]:
        return [from_row(row) for row in self.db.outbox_events.find({"asset_id": asset.id}).sort("sequence", 1)]

    def types(self, asset: Asset) -> list[str]:
        """The types of the asset's stream, after checking it: gapless, and its fold is the asset (I2, I3)."""
        stream = self.stream(asset)
        assert [event.sequence for event in stream] == list(range(1, len(stream) + 1))
        assert self.db.assets.find_one({"_id": asset.id}) == to_document(fold(stream))
        return [event.type.value.removeprefix("Asset") for event in stream]

    def row(self, delivery: Delivery) -> dict[str, Any]:
        """The event's row in the inbox."""
        found = self.db.consumer_inbox.find_one({"event_id": self.event_id(delivery)})
        assert found is not None
        return found

    def event_id(self, delivery: Delivery) -> str:
        value = dict(delivery.headers)["ce_id"]
        assert isinstance(value, bytes)
        return value.decode()

    def keys(self, asset: Asset) -> set[str]:
        listed = self.s3.list_objects_v2(Bucket=self.bucket, Prefix=f"assets/{asset.id}/").get("Contents", [])
        return {entry["Key"].rpartition("/")[2] for entry in listed}

    def run_out(self) -> None:
        """Let every lease and back-off end now, by the server's clock."""
        past = {"$subtract": ["$$NOW", 1]}
        self.db.consumer_inbox.update_many({"lease_until": {"$exists": True}}, [{"$set": {"lease_until": past}}])
        self.db.consumer_inbox.update_many({"not_before": {"$exists": True}}, [{"$set": {"not_before": past}}])

    def take_over(self, delivery: Delivery) -> None:
        """Another worker claims the event after the lease ran out."""
        self.run_out()
        assert isinstance(self.processor.inbox.claim(self.event_id(delivery), owner="another"), Claimed)

    def check_renditions(self, asset: Asset) -> None:
        """Every rendition that the stream tells of exists and decodes to its recorded size (I10)."""
        ready = next(event.data for event in self.stream(asset) if isinstance(event.data, AssetReady))
        assert [rendition.name for rendition in ready.renditions] == ["thumb", "preview"]
        for rendition in ready.renditions:
            found = self.s3.get_object(Bucket=self.bucket, Key=rendition.object_key)
            data = found["Body"].read()
            assert (found["ContentType"], len(data)) == (rendition.content_type, rendition.size)
            with Image.open(BytesIO(data)) as image:
                image.load()
                assert image.size == (rendition.width, rendition.height)

    def with_decoder(self, **hooks: Any) -> tuple[Processor, Hooked]:
        """A worker whose decoder has hooks."""
        hooked = Hooked(self.processor.rendering.decoder, **hooks)
        return self.rendering(decoder=hooked), hooked

    def rendering(self, **changes: Any) -> Processor:
        """The processor with these fields of its ``Rendering`` changed."""
        return replace(self.processor, rendering=replace(self.processor.rendering, **changes))


@pytest.fixture(scope="session")
def pool() -> Iterator[DecoderPool]:
    with DecoderPool(size=1) as made:
        yield made


@pytest.fixture(scope="session")
def producer(kafka_bootstrap: str) -> Iterator[Producer]:
    made = Producer(producer_config(kafka_bootstrap))
    yield made
    made.flush(5)


def s3_at(endpoint: str, **options: Any) -> Any:
    session = boto3.session.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1")
    return s3_client(endpoint_url=endpoint, session=session, attempts=1, **options)


def direct_at(client: Any, bucket: str) -> Direct:
    session = boto3.session.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1")
    return Direct(client, signer=Signer(client=client, session=session, bucket=bucket))


@pytest.fixture(scope="session")
def s3(aws_endpoint: str) -> Iterator[Any]:
    made = s3_at(aws_endpoint)
    yield made
    made.close()


@pytest.fixture
def world(
    mongo_url: str,
    mongo_db: Database[dict[str, Any]],
    s3: Any,
    bucket: str,
    pool: DecoderPool,
    producer: Producer,
    topic_names: Callable[[str], str],
) -> Iterator[World]:
    app = f"processor-{mongo_db.name}"
    with connect(mongo_url, appname=app) as client:
        db = client[mongo_db.name]
        ensure_indexes(db, Store.indexes())
        inbox = Inbox(db, consumer="processor", lease_seconds=1.5)
        keeper = LeaseKeeper(inbox)
        processor = Processor(
            inbox=inbox,
            keeper=keeper,
            store=Store(client, db, inbox, call_seconds=1.0),
            rendering=Rendering(
                bucket=Bucket(s3, name=bucket, download_seconds=10, direct=direct_at(s3, bucket)),
                decoder=pool,
                specs=SPECS,
                limits=Limits(),
                max_upload_bytes=1_000_000,
            ),
            originals=ObjectStore(s3, bucket=bucket),
            dead_letters=DeadLetters(producer, topic=topic_names("dlq"), seconds=5),
            max_attempts=3,
            backoff_seconds=60,
        )
        try:
            yield World(mongo_db, s3, bucket, processor, app)
        finally:
            keeper.close()
