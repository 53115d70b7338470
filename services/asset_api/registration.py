"""The use case of ``POST /assets``: one asset for one key of one owner, however often and from wherever it is asked."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from asset_api.requests import UploadRequest, fingerprint, object_key
from darkroom.assets import Asset, Change, change
from darkroom.contracts.events import AssetRegistered
from darkroom.tracing.traceparent import of_asset


class Store(Protocol):
    """What registration needs of the database."""

    async def by_key(self, *, owner_id: str, idempotency_key: str) -> Asset | None:
        """The owner's asset of this key, as a majority of the servers has it."""

    async def register(self, candidate: Change) -> Asset:
        """Store the candidate and its event in one transaction, unless the key has an asset: then give that one."""


@dataclass(frozen=True)
class Registered:
    """The asset of the key, and whether this very call made it."""

    asset: Asset
    created: bool


class KeyReused(Exception):
    """The key has an asset that was registered by another request."""


async def register(
    wanted: UploadRequest,
    *,
    owner_id: str,
    idempotency_key: str,
    correlation_id: str,
    traceparent: str | None = None,
    store: Store,
    clock: Callable[[], datetime],
    new_id: Callable[[], UUID],
) -> Registered:
    """Register an upload, or find the asset that an earlier equal request registered.

    Without a ``traceparent`` the asset is in the trace that its id gives it.

    Raises:
        KeyReused: the key belongs to another request.
        QuotaExceeded: of the store, see there.

    """
    request_hash = fingerprint(wanted)
    # Most retries come long after the first request: a read answers them, without a transaction.
    asset = await store.by_key(owner_id=owner_id, idempotency_key=idempotency_key)
    created = False
    if asset is None:
        asset_id = str(new_id())
        data = AssetRegistered(
            idempotency_key=idempotency_key,
            request_hash=request_hash,
            filename=wanted.filename,
            content_type=wanted.content_type,
            size=wanted.size,
            checksum_sha256=wanted.checksum_sha256,
            object_key=object_key(asset_id, wanted.content_type),
            reference=wanted.reference,
            metadata=wanted.metadata,
        )
        candidate = change(
            None,
            data,
            occurred_at=clock(),
            asset_id=asset_id,
            owner_id=owner_id,
            correlation_id=correlation_id,
            traceparent=traceparent or _own_trace(asset_id),
        )
        asset = await store.register(candidate)
        # The id tells who won; what the driver says of upserts is not reliable after its own retries.
        created = asset.id == asset_id
    if asset.request_hash != request_hash:
        raise KeyReused
    return Registered(asset, created)


def _own_trace(asset_id: str) -> str | None:
    own = of_asset(asset_id)
    return None if own is None else str(own)
