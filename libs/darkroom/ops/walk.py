"""Go through a whole store, range by range of asset ids, with all that is kept of each asset beside each other.

A range is small whatever the store's size, so memory stays flat; the next ranges are read while one is looked at.
"""

import math
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from darkroom.assets.documents import COLLECTION as ASSETS
from darkroom.contracts.events import UUID_PATTERN
from darkroom.ops.installation import Installation
from darkroom.ops.integrity import Document, Kept, Listed
from darkroom.outbox import COLLECTION as OUTBOX

FOLDER = "assets/"
ASSETS_A_RANGE = 500
LONGEST_PREFIX = 8
AHEAD = 3
"""Ranges that are read while one is looked at."""
_KEY = re.compile(rf"{FOLDER}({UUID_PATTERN.strip('^$')})/.+")


@dataclass(frozen=True)
class Range:
    """All assets whose id begins with ``prefix``: place ``number`` (from 1) of ``of`` ranges."""

    prefix: str
    number: int
    of: int
    kept: Sequence[Kept]


def ranges(assets: int) -> list[str]:
    """Prefixes of ids that divide about so many assets into ranges of a few hundred: ids are random, so evenly."""
    digits = min(LONGEST_PREFIX, max(0, math.ceil(math.log(max(1, assets) / ASSETS_A_RANGE, 16))))
    return [f"{number:0{digits}x}" for number in range(16**digits)] if digits else [""]


def walk(installation: Installation, *, rows: bool = True, after: str | None = None) -> Iterator[Range]:
    """Every asset that has a document, a row or an object, in ranges by id; ``after`` continues behind that prefix.

    What is found beside each other was not read at one moment: what looks wrong must be looked at again by ``reread``.

    Raises:
        PyMongoError, ClientError, BotoCoreError: MongoDB or S3 failed.

    """
    prefixes = ranges(installation.db[ASSETS].estimated_document_count())
    # "g" is behind every digit. What began when the store was smaller goes on in the range that it had not finished.
    left = [place for place in enumerate(prefixes, 1) if after is None or place[1] + "g" > after + "g"]
    with ThreadPoolExecutor(AHEAD) as pool:
        reading: deque[tuple[int, str, Future[list[Kept]]]] = deque()
        try:
            for number, prefix in left:
                reading.append((number, prefix, pool.submit(_read, installation, prefix, rows=rows)))
                if len(reading) > AHEAD:
                    yield _next(reading, len(prefixes))
            while reading:
                yield _next(reading, len(prefixes))
        finally:
            for _, _, future in reading:
                future.cancel()


def reread(installation: Installation, asset_id: str) -> Kept:
    """All that is kept of one asset: document and rows as of one moment, then the objects.

    Raises:
        PyMongoError, ClientError, BotoCoreError: MongoDB or S3 failed.

    """
    with installation.mongo.start_session(snapshot=True) as session:
        document = installation.db[ASSETS].find_one({"_id": asset_id}, session=session)
        rows = list(installation.db[OUTBOX].find({"asset_id": asset_id}, session=session).sort("sequence"))
    objects = _objects(installation, f"{asset_id}/").get(asset_id, {})
    return Kept(asset_id, document, rows, objects)


def _next(reading: deque[tuple[int, str, Future[list[Kept]]]], count: int) -> Range:
    number, prefix, future = reading.popleft()
    return Range(prefix, number, count, future.result())


def _read(installation: Installation, prefix: str, *, rows: bool) -> list[Kept]:
    within = {} if not prefix else {"$gte": prefix, "$lt": prefix + "g"}
    # Objects last: a rendition is stored before its asset is READY, so what is read here has its objects there.
    found = {
        document["_id"]: Kept(document["_id"], document)
        for document in installation.db[ASSETS].find({"_id": within} if within else {})
    }
    streams: dict[str, list[Document]] = defaultdict(list)
    if rows:
        wanted = {"asset_id": within} if within else {}
        for row in installation.db[OUTBOX].find(wanted).sort([("asset_id", 1), ("sequence", 1)]):
            streams[row["asset_id"]].append(row)
    objects = _objects(installation, prefix)
    nothing = Kept("", None)
    return [
        replace(found.get(name, nothing), asset_id=name, rows=streams.get(name, ()), objects=objects.get(name, {}))
        for name in sorted(found.keys() | streams.keys() | objects.keys())
    ]


def _objects(installation: Installation, prefix: str) -> dict[str, dict[str, Listed]]:
    """The objects by asset; what lies under no asset's id is none of ours."""
    objects: dict[str, dict[str, Listed]] = defaultdict(dict)
    pages: Any = installation.s3.get_paginator("list_objects_v2").paginate(
        Bucket=installation.bucket, Prefix=FOLDER + prefix
    )
    for page in pages:
        for entry in page.get("Contents", []):
            if match := _KEY.fullmatch(entry["Key"]):
                objects[match[1]][entry["Key"]] = Listed(entry["Size"], entry["LastModified"])
    return objects
