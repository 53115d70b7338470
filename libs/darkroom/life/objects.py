"""The objects of an asset in the bucket: looked for, put away and removed."""

from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from darkroom.life.rejected import RejectedOriginal, RejectedOriginals

REJECTED = {"Key": "darkroom-state", "Value": "rejected"}
"""The tag by which a life-cycle rule finds rejected originals; deploy/aws/template.yaml has one."""
AT_ONCE = 1000
"""Objects in one request: S3's limit."""


class RemovalFailed(Exception):
    """The store did not do what it was asked; another time it may."""


class ObjectStore:
    """One bucket, with or without versions."""

    def __init__(self, client: Any, *, bucket: str) -> None:
        self._client = client
        self._bucket = bucket

    def exists(self, key: str) -> bool:
        """Whether there is an object of this key.

        Raises:
            RemovalFailed: the store does not say.

        """
        try:
            self._client.head_object(Bucket=self._bucket, Key=key)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                return False
            raise RemovalFailed(f"HEAD {key}: {error}") from error
        except BotoCoreError as error:
            raise RemovalFailed(f"HEAD {key}: {error}") from error
        return True

    def put_away(self, original: RejectedOriginal) -> None:
        """Do with a rejected original what is to become of it. May be repeated; one that is gone is put away.

        Raises:
            RemovalFailed: the store did not do it.

        """
        version = {} if original.version_id is None else {"VersionId": original.version_id}
        named = {"Bucket": self._bucket, "Key": original.object_key, **version}
        try:
            match original.policy:
                case RejectedOriginals.KEEP:
                    pass
                case RejectedOriginals.TAG:
                    tags = [REJECTED, {"Key": "darkroom-failure", "Value": original.code}]
                    self._client.put_object_tagging(**named, Tagging={"TagSet": tags})
                case RejectedOriginals.DELETE:
                    self._client.delete_object(**named)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
                raise RemovalFailed(f"{original.policy} {original.object_key}: {error}") from error
        except BotoCoreError as error:
            raise RemovalFailed(f"{original.policy} {original.object_key}: {error}") from error

    def remove_all(self, prefix: str) -> int:
        """Remove every version and every delete marker below the prefix, for good. Gives their number.

        Raises:
            RemovalFailed: something is left; doing it again goes on from there.

        """
        removed = 0
        try:
            pages = self._client.get_paginator("list_object_versions").paginate(Bucket=self._bucket, Prefix=prefix)
            for page in pages:
                found = [
                    {"Key": entry["Key"], "VersionId": entry["VersionId"]}
                    for entry in [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
                ]
                for begin in range(0, len(found), AT_ONCE):
                    batch = found[begin : begin + AT_ONCE]
                    answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": batch, "Quiet": True})
                    if errors := answer.get("Errors"):
                        raise RemovalFailed(f"{len(errors)} objects of {prefix}: {errors[0].get('Code')}")
                    removed += len(batch)
        except (ClientError, BotoCoreError) as error:
            raise RemovalFailed(f"{prefix}: {error}") from error
        return removed
