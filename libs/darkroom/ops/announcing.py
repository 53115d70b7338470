"""AssetUploaded made again from what S3 has, under the very id that the bridge gives, and put on Kafka."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Self

from botocore.exceptions import ClientError
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from darkroom.assets import Asset
from darkroom.contracts.envelope import BRIDGE_SOURCE, Event, Headers, to_record
from darkroom.contracts.events import AssetUploaded
from darkroom.contracts.ids import upload_event_id
from darkroom.ops.installation import Installation
from darkroom.runtime.kafka import producer_config

CONFIRM_SECONDS = 30.0
GONE = ("404", "NoSuchKey", "NoSuchVersion")


def latest(installation: Installation, asset: Asset) -> Event | None:
    """AssetUploaded of the asset's original as it is now, by a HEAD; None if there is no original.

    Raises:
        ClientError, BotoCoreError: S3 refused or did not answer.

    """
    try:
        head = installation.s3.head_object(Bucket=installation.bucket, Key=asset.object_key)
    except ClientError as error:
        if error.response["Error"]["Code"] in GONE:
            return None
        raise
    return _event(installation, asset, {**head, "Size": head["ContentLength"]})


def versions(installation: Installation, asset: Asset) -> Iterator[tuple[Event, bool]]:
    """AssetUploaded of every version of the original that S3 keeps, and whether that is the one that is read now.

    Raises:
        ClientError, BotoCoreError: S3 refused or did not answer.

    """
    pages = installation.s3.get_paginator("list_object_versions").paginate(
        Bucket=installation.bucket, Prefix=asset.object_key
    )
    for page in pages:
        for version in page.get("Versions", []):
            if version["Key"] == asset.object_key:
                yield _event(installation, asset, version), bool(version["IsLatest"])


def announced(installation: Installation, asset: Asset, event_id: str) -> tuple[Event, bool]:
    """AssetUploaded under that id, and whether its version of the original is still in S3.

    If it is not, the event says only what is known; a processor then finds the original missing, and the asset FAILED.

    Raises:
        ClientError, BotoCoreError: S3 refused or did not answer.

    """
    for event, _ in versions(installation, asset):
        if event.id == event_id:
            return event, True
    data = AssetUploaded(bucket=installation.bucket, object_key=asset.object_key)
    return _told(event_id, asset, asset.updated_at, data), False


def _event(installation: Installation, asset: Asset, found: Mapping[str, Any]) -> Event:
    # An unversioned object's version is "null" in some answers and absent in others; neither is a version.
    version = found.get("VersionId")
    version = None if version in ("", "null") else version
    etag = found["ETag"].strip('"') or None
    data = AssetUploaded(
        bucket=installation.bucket,
        object_key=asset.object_key,
        etag=etag,
        version_id=version,
        size=found["Size"],
        uploaded_at=found["LastModified"],
    )
    event_id = upload_event_id(installation.bucket, asset.object_key, version, etag)
    return _told(event_id, asset, found["LastModified"], data)


def _told(event_id: str, asset: Asset, occurred_at: datetime, data: AssetUploaded) -> Event:
    # In the asset's trace, however long after: whoever looks at it sees that it was announced once more.
    return Event(id=event_id, asset_id=asset.id, traceparent=asset.traceparent, occurred_at=occurred_at, data=data)


class Announcer:
    """Puts records on ``assets.uploaded``, each confirmed before the call returns. Use as a context manager."""

    def __init__(self, installation: Installation) -> None:
        self._topic = installation.topics.uploaded
        self._producer = Producer(
            producer_config(
                installation.bootstrap,
                {"log_level": 0, **installation.kafka_config},
                message_timeout_ms=round(CONFIRM_SECONDS * 1000),
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._producer.flush(0)

    def announce(self, event: Event) -> None:
        """Put AssetUploaded on the topic. Raises KafkaException: the broker did not confirm it."""
        record = to_record(event, source=BRIDGE_SOURCE)
        self.put(record.key, record.value, record.headers)

    def put(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """Put a record on the topic as it is. Raises KafkaException: the broker did not confirm it."""
        reports: list[KafkaError | None] = []

        def on_delivery(error: KafkaError | None, _message: Message) -> None:
            reports.append(error)

        self._producer.produce(self._topic, key=key, value=value, headers=headers, on_delivery=on_delivery)
        self._producer.flush(CONFIRM_SECONDS + 5)
        if not reports:
            raise TimeoutError(f"{self._topic}: not confirmed in {CONFIRM_SECONDS:g} s")
        if reports[0] is not None:
            raise KafkaException(reports[0])
