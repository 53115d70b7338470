"""After the last upload: wait until everything has ended, and gather what the checks need."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import httpx
from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka import KafkaException
from PIL import Image
from pymongo.errors import PyMongoError

from darkroom.chaos.arena import GROUP, Arena
from darkroom.chaos.evidence import Evidence, Stored
from darkroom.chaos.frontend import OWNER, Upload
from darkroom.chaos.injector import Injector
from darkroom.chaos.messages import Messages
from darkroom.chaos.watch import Watch
from darkroom.contracts.events import AssetUploaded
from darkroom.contracts.ids import upload_event_id
from darkroom.ops.topics import Offsets, read_all

LOOK_SECONDS = 1.0
QUIET_SECONDS = 2 * 10 + 5
"""Without progress for so long, no message is on its way: longer than two visibility times of the queue."""
READERS = 8
STRANGER = "stranger"
STRANGERS = 10
WINDOW_SECONDS = 2.0


@dataclass
class Waiting:
    """What is still open."""

    assets: int = 0
    rows: int = 0
    messages: int = 0
    records: int = 0
    resent: list[str] = field(default_factory=list)
    """Keys of objects whose notification the endpoint lost when it was restarted, and that was sent again."""

    @property
    def nothing(self) -> bool:
        """Whether all has ended."""
        return not (self.assets or self.rows or self.messages or self.records)

    def __str__(self) -> str:
        return f"{self.assets} assets, {self.rows} rows, {self.messages} messages, {self.records} records"


def settle(
    arena: Arena,
    uploads: Sequence[Upload],
    *,
    messages: Messages,
    aws_windows: Sequence[tuple[float, float]],
    seconds: float,
    on_look: Callable[[Waiting], None],
) -> Waiting:
    """Wait until everything has ended or the time is over, and put dead-lettered messages back meanwhile."""
    deadline = time.monotonic() + seconds
    waiting, before, since = Waiting(), "", time.monotonic()
    while time.monotonic() < deadline:
        try:
            _look(arena, uploads, messages, waiting)
        except (KafkaException, PyMongoError, BotoCoreError, ClientError):
            time.sleep(LOOK_SECONDS)
            continue
        on_look(waiting)
        if waiting.nothing:
            break
        if str(waiting) != before:
            before, since = str(waiting), time.monotonic()
        elif time.monotonic() - since > QUIET_SECONDS and not waiting.messages:
            _send_lost_notifications(arena, uploads, messages, aws_windows, waiting)
            since = time.monotonic()
        time.sleep(LOOK_SECONDS)
    return waiting


def _look(arena: Arena, uploads: Sequence[Upload], messages: Messages, waiting: Waiting) -> None:
    sent = [upload.key for upload in uploads if upload.sent is not None]
    waiting.assets = arena.db.assets.count_documents(
        {"idempotency_key": {"$in": sent}, "status": {"$in": ["UPLOADING", "PROCESSING"]}}
    )
    waiting.rows = arena.db.outbox_events.count_documents({"published": False})
    messages.redrive()
    waiting.messages = sum(messages.depth())
    waiting.records = arena.lag()


def _send_lost_notifications(
    arena: Arena,
    uploads: Sequence[Upload],
    messages: Messages,
    windows: Sequence[tuple[float, float]],
    waiting: Waiting,
) -> None:
    """S3 and SQS outlive their hosts; the local endpoint can lose a notification when it is restarted.

    Only for such uploads is it sent again, as a reconciler would; any other that is missing stays a violation.
    """
    for upload in uploads:
        if upload.sent is None or upload.asset_id is None or not met(upload.put_windows, windows):
            continue
        asset = arena.db.assets.find_one({"_id": upload.asset_id, "status": "UPLOADING"})
        if asset is None or asset["object_key"] in waiting.resent:
            continue
        bucket, key = arena.stack.outputs.bucket, asset["object_key"]
        head = arena.s3.head_object(Bucket=bucket, Key=key)
        uploaded = AssetUploaded(
            bucket=bucket,
            object_key=key,
            etag=head["ETag"].strip('"'),
            version_id=head.get("VersionId"),
            size=head["ContentLength"],
        )
        messages.notify(bucket, uploaded)
        waiting.resent.append(key)


def met(spans: Sequence[tuple[float, float]], windows: Sequence[tuple[float, float]]) -> bool:
    """Whether one of the spans touches one of the windows, or nearly; both in seconds."""
    return any(
        begin < end + WINDOW_SECONDS and start - WINDOW_SECONDS < stop
        for begin, stop in spans
        for start, end in windows
    )


def gather(
    arena: Arena, uploads: Sequence[Upload], *, messages: Messages, injector: Injector, watch: Watch
) -> Evidence:
    """Read everything back: the database, the topics from their beginning, every object.

    Raises:
        PyMongoError, KafkaException, TimeoutError: a server that should be well again is not.

    """
    topics, db = arena.stack.topics, arena.db
    assets = list(db.assets.find())
    records = read_all(arena.servers.kafka_bootstrap, (topics.uploaded, topics.events, topics.uploaded_dlq))
    with Offsets(arena.servers.kafka_bootstrap, group=GROUP) as offsets:
        committed = offsets.committed(topics.uploaded)
    queued, dead = messages.depth()
    garbage = messages.garbage
    with ThreadPoolExecutor(READERS) as pool:
        announced = dict(filter(None, pool.map(lambda asset: _announced(arena, asset), assets)))
        keys = [rendition["object_key"] for asset in assets for rendition in asset["renditions"]]
        objects = dict(zip(keys, pool.map(lambda key: _stored(arena, key), keys), strict=True))
    return Evidence(
        owner=OWNER,
        topics=topics,
        uploads=uploads,
        assets=assets,
        rows=list(db.outbox_events.find()),
        inbox=list(db.consumer_inbox.find()),
        records=records,
        committed=committed,
        announced=announced,
        objects=objects,
        garbage=garbage,
        queued=queued,
        dead_lettered=dead,
        strangers=_strangers(arena, assets),
        deaths=tuple(injector.deaths),
        early_commits=watch.early_commits(garbage=garbage),
        early_marks=tuple(watch.early_marks),
        commits_watched=watch.commits_watched,
        marks_watched=watch.marks_watched,
    )


def _announced(arena: Arena, asset: Mapping[str, Any]) -> tuple[str, str] | None:
    bucket = arena.stack.outputs.bucket
    try:
        head = arena.s3.head_object(Bucket=bucket, Key=asset["object_key"])
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("404", "NoSuchKey"):
            raise
        return None
    return asset["_id"], upload_event_id(bucket, asset["object_key"], head.get("VersionId"), head["ETag"].strip('"'))


def _stored(arena: Arena, key: str) -> Stored | str:
    try:
        data = arena.s3.get_object(Bucket=arena.stack.outputs.bucket, Key=key)["Body"].read()
        with Image.open(BytesIO(data)) as picture:
            picture.load()
            return Stored(len(data), *picture.size)
    except (ClientError, BotoCoreError, OSError) as error:
        return f"unreadable: {type(error).__name__}: {error}"


def _strangers(arena: Arena, assets: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    headers = {"Authorization": f"Bearer {arena.stack.token(STRANGER)}"}
    step = max(1, len(assets) // STRANGERS)
    with httpx.Client(base_url=arena.stack.api_url, headers=headers, timeout=30) as client:
        return {
            f"GET /assets/{asset['_id']}": client.get(f"/assets/{asset['_id']}").status_code for asset in assets[::step]
        }
