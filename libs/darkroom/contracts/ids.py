"""Identifiers that come out the same however often they are computed."""

from uuid import NAMESPACE_URL, UUID, uuid5

ORIGINAL_UPLOADED = uuid5(NAMESPACE_URL, "urn:darkroom:original-uploaded")


def stream_event_id(asset_id: str, sequence: int) -> str:
    """The id of an asset's ``sequence``-th event: a replay or a rebuild never invents a new one."""
    return str(uuid5(UUID(asset_id), str(sequence)))


def upload_event_id(bucket: str, object_key: str, version_id: str | None, etag: str | None) -> str:
    """The id of AssetUploaded for one version of one object.

    S3 may notify twice, SQS may deliver twice, a redrive or the reconciler may send again: all give this id. ``etag``
    stands in where the bucket keeps no versions; where S3 names neither, the key alone is the identity.
    """
    # NUL cannot occur in a bucket name, a version or an eTag, so no two different objects share a name here.
    return str(uuid5(ORIGINAL_UPLOADED, "\0".join((bucket, object_key, version_id or etag or ""))))
