"""Decide a change: from an asset and what happened to the event and the state after it."""

from dataclasses import dataclass
from datetime import datetime

from darkroom.assets.asset import Asset, apply
from darkroom.contracts.envelope import Event
from darkroom.contracts.events import EventData
from darkroom.contracts.ids import stream_event_id


@dataclass(frozen=True)
class Change:
    """One step of one stream. Whoever stores it writes ``after`` and ``event`` in one transaction, or neither."""

    before: Asset | None
    after: Asset
    event: Event


def change(
    before: Asset | None,
    data: EventData,
    *,
    occurred_at: datetime,
    asset_id: str | None = None,
    owner_id: str | None = None,
    causation_id: str | None = None,
    correlation_id: str | None = None,
    traceparent: str | None = None,
) -> Change:
    """What ``data`` does to ``before``. The first event of a stream also names ``asset_id`` and ``owner_id``.

    ``occurred_at`` is cut to milliseconds, as MongoDB does, so that the event reads back as it was written.

    Raises:
        IllegalTransition: the event cannot follow the asset's status.
        ValueError: the first event of a stream without asset_id or owner_id.

    """
    asset_id = before.id if before else asset_id
    owner_id = before.owner_id if before else owner_id
    if asset_id is None or owner_id is None:
        raise ValueError("the first event of a stream needs asset_id and owner_id")
    sequence = before.version + 1 if before else 1
    event = Event(
        id=stream_event_id(asset_id, sequence),
        asset_id=asset_id,
        sequence=sequence,
        owner_id=owner_id,
        causation_id=causation_id,
        correlation_id=correlation_id or (before.correlation_id if before else None),
        traceparent=traceparent or (before.traceparent if before else None),
        occurred_at=occurred_at.replace(microsecond=occurred_at.microsecond // 1000 * 1000),
        data=data,
    )
    return Change(before=before, after=apply(before, event), event=event)
