"""Have an upload processed again that had ended: the one way from READY or FAILED back to PROCESSING (ADR 0010)."""

from pymongo.client_session import ClientSession

from darkroom.assets import Asset, Status, change, from_document, guard, update
from darkroom.assets.documents import COLLECTION as ASSETS
from darkroom.contracts.events import AssetRedriven
from darkroom.ops.announcing import Announcer, announced
from darkroom.ops.installation import Installation
from darkroom.outbox import COLLECTION as OUTBOX
from darkroom.outbox import to_row
from darkroom.runtime.mongo import in_transaction


class NotRedrivable(Exception):
    """The asset is not in a state from which it could be processed again; the message says in which it is."""


def redrive(installation: Installation, asset_id: str, *, reason: str, announcer: Announcer) -> None:
    """Reopen the asset's upload, then announce it again under its own id.

    A crash in between leaves an asset that is PROCESSING and leased to nobody: the reconciler announces such again.

    Raises:
        NotRedrivable: the asset is neither READY nor FAILED, or never was processed.
        KafkaException, TimeoutError: reopened, but not announced yet.
        PyMongoError, ClientError, BotoCoreError: MongoDB or S3 failed.

    """
    asset, upload = _reopen(installation, asset_id, reason=reason)
    event, _ = announced(installation, asset, upload)
    announcer.announce(event)


def _reopen(installation: Installation, asset_id: str, *, reason: str) -> tuple[Asset, str]:
    def body(session: ClientSession) -> tuple[Asset, str]:
        document = installation.db[ASSETS].find_one({"_id": asset_id}, session=session)
        if document is None:
            raise NotRedrivable(f"asset {asset_id} does not exist")
        asset = from_document(document)
        if asset.status not in (Status.READY, Status.FAILED) or asset.upload is None:
            raise NotRedrivable(f"asset {asset_id} is {asset.status}; only READY and FAILED ones can be redriven")
        upload = asset.upload.event_id
        made = change(
            asset,
            AssetRedriven(upload_event_id=upload, by=installation.by, reason=reason),
            occurred_at=installation.now(),
            causation_id=upload,
        )
        row = {"consumer": installation.group, "event_id": upload}
        if not installation.inbox.reopen(upload, session=session) and installation.db.consumer_inbox.find_one(
            row, session=session
        ):
            raise NotRedrivable(f"asset {asset_id} has ended, but event {upload} has not; run `darkroom verify`")
        written = installation.db[ASSETS].update_one(guard(asset), update(asset, made.after), session=session)
        if written.matched_count == 0:
            raise NotRedrivable(f"asset {asset_id} was changed meanwhile; look at it and ask again")
        installation.db[OUTBOX].insert_one(to_row(made.event), session=session)
        return made.after, upload

    return in_transaction(installation.mongo, body)
