"""URLs that let a client talk to S3 by itself, for a short time and for exactly what was registered."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

from asset_api.cloudfront import CloudFront
from asset_api.errors import CannotSign
from asset_api.filenames import attachment
from darkroom.assets import Asset
from darkroom.runtime.s3 import s3_client
from darkroom.runtime.signer import Signer
from darkroom.runtime.start import StartRefused

WRITE_ONCE = "*"
"""``If-None-Match: *``: S3 refuses the PUT when the object exists."""


@dataclass(frozen=True)
class SignedUpload:
    """A PUT that S3 accepts once, with exactly these headers, until ``expires_at``."""

    url: str
    headers: dict[str, str]
    expires_at: datetime
    method: str = "PUT"


@dataclass(frozen=True)
class SignedDownload:
    """A GET that works until ``expires_at``."""

    url: str
    expires_at: datetime


def utc_now() -> datetime:
    """The time of this host, which is what signatures are dated with."""
    return datetime.now(UTC)


class Presigner:
    """Signs with the session's credentials. Nothing is sent: signing is arithmetic, but for credentials to renew."""

    def __init__(
        self,
        *,
        session: Any,
        bucket: str,
        endpoint_url: str | None,
        upload_seconds: int,
        download_seconds: int,
        cloudfront: CloudFront | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._session = session
        self._client = s3_client(session=session, endpoint_url=endpoint_url)
        self._signer = Signer(client=self._client, session=session, bucket=bucket)
        self._upload_seconds = upload_seconds
        self.download_seconds = download_seconds
        self._cloudfront = cloudfront
        self._clock = clock

    async def check(self) -> None:
        """See that URLs can be signed.

        Raises:
            StartRefused: there are no credentials, or no region where one is needed.

        """
        if await asyncio.to_thread(self._session.get_credentials) is None:
            raise StartRefused(
                "There are no AWS credentials to sign URLs with. Give the service a role, or set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY."
            )
        if urlsplit(self._client.meta.endpoint_url).netloc == "s3.amazonaws.com":
            raise StartRefused("No AWS region is set, and URLs are signed for one. Set AWS_REGION to the bucket's.")

    async def upload(self, asset: Asset, *, until: datetime | None = None) -> SignedUpload | None:
        """The PUT of an asset's original, which works no longer than ``until``. None: that is over.

        Raises:
            CannotSign: the credentials have expired.

        """
        frozen, now, seconds = await self._lifetime(self._upload_seconds)
        if until is not None:
            seconds = min(seconds, int((until - self._clock()).total_seconds()))
            if seconds < 1:
                return None
        headers = {
            "Content-Type": asset.content_type,
            "Content-Length": str(asset.size),
            "If-None-Match": WRITE_ONCE,
        }
        parameters: dict[str, Any] = {
            "Key": asset.object_key,
            "ContentType": asset.content_type,
            "ContentLength": asset.size,
            "IfNoneMatch": WRITE_ONCE,
        }
        if asset.checksum_sha256 is not None:
            headers["x-amz-checksum-sha256"] = asset.checksum_sha256
            parameters["ChecksumSHA256"] = asset.checksum_sha256
        url = self._signer.url("put_object", parameters=parameters, seconds=seconds, credentials=frozen)
        # A header that is not signed is no constraint; a later boto3 must not drop one unnoticed.
        if missing := set(map(str.lower, headers)) - signed_headers(url):
            raise CannotSign(f"the signature does not cover {', '.join(sorted(missing))}")
        return SignedUpload(url=url, headers=headers, expires_at=now + timedelta(seconds=seconds))

    async def download(self, object_key: str, *, content_type: str, filename: str | None = None) -> SignedDownload:
        """A URL to read an object. Its content type is ours, whatever the object says; with ``filename`` a browser
        saves it instead of showing it.

        Raises:
            CannotSign: the credentials have expired.

        """
        disposition = None if filename is None else attachment(filename)
        if self._cloudfront is not None:
            expires_at = self._clock().replace(microsecond=0) + timedelta(seconds=self.download_seconds)
            query = {"response-content-type": content_type}
            if disposition is not None:
                query["response-content-disposition"] = disposition
            return SignedDownload(
                self._cloudfront.sign(object_key, parameters=query, expires_at=expires_at), expires_at
            )
        frozen, now, seconds = await self._lifetime(self.download_seconds)
        parameters = {"Key": object_key, "ResponseContentType": content_type}
        if disposition is not None:
            parameters["ResponseContentDisposition"] = disposition
        url = self._signer.url("get_object", parameters=parameters, seconds=seconds, credentials=frozen)
        return SignedDownload(url, now + timedelta(seconds=seconds))

    async def origins(self) -> tuple[str, ...]:
        """The scheme and host of every URL signed here, which a page must be allowed to talk to."""
        await self._lifetime(self._upload_seconds)
        # Of S3 it is known from a URL alone: the bucket may be in the host or in the path.
        s3 = urlsplit(self._signer.url("get_object", parameters={"Key": "assets/"}, seconds=1))
        uploads = f"{s3.scheme}://{s3.netloc}"
        return (uploads,) if self._cloudfront is None else (uploads, self._cloudfront.origin)

    async def _lifetime(self, wanted: int) -> tuple[Any, datetime, int]:
        """What to sign with, the moment, and for how many seconds: no longer than the credentials that sign last."""
        credentials = self._session.get_credentials()
        if credentials is None:
            raise CannotSign("there are no AWS credentials")
        if hasattr(credentials, "refresh_needed") and credentials.refresh_needed():
            try:
                # Kept: asking again renews again, here, as long as those that are about to expire cannot be renewed.
                frozen = await asyncio.to_thread(credentials.get_frozen_credentials)
            except RuntimeError as error:  # what botocore raises when the renewed ones are expired too
                raise CannotSign(str(error)) from error
        else:
            frozen = credentials.get_frozen_credentials()
        now = self._clock().replace(microsecond=0)
        # botocore has no public name for it; without it the lifetime is only the URL's.
        ends: datetime | None = getattr(credentials, "_expiry_time", None)
        seconds = wanted if ends is None else min(wanted, int((ends - now).total_seconds()))
        if seconds < 1:
            raise CannotSign("the AWS credentials have expired")
        return frozen, now, seconds


def signed_headers(url: str) -> frozenset[str]:
    """The names of the headers that a presigned URL's signature covers, in lower case."""
    _, found, rest = url.partition("&X-Amz-SignedHeaders=")
    return _names(rest.partition("&")[0]) if found else frozenset()


@lru_cache(maxsize=16)
def _names(parameter: str) -> frozenset[str]:
    return frozenset(unquote(parameter).split(";"))
