"""What the reconciler looks for, decided over plain values. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from darkroom.assets import Asset, Status
from darkroom.contracts.envelope import Event
from darkroom.inbox.leases import PROCESSING
from darkroom.ops.integrity import Kept, renditions_listed


class Kind(StrEnum):
    """What is found."""

    LOST_NOTIFICATION = "lost_notification"
    """An original is in the bucket and nobody was told: it is announced under the id that the bridge gives."""
    STUCK_PROCESSING = "stuck_processing"
    """Nobody holds the lease of an upload that has begun and not ended: it is announced again."""
    LOST_RENDITION = "lost_rendition"
    """READY, and a rendition is missing or of another size: the upload is redriven."""
    ORIGINAL_GONE = "original_gone"
    """The record of an original that is not in the bucket any more: nothing can be done from here."""
    ORPHAN_FOUND = "orphan_found"
    """An object of an asset that has no record: it is tagged with the time."""
    ORPHAN_EXPIRED = "orphan_expired"
    """It has been tagged for the grace time and still has no record: it is removed."""
    INCONSISTENT = "inconsistent"
    """The inbox says that an upload has ended, its asset does not: a defect, for people to look at."""


MENDED = frozenset(Kind) - {Kind.ORIGINAL_GONE, Kind.INCONSISTENT}
"""What the reconciler does something about."""


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be. ``what`` says it in a sentence, ``key`` names the object if it is one."""

    kind: Kind
    asset_id: str
    what: str
    event: Event | None = None
    key: str | None = None

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        event_id = None if self.event is None else self.event.id
        known = {"kind": str(self.kind), "asset_id": self.asset_id, "what": self.what}
        return known | {"event_id": event_id, "key": self.key}


@dataclass(frozen=True)
class Patience:
    """How long something may look wrong before it counts, in seconds.

    ``unfinished``: longer than S3, SQS with its retries and the processors' queue take. ``again``: until something that
    was announced again and still has not moved is announced once more. ``orphan``: the age of an object without a
    record before it is tagged. ``grace``: from there until it is removed.
    """

    unfinished: float = 900.0
    again: float = 3600.0
    orphan: float = 86_400.0
    grace: float = 7 * 86_400.0


def unfinished(asset: Asset, event: Event | None, inbox: Mapping[str, Any] | None, *, now: datetime) -> Finding | None:
    """What is wrong with an asset that has been UPLOADING or PROCESSING for long.

    ``event`` is its AssetUploaded, made from what S3 has: None if nothing was uploaded. ``inbox`` is that event's row.
    """
    if event is None:
        return None
    if inbox is not None and inbox["state"] != PROCESSING:
        what = f"{asset.status}, but its event {event.id} is {inbox['state']} ({inbox.get('outcome')})"
        return Finding(Kind.INCONSISTENT, asset.id, what, event)
    if inbox is not None and not free(inbox, now):
        return None
    if inbox is None and asset.status is Status.UPLOADING:
        what = f"its original is in the bucket since {event.occurred_at:%Y-%m-%d %H:%M:%S}, and no processor was told"
        return Finding(Kind.LOST_NOTIFICATION, asset.id, what, event)
    attempts = 0 if inbox is None else inbox.get("attempts", 0)
    what = f"{asset.status} since {asset.updated_at:%Y-%m-%d %H:%M:%S} after {attempts} attempts, and leased to nobody"
    return Finding(Kind.STUCK_PROCESSING, asset.id, what, event)


def free(inbox: Mapping[str, Any], now: datetime) -> bool:
    """Whether anybody may claim the event now: no lease and no back-off is running."""
    return all(inbox[name] <= now for name in ("lease_until", "not_before") if inbox.get(name) is not None)


def stored(kept: Kept, *, now: datetime, patience: Patience) -> Iterator[Finding]:
    """What is wrong between an asset's record and its objects. An orphan's tag is for the caller to look at."""
    if kept.asset is None:
        for key, listed in kept.objects.items():
            if now - listed.modified > timedelta(seconds=patience.orphan):
                yield Finding(Kind.ORPHAN_FOUND, kept.asset_id, f"{key} has no record", key=key)
        return
    status, original = kept.asset["status"], kept.asset["object_key"]
    if status not in (Status.READY, Status.TRASHED):
        return
    lost = list(renditions_listed(kept))
    if original not in kept.objects:
        also = f"; {len(lost)} of its renditions are lost too" if lost else ""
        what = f"{status}, and its original {original} is not in the bucket{also}"
        yield Finding(Kind.ORIGINAL_GONE, kept.asset_id, what, key=original)
    elif lost:
        yield Finding(Kind.LOST_RENDITION, kept.asset_id, "; ".join(lost))


def orphan(finding: Finding, tagged_at: datetime | None, *, now: datetime, patience: Patience) -> Finding | None:
    """What to do about an object without a record: tag it, remove it, or (None) wait until its grace is over."""
    if tagged_at is None:
        return finding
    if now - tagged_at <= timedelta(seconds=patience.grace):
        return None
    what = f"{finding.key} has no record, and was tagged so on {tagged_at:%Y-%m-%d %H:%M:%S}"
    return Finding(Kind.ORPHAN_EXPIRED, finding.asset_id, what, key=finding.key)
