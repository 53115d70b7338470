"""How long does ``darkroom verify`` take over a whole store, and does its memory grow with it?

Real servers. The bucket's objects are laid where the AWS endpoint keeps them before it starts: to PUT a few hundred
thousand of them would take an hour, and says nothing about verifying.
"""

import argparse
import json
import resource
import tempfile
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pymongo import IndexModel

from darkroom.assets import change, documents, to_document
from darkroom.contracts.events import AssetProcessing, AssetReady, AssetRegistered, Original, Rendition
from darkroom.contracts.ids import stream_event_id
from darkroom.contracts.topics import Topics
from darkroom.inbox import Inbox
from darkroom.local.aws import start_aws
from darkroom.local.mongod import start_mongod
from darkroom.local.processes import Supervisor
from darkroom.ops.installation import Installation, session_for_listings
from darkroom.ops.verify import Verdict, verify
from darkroom.ops.walk import Range
from darkroom.outbox import rows, to_row
from darkroom.runtime.mongo import Db, connect, ensure_indexes
from darkroom.runtime.s3 import s3_client

BUCKET = "verify"
ACCOUNT = "000000000000"
BATCH = 1000
BYTES = b"0123456789"
NAMES = ("thumb", "preview")


def main() -> None:
    """Fill, verify, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--assets", type=int, default=100_000)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="darkroom-verify-", ignore_cleanup_errors=True) as name:
        result = measure(Path(name), given.assets)
    print(json.dumps(result, indent=2))
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def measure(folder: Path, assets: int) -> dict[str, Any]:
    """Verify a store of so many READY assets; seconds of the clock and of this process, MiB along the way."""
    with Supervisor(folder / "logs") as supervisor:
        mongo = start_mongod(supervisor, folder / "mongo")
        with connect(mongo.url) as client:
            db = client["verify"]
            began = time.monotonic()
            fill(db, folder / "aws" / "objects" / ACCOUNT / BUCKET, assets)
            filled = time.monotonic() - began
            aws = start_aws(supervisor, folder, deadline=300)
            session = session_for_listings(
                aws_access_key_id="test",
                aws_secret_access_key="test",  # noqa: S106 -- the local endpoint's, which mean nothing
                region_name=aws.region,
            )
            s3 = s3_client(endpoint_url=aws.url, session=session)
            installation = Installation(
                mongo=client,
                db=db,
                s3=s3,
                bucket=BUCKET,
                bootstrap="",
                topics=Topics(),
                group="none",
                by="benchmark",
                inbox=Inbox(db, consumer="none", lease_seconds=30),
            )
            memory: list[int] = []

            def note(part: Range, _: Verdict) -> None:
                if part.number % max(1, part.of // 8) == 0:
                    memory.append(_resident_mib())

            used, began = _cpu(), time.monotonic()
            verdict = verify(installation, on_progress=note)
            took, worked = time.monotonic() - began, _cpu() - used
            s3.close()
    return {
        **verdict.as_json(),
        "seconds": round(took, 1),
        "cpu_seconds": round(worked, 1),
        "mib_along_the_way": memory,
        "seconds_to_fill": round(filled, 1),
    }


def fill(db: Db, objects: Path, assets: int) -> None:
    """Write the assets, their streams and their renditions."""
    indexes = {
        documents.COLLECTION: [IndexModel(keys, **options) for keys, options in documents.INDEXES],
        rows.COLLECTION: [IndexModel(keys, **options) for keys, options in rows.INDEXES],
    }
    ensure_indexes(db, indexes)
    document, stream = _one()
    made, written = [], []
    for number, asset_id in enumerate(_ids(assets), 1):
        cause = str(uuid.uuid4())
        made.append(_renamed(_renamed(document, document["_id"], asset_id), document["upload"]["event_id"], cause))
        for row in stream:
            renamed = _renamed(_renamed(row, document["_id"], asset_id), document["upload"]["event_id"], cause)
            written.append(renamed | {"_id": stream_event_id(asset_id, row["sequence"])})
        place = objects / "assets" / asset_id
        place.mkdir(parents=True)
        for name in NAMES:
            (place / f"{name}.jpg").write_bytes(BYTES)
        if number % BATCH == 0 or number == assets:
            db[documents.COLLECTION].insert_many(made, ordered=False)
            db[rows.COLLECTION].insert_many(written, ordered=False)
            made, written = [], []


def _one() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One READY asset as it is stored, which the others are copies of."""
    asset_id, cause, now = str(uuid.uuid4()), str(uuid.uuid4()), datetime(2026, 3, 1, tzinfo=UTC)
    key = f"assets/{asset_id}/original.jpg"
    registered = AssetRegistered(
        idempotency_key=f"key-{asset_id}",
        request_hash="0" * 64,
        filename="photo.jpg",
        content_type="image/jpeg",
        size=1234,
        object_key=key,
    )
    renditions = tuple(
        Rendition(
            name=name,
            object_key=f"assets/{asset_id}/{name}.jpg",
            content_type="image/jpeg",
            size=len(BYTES),
            width=40,
            height=30,
        )
        for name in NAMES
    )
    original = Original(etag="e", version_id="v", size=1234, width=40, height=30, format="jpeg")
    ready = AssetReady(bucket=BUCKET, object_key=key, original=original, renditions=renditions)
    changes = [change(None, registered, occurred_at=now, asset_id=asset_id, owner_id="owner")]
    for data in (AssetProcessing(upload_event_id=cause), ready):
        changes.append(change(changes[-1].after, data, occurred_at=now, causation_id=cause))
    return to_document(changes[-1].after), [to_row(one.event) | {"published": True} for one in changes]


def _ids(count: int) -> Iterator[str]:
    return (str(uuid.uuid4()) for _ in range(count))


def _renamed(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, dict):
        return {name: _renamed(one, old, new) for name, one in value.items()}
    return [_renamed(one, old, new) for one in value] if isinstance(value, list) else value


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _resident_mib() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize() // 2**20


if __name__ == "__main__":
    main()
