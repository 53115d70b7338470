"""How many bytes and how much work does one asset cost in MongoDB and Kafka? What docs/scaling.md reckons with.

    python benchmarks/sizes.py [--assets 20000] [--json FILE]

Real servers. Every asset is registered, begun and made READY by the services' own stores, transaction by transaction,
and a relay process publishes its events; pictures are not decoded, and no byte goes to S3. Texts have the lengths that
they have in life: names of cameras, checksums, seven labels, a traceparent.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asset_api.quota import Limits, Quota
from asset_api.store import AssetStore
from darkroom.assets import Asset, Change, change
from darkroom.contracts.envelope import BRIDGE_SOURCE, Event, Record, to_record
from darkroom.contracts.events import (
    AssetProcessing,
    AssetReady,
    AssetRegistered,
    AssetUploaded,
    EventData,
    Original,
    Rendition,
)
from darkroom.contracts.ids import upload_event_id
from darkroom.contracts.topics import Topics
from darkroom.inbox import Claimed, Inbox
from darkroom.local.servers import start_servers
from darkroom.outbox import COLLECTION as OUTBOX
from darkroom.runtime.kafka import ensure_topics
from darkroom.runtime.mongo import Db, connect, connect_async, ensure_indexes
from measuring import cpu_seconds, wait
from processor.store import Store

OWNERS = 500
AT_ONCE = 16
BUCKET = "darkroom-123456789012-eu-west-1"
COLLECTIONS = ("assets", OUTBOX, "consumer_inbox", "owner_quota")
LABELS = {
    "dominant_colors": "#2f4f4f #8fbc8f #f5deb3 #708090 #deb887",
    "thumbhash": "1QcSHQRnh493V4dIh4eXh1h4kJUI",
    "perceptual_hash": "a3c4f0e1d2b39687",
    "has_alpha": "false",
    "animated": "false",
    "orientation": "landscape",
    "kind": "photo",
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--assets", type=int, default=20_000)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="darkroom-sizes-", ignore_cleanup_errors=True) as folder:
        result = measure(Path(folder), given.assets)
    print(json.dumps(result, indent=2))
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def measure(folder: Path, assets: int) -> dict[str, Any]:
    """Bytes and processor time of so many READY assets, each divided by their number."""
    with start_servers(folder) as servers, connect(servers.mongo_url) as client:
        db = client["sizes"]
        ensure_topics(servers.kafka_bootstrap, Topics().specs())
        mongod = int(client.admin.command("serverStatus")["pid"])
        used, logged = cpu_seconds(mongod), _oplog(db)
        began = time.monotonic()
        registered = asyncio.run(_register(servers.mongo_url, assets))
        registering = cpu_seconds(mongod) - used
        store = Store(client, db, Inbox(db, consumer="darkroom.processor", lease_seconds=30))
        ensure_indexes(db, store.indexes())
        used = cpu_seconds(mongod)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            records = list(pool.map(lambda asset: _process(store, asset), registered))
        processing = cpu_seconds(mongod) - used
        used = cpu_seconds(mongod)
        relay_seconds = _publish(servers.mongo_url, servers.kafka_bootstrap, db)
        publishing = cpu_seconds(mongod) - used
        took = time.monotonic() - began
        return {
            "assets": assets,
            "mongodb": {name: _sizes(db, name, assets) for name in COLLECTIONS},
            "oplog_bytes": round((_oplog(db) - logged) / assets),
            "kafka_bytes": {
                "assets.events on disk": round(_on_disk(folder, Topics().events) / assets),
                "assets.uploaded before compression": round(sum(map(_length, records)) / assets),
            },
            "mongod_cpu_us": {
                "registration": round(registering / assets * 1e6),
                "processing (begin and finish)": round(processing / assets * 1e6),
                "publishing (read and mark)": round(publishing / assets * 1e6),
            },
            "relay_cpu_us": round(relay_seconds / assets * 1e6),
            "seconds": round(took, 1),
        }


async def _register(url: str, assets: int) -> list[Asset]:
    async with connect_async(url, maxPoolSize=32) as client:
        limits = Limits(per_minute=10**9, uploading=10**9)
        quota = Quota(client=client, database="sizes", limits=limits, seconds=30)
        store = AssetStore(client=client, database="sizes", seconds=30, quota=quota)
        await store.ensure_indexes()
        turns = asyncio.Semaphore(64)

        async def one(number: int) -> Asset:
            async with turns:
                return await store.register(_registration(number))

        return await asyncio.gather(*(one(number) for number in range(assets)))


def _registration(number: int) -> Change:
    asset_id = str(uuid.uuid4())
    data = AssetRegistered(
        idempotency_key=str(uuid.uuid4()),
        request_hash=uuid.uuid4().hex * 2,
        filename=f"IMG_20260301_{number:06}.jpg",
        content_type="image/jpeg",
        size=4_812_345,
        checksum_sha256="k" * 43 + "=",
        object_key=f"assets/{asset_id}/original.jpg",
    )
    trace = f"00-{uuid.uuid4().hex}-{uuid.uuid4().hex[:16]}-01"
    return change(
        None,
        data,
        occurred_at=datetime.now(UTC),
        asset_id=asset_id,
        owner_id=f"auth0|{number % OWNERS:024}",
        correlation_id=str(uuid.uuid4()),
        traceparent=trace,
    )


def _process(store: Store, asset: Asset) -> Record:
    uploaded = AssetUploaded(
        bucket=BUCKET,
        object_key=asset.object_key,
        etag=uuid.uuid4().hex,
        version_id=uuid.uuid4().hex,
        size=asset.size,
        sequencer="0055AED6DCD90281E5",
        uploaded_at=datetime.now(UTC),
    )
    event = Event(
        id=upload_event_id(BUCKET, asset.object_key, uploaded.version_id, uploaded.etag),
        asset_id=asset.id,
        traceparent=asset.traceparent,
        occurred_at=datetime.now(UTC),
        data=uploaded,
    )
    begun = _step(asset, AssetProcessing(upload_event_id=event.id), event)
    claim = store.begin(begun, event.id, owner=f"processor-7d9f8b6c5-{uuid.uuid4().hex}")
    assert isinstance(claim, Claimed)
    store.finish(_step(begun.after, _ready(begun.after, uploaded), event), claim.lease, outcome="ready")
    return to_record(event, source=BRIDGE_SOURCE)


def _ready(asset: Asset, uploaded: AssetUploaded) -> AssetReady:
    return AssetReady(
        bucket=BUCKET,
        object_key=asset.object_key,
        original=Original(
            etag=uploaded.etag or "",
            version_id=uploaded.version_id,
            size=asset.size,
            width=4032,
            height=3024,
            format="jpeg",
        ),
        renditions=tuple(
            Rendition(
                name=name,
                object_key=f"assets/{asset.id}/{name}.jpg",
                content_type="image/jpeg",
                size=size,
                width=width,
                height=width * 3 // 4,
            )
            for name, width, size in (("thumb", 256, 14_321), ("preview", 1024, 154_321))
        ),
        labels=LABELS,
    )


def _step(asset: Asset, data: EventData, cause: Event) -> Change:
    return change(
        asset,
        data,
        occurred_at=datetime.now(UTC),
        causation_id=cause.id,
        correlation_id=asset.correlation_id,
        traceparent=asset.traceparent,
    )


def _publish(url: str, bootstrap: str, db: Db) -> float:
    """A relay publishes all there is; its processor seconds."""
    settings = {
        "DARKROOM_MONGO_URL": url,
        "DARKROOM_MONGO_DATABASE": db.name,
        "DARKROOM_KAFKA_BOOTSTRAP": bootstrap,
        "DARKROOM_LOG_LEVEL": "WARNING",
    }
    process = subprocess.Popen([sys.executable, "-m", "outbox_relay"], env=os.environ | settings)
    try:
        wait(lambda: db[OUTBOX].find_one({"published": False}, {"_id": 1}, hint="unpublished") is None, every=0.5)
        return cpu_seconds(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def _sizes(db: Db, collection: str, assets: int) -> dict[str, Any]:
    """Bytes an asset: of documents as they are, of documents as they lie on disk, of each index."""
    db.client.admin.command("fsync")
    found = db.command("collStats", collection)
    return {
        "documents": round(found["count"] / assets, 3),
        "bytes": round(found["size"] / assets),
        "bytes_a_document": round(found.get("avgObjSize", 0)),
        "bytes_on_disk": round(found["storageSize"] / assets),
        "index_bytes": {name: round(size / assets) for name, size in found["indexSizes"].items()},
    }


def _oplog(db: Db) -> int:
    return int(db.client.local.command("collStats", "oplog.rs")["size"])


def _on_disk(folder: Path, topic: str) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.log") if path.parent.name.rpartition("-")[0] == topic)


def _length(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key) + len(record.value) + headers


if __name__ == "__main__":
    main()
