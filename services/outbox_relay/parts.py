"""Which rows one query of a sweep asks for. Plain dictionaries; no driver here."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Place:
    """Where a sweep ended: in an asset's rows, or ``behind`` them."""

    shard: int
    asset_id: str
    behind: bool


@dataclass(frozen=True)
class Part:
    """Unpublished rows of these shards, in ascending order; or of one shard, of the assets that ``asset_id`` allows."""

    shards: tuple[int, ...]
    asset_id: tuple[tuple[str, str], ...] = ()

    def query(self, left_out: list[str]) -> dict[str, Any]:
        """The filter, without the assets that are ``left_out``."""
        assets: dict[str, Any] = dict(self.asset_id)
        if left_out:
            assets["$nin"] = left_out
        asked: dict[str, Any] = {"published": False, "shard": {"$in": list(self.shards)}}
        return {**asked, "asset_id": assets} if assets else asked

    def behind(self, shard: int, asset_id: str, *, itself: bool = False) -> list["Part"]:
        """What of this comes behind an asset (and with it, if ``itself``), the last part first."""
        later = tuple(each for each in self.shards if each > shard)
        parts = [Part(later)] if later else []
        if shard in self.shards:
            parts.append(Part((shard,), (("$gte" if itself else "$gt", asset_id),)))
        return parts
