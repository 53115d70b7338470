"""S3's notifications as SQS delivers them, and a publisher that a test can make fail."""

import json
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote_plus

from darkroom.contracts.envelope import Event, Record, from_record

BUCKET = "asset-uploads"
ASSET = "0b8f5f2e-6c1d-4d8e-9f0a-3c2b1a4d5e6f"
OTHER = "7d1f0c3a-2b44-4a57-8c19-5e6f70819a2b"
ETAG = "b1946ac92492d2347c6235b4d2611184"


def original(asset_id: str = ASSET, extension: str = "jpg") -> str:
    return f"assets/{asset_id}/original.{extension}"


def s3_record(key: str = original(), *, name: str = "ObjectCreated:Put", bucket: str = BUCKET, **found: Any) -> Any:
    """One record; ``key`` is encoded as S3 does it unless ``raw_key`` is given, and a field set to ... is left out."""
    raw = found.pop("raw_key", quote_plus(key, safe="/"))
    fields = {"key": raw, "size": 48213, "eTag": ETAG, "sequencer": "0055AED6DCD90281E5", **found}
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventTime": "2026-03-01T12:00:00.000Z",
        "eventName": name,
        "s3": {
            "bucket": {"name": bucket},
            "object": {field: value for field, value in fields.items() if value is not ...},
        },
    }


def body(*records: Any) -> str:
    return json.dumps({"Records": list(records)})


def eventbridge(key: str = original(), *, detail_type: str = "Object Created", source: str = "aws.s3") -> str:
    return json.dumps(
        {
            "version": "0",
            "detail-type": detail_type,
            "source": source,
            "time": "2026-03-01T12:00:00Z",
            "detail": {
                "bucket": {"name": BUCKET},
                "object": {"key": key, "size": 48213, "etag": ETAG, "sequencer": "0055AED6DCD90281E5"},
                "reason": "PutObject",
            },
        }
    )


def sns(message: str) -> str:
    return json.dumps({"Type": "Notification", "TopicArn": "arn:aws:sns:eu-west-1:1:t", "Message": message})


def sqs_event(*bodies: str | None) -> dict[str, Any]:
    """The event of an invocation, with the message ids m0, m1, …"""
    return {
        "Records": [
            {
                "messageId": f"m{place}",
                "receiptHandle": f"handle-{place}",
                "body": text,
                "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1772366400000"},
                "eventSource": "aws:sqs",
            }
            for place, text in enumerate(bodies)
        ]
    }


class RecordingPublisher:
    """A publisher that keeps what it acknowledged and refuses the records that ``refuses`` picks."""

    def __init__(self, refuses: Callable[[Event], bool] = lambda _: False) -> None:
        self._refuses = refuses
        self.events: list[Event] = []
        self.timeouts: list[float] = []

    def publish(self, records: Sequence[Record], *, timeout: float) -> list[str | None]:
        """See ``s3_bridge.bridge.Publisher``."""
        self.timeouts.append(timeout)
        errors: list[str | None] = []
        for record in records:
            event = from_record(key=record.key, value=record.value, record_headers=record.headers)
            if self._refuses(event):
                errors.append("refused by the test")
            else:
                self.events.append(event)
                errors.append(None)
        return errors
