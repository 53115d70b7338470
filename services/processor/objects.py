"""Originals and renditions in the bucket."""

import hashlib
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from processor.direct import Direct

CHUNK = 16 * 1024
"""Bytes after which a slow download looks at its deadline and at its cancellation."""
LARGEST_CHUNK = 1024 * 1024
"""The same of a fast one: more bytes at a time cost less CPU."""
FAST_SECONDS = 0.02
"""A chunk that came within so long is followed by one of twice its size."""
CACHE_CONTROL = "private, max-age=31536000, immutable"
"""Of renditions: a key's bytes are the asset's for good."""


class ObjectMissing(Exception):
    """The object, or that version of it, is not in the bucket. It may still appear: S3's answer may be old."""


class StorageFailed(Exception):
    """The store did not do what it was asked, and may do it another time."""


class DownloadRefused(Exception):
    """The object has another size than expected; nothing was downloaded. ``size`` is in bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the object has {size} bytes")
        self.size = size


class CalledOff(Exception):
    """The work was called off while bytes were under way."""


@dataclass(frozen=True)
class Fetched:
    """An original as it was read, in pieces; its SHA-256 in base64, if that was asked for."""

    chunks: Sequence[bytes]
    etag: str
    version_id: str | None
    sha256: str | None


class Bucket:
    """The one bucket of this installation; a bucket that an event names is never read. Thread-safe."""

    def __init__(self, client: Any, *, name: str, download_seconds: float, direct: Direct | None = None) -> None:
        """``direct`` is tried before the client where an object is read or written."""
        self._client = client
        self._direct = direct
        self._download_seconds = download_seconds
        self.name = name

    def fetch(
        self, key: str, *, version_id: str | None, size: int, cancelled: threading.Event, hashed: bool = False
    ) -> Fetched:
        """Read an original of exactly ``size`` bytes; ``hashed``: and take its SHA-256.

        Raises:
            DownloadRefused: the object is smaller or larger; found out before its bytes are read.
            ObjectMissing: no such object or version.
            StorageFailed: the store failed, or the download took too long.
            CalledOff: ``cancelled`` was set.

        """
        deadline = time.monotonic() + self._download_seconds
        version = {} if version_id is None else {"VersionId": version_id}
        digest = hashlib.sha256() if hashed else None
        direct = None if self._direct is None else self._direct.get(key, version_id=version_id, size=size)
        try:
            answer = direct or self._client.get_object(Bucket=self.name, Key=key, **version)
            with closing(answer["Body"]) as body:
                if answer["ContentLength"] != size:
                    raise DownloadRefused(answer["ContentLength"])
                chunks, amount, asked = [], CHUNK, time.monotonic()
                while chunk := body.read(amount):
                    came = time.monotonic()
                    if cancelled.is_set():
                        raise CalledOff
                    if came > deadline:
                        raise StorageFailed(f"the download of {key} took more than {self._download_seconds:g} s")
                    chunks.append(chunk)
                    if digest is not None:
                        # Now, while it is in the processor's caches.
                        digest.update(chunk)
                    amount = min(2 * amount, LARGEST_CHUNK) if came - asked < FAST_SECONDS else CHUNK
                    asked = came
        except ClientError as error:
            raise _translated(error) from error
        except (BotoCoreError, OSError) as error:
            self._broke_off(direct)
            raise StorageFailed(f"GET {key}: {error}") from error
        if (read := sum(map(len, chunks))) != size:
            self._broke_off(direct)
            raise StorageFailed(f"GET {key}: the connection ended after {read} of {size} bytes")
        sha256 = None if digest is None else b64encode(digest.digest()).decode()
        return Fetched(chunks, answer["ETag"].strip('"'), _version(answer.get("VersionId")), sha256)

    def _broke_off(self, direct: object) -> None:
        if direct is not None and self._direct is not None:
            # The next attempt must not meet the same.
            self._direct.leave()

    def store(self, key: str, data: bytes, *, content_type: str, still_ours: Callable[[], None]) -> None:
        """Write a rendition once.

        The write is refused by S3 if the key exists, so a worker that was overtaken cannot replace its successor's
        bytes. Equal bytes are as good as written; others, as from an earlier release, are replaced after
        ``still_ours`` has passed, and only if they are still those that were seen before it.

        Raises:
            StorageFailed: the store failed, or somebody else wrote the key meanwhile.
            Exception: whatever ``still_ours`` raises; then nothing was replaced.

        """
        checksum = b64encode(hashlib.sha256(data).digest()).decode()
        if self._direct is not None and self._direct.put(
            key, data, content_type=content_type, cache_control=CACHE_CONTROL, sha256=checksum
        ):
            return
        # If that wrote it after all, the key exists with equal bytes.
        request = {
            "Bucket": self.name,
            "Key": key,
            "Body": data,
            "ContentType": content_type,
            "CacheControl": CACHE_CONTROL,
            "ChecksumSHA256": checksum,
        }
        try:
            try:
                self._client.put_object(**request, IfNoneMatch="*")
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] != 412:
                    raise
                there = self._client.head_object(Bucket=self.name, Key=key, ChecksumMode="ENABLED")
                if there.get("ChecksumSHA256") != checksum:
                    still_ours()
                    self._client.put_object(**request, IfMatch=there["ETag"])
        except ClientError as error:
            # "Not found" means here that the key went away meanwhile, not that an original is missing.
            raise StorageFailed(f"{error.operation_name} {key}: {_code(error)}") from error
        except (BotoCoreError, OSError) as error:
            raise StorageFailed(f"PUT {key}: {error}") from error

    def probe(self) -> None:
        """Ask the bucket whether it is there; whatever this raises means that S3 cannot be used now."""
        self._client.head_bucket(Bucket=self.name)


def _version(version_id: str | None) -> str | None:
    return None if version_id in (None, "", "null") else version_id


def _translated(error: ClientError) -> Exception:
    code = _code(error)
    operation = error.operation_name
    if code in ("NoSuchKey", "NoSuchVersion", "404"):
        return ObjectMissing(f"{operation}: {code}")
    return StorageFailed(f"{operation}: {code}")


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
