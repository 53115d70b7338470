"""Check the invariants that a store itself can prove: I2, I3, I4 and I10, over every asset there is."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from darkroom.assets import Status
from darkroom.ops.installation import READERS, Installation
from darkroom.ops.integrity import TERMINAL, Kept, Violation, violations
from darkroom.ops.walk import Range, reread, walk
from darkroom.outbox import COLLECTION as OUTBOX

KEPT_EXAMPLES = 100
"""Violations that are kept as they are; all are counted."""
TRIES = 5


@dataclass
class Verdict:
    """What was looked at, and what is wrong with it."""

    assets: int = 0
    events: int = 0
    renditions: int = 0
    decoded: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    examples: list[Violation] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.counts

    def look_at(self, kept: Kept) -> None:
        """Count what is looked at."""
        self.assets += 1
        self.events += len(kept.rows)
        self.renditions += len(_renditions(kept))

    def add(self, found: Iterable[Violation]) -> None:
        """Count violations, and keep them while there are few."""
        for violation in found:
            self.counts[violation.invariant] += 1
            if len(self.examples) < KEPT_EXAMPLES:
                self.examples.append(violation)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "clean": self.clean,
            "assets": self.assets,
            "events": self.events,
            "renditions": self.renditions,
            "decoded": self.decoded,
            "violations": dict(sorted(self.counts.items())),
            "examples": [vars(violation) for violation in self.examples],
        }


def verify(
    installation: Installation, *, decode: bool = False, on_progress: Callable[[Range, Verdict], None] | None = None
) -> Verdict:
    """Check every asset. Renditions are compared with the bucket's listing, with ``decode`` also read and decoded.

    What looks wrong is read again at one moment before it counts, so a store may be verified while it is worked on.

    Raises:
        PyMongoError, ClientError, BotoCoreError: MongoDB or S3 failed.

    """
    verdict = Verdict()
    with ThreadPoolExecutor(READERS) as pool:
        for part in walk(installation):
            # Objects without a record are no broken promise; the reconciler sees to them.
            recorded = [kept for kept in part.kept if kept.asset is not None or kept.rows]
            for kept in recorded:
                verdict.look_at(kept)
                if violations(kept):
                    verdict.add(_again(installation, kept.asset_id))
            if decode:
                for found, count in pool.map(lambda kept: _decoded(installation, kept), recorded):
                    verdict.decoded += count
                    verdict.add(found)
            if on_progress is not None:
                on_progress(part, verdict)
    verdict.add(_shared_causes(installation))
    return verdict


def _again(installation: Installation, asset_id: str) -> list[Violation]:
    """What is wrong with the asset though nobody changed it while it was read."""
    found: list[Violation] = []
    for _ in range(TRIES):
        kept = reread(installation, asset_id)
        if not (found := violations(kept)) or _version(kept) == _version(reread(installation, asset_id)):
            return found
    return found


def _version(kept: Kept) -> object:
    return None if kept.asset is None else kept.asset.get("version")


def _renditions(kept: Kept) -> list[Mapping[str, Any]]:
    if kept.asset is None or kept.asset.get("status") != Status.READY:
        return []
    return list(kept.asset.get("renditions") or ())


def _decoded(installation: Installation, kept: Kept) -> tuple[list[Violation], int]:
    """Violations of I10 among the asset's renditions, read and decoded, and how many were."""
    found = []
    renditions = [one for one in _renditions(kept) if one["object_key"] in kept.objects]
    for rendition in renditions:
        size = _size(installation, rendition["object_key"])
        if size != (rendition["width"], rendition["height"]):
            what = f"asset {kept.asset_id}: {rendition['object_key']} decodes to {size}, recorded is " + str(
                (rendition["width"], rendition["height"])
            )
            found.append(Violation("I10", kept.asset_id, what))
    return found, len(renditions)


def _size(installation: Installation, key: str) -> tuple[int, int] | str:
    # Only --decode needs it, and then in the environment of a processor, which has it.
    from PIL import Image

    try:
        data = installation.s3.get_object(Bucket=installation.bucket, Key=key)["Body"].read()
        with Image.open(BytesIO(data)) as picture:
            picture.load()
            return picture.size
    except (ClientError, BotoCoreError, OSError) as error:
        return f"nothing ({type(error).__name__}: {error})"


def _shared_causes(installation: Installation) -> Iterator[Violation]:
    """I4 across assets: an upload event that ended more than one. The server groups, on disk if it must."""
    ended_several = installation.db[OUTBOX].aggregate(
        [
            {"$match": {"type": {"$in": list(TERMINAL)}}},
            {"$group": {"_id": "$causation_id", "first": {"$min": "$asset_id"}, "last": {"$max": "$asset_id"}}},
            {"$match": {"$expr": {"$ne": ["$first", "$last"]}}},
        ],
        allowDiskUse=True,
    )
    for row in ended_several:
        what = f"upload event {row['_id']} ended two assets: {row['first']} and {row['last']}"
        yield Violation("I4", row["first"], what)
