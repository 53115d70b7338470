"""Presigned URLs of S3 without botocore's detours, once it is seen that both make the same."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import structlog

from darkroom.runtime.sigv4 import ALGORITHM, Credentials, Place, presign

log = structlog.get_logger()

_METHODS = {"put_object": "PUT", "get_object": "GET"}
_HEADERS = {
    "ContentType": "content-type",
    "ContentLength": "content-length",
    "CacheControl": "cache-control",
    "IfNoneMatch": "if-none-match",
    "ChecksumSHA256": "x-amz-checksum-sha256",
}
_QUERY = {
    "ResponseContentType": "response-content-type",
    "ResponseContentDisposition": "response-content-disposition",
    "VersionId": "versionId",
}
_KNOWN = frozenset({"Key", *_HEADERS, *_QUERY})
_SAMPLE = "assets/sample"


class Signer:
    """Signs as ``client.generate_presigned_url`` does, for one bucket.

    Where the bucket is, botocore says: by a URL of its own, which ours must equal. If it does not (an access point,
    another kind of signature, a later botocore that signs more), botocore goes on signing.
    """

    def __init__(self, *, client: Any, session: Any, bucket: str) -> None:
        self._client = client
        self._session = session
        self._bucket = bucket
        self._place: Place | None = None
        self._compared = False

    def url(self, operation: str, *, parameters: Mapping[str, Any], seconds: int, credentials: Any = None) -> str:
        """A URL for ``put_object`` or ``get_object`` with these parameters, by botocore's names and without Bucket.

        ``credentials`` are frozen ones of the session; without them it is asked, which may renew them.
        """
        if not self._compared:
            self._compare()
        if self._place is None or not parameters.keys() <= _KNOWN:
            return self._botocores(operation, parameters, seconds)
        frozen = credentials or self._session.get_credentials().get_frozen_credentials()
        return self._ours(operation, parameters, seconds, place=self._place, now=datetime.now(UTC), frozen=frozen)

    def _ours(
        self,
        operation: str,
        parameters: Mapping[str, Any],
        seconds: int,
        *,
        place: Place,
        now: datetime,
        frozen: Any,
    ) -> str:
        return presign(
            _METHODS[operation],
            parameters["Key"],
            place=place,
            credentials=Credentials(frozen.access_key, frozen.secret_key, frozen.token),
            now=now,
            seconds=seconds,
            headers={_HEADERS[name]: str(value) for name, value in parameters.items() if name in _HEADERS},
            query=[(_QUERY[name], value) for name, value in parameters.items() if name in _QUERY],
        )

    def _botocores(self, operation: str, parameters: Mapping[str, Any], seconds: int) -> str:
        given = {"Bucket": self._bucket, **parameters}
        url: str = self._client.generate_presigned_url(operation, Params=given, ExpiresIn=seconds)
        return url

    def _compare(self) -> None:
        sample: dict[str, Any] = {
            "Key": _SAMPLE,
            "ContentType": "image/jpeg",
            "ContentLength": 1,
            "CacheControl": "private",
            "IfNoneMatch": "*",
            "ChecksumSHA256": "x",
        }
        theirs = self._botocores("put_object", sample, 900)
        url = urlsplit(theirs)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        equal = False
        if query.get("X-Amz-Algorithm") == ALGORITHM and url.path.endswith(_SAMPLE):
            region = query["X-Amz-Credential"].split("/")[-3]
            place = Place(url.scheme, url.netloc, url.path.removesuffix(_SAMPLE), region)
            now = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            frozen = self._session.get_credentials().get_frozen_credentials()
            equal = self._ours("put_object", sample, 900, place=place, now=now, frozen=frozen) == theirs
            self._place = place if equal else None
        if not equal:
            log.warning("signing_by_botocore", reason="its URLs differ from ours; correct, but slower")
        self._compared = True
