"""GET and PUT of one object without what botocore does around a request, which costs more than the request itself."""

import time
from collections.abc import Mapping
from typing import Any

import structlog
from botocore.awsrequest import AWSPreparedRequest, AWSResponse, HeadersDict
from botocore.response import StreamingBody

from darkroom.runtime.signer import Signer

log = structlog.get_logger()

_SIGNED_SECONDS = 900
_OF_THE_OBJECT = (404, 409, 412)
"""Statuses that tell of the object, and not of how it was asked for."""
REFUSED_SECONDS = 300.0
"""After a refusal or an odd answer botocore alone is asked for so long: a store without signed URLs would else have
every request twice."""
TROUBLED_SECONDS = 5.0
"""The same after no answer or an error of the store, for what botocore asks then is asked with pauses."""


class Direct:
    """Signed URLs over a client's own connections, with its time-outs, proxies and certificates. Thread-safe.

    It is for what succeeds at once. Of everything else it tells nothing: whoever asked then asks botocore, which tries
    again, follows and says what is wrong.
    """

    def __init__(self, client: Any, *, signer: Signer) -> None:
        self._http = client._endpoint.http_session  # noqa: SLF001 -- it has no public name
        self._agent = client.meta.config.user_agent
        self._signer = signer
        self._paused_until = 0.0

    def get(self, key: str, *, version_id: str | None, size: int) -> dict[str, Any] | None:
        """What ``client.get_object`` answers for an object of so many bytes, as far as it is needed here, or None.

        The body is yet to be read; should it break off, call ``leave``.
        """
        version = {} if version_id is None else {"VersionId": version_id}
        answer = self._send("GET", "get_object", {"Key": key, **version})
        if answer is None:
            return None
        headers = answer.headers
        if headers.get("Content-Length") != str(size) or "ETag" not in headers:
            answer.raw.close()
            if "Content-Length" not in headers or "ETag" not in headers:
                self.leave()  # what stands before a store may answer 200 as well
            return None
        return {
            "Body": StreamingBody(answer.raw, headers["Content-Length"]),
            "ContentLength": size,
            "ETag": headers["ETag"],
            "VersionId": headers.get("x-amz-version-id"),
        }

    def leave(self) -> None:
        """Leave the store to botocore for a while: what it answered was no good."""
        self._paused_until = time.monotonic() + REFUSED_SECONDS

    def put(self, key: str, data: bytes, *, content_type: str, cache_control: str, sha256: str) -> bool:
        """Write an object that is not there yet. False says nothing: it may even have been written."""
        given = {
            "Key": key,
            "ContentType": content_type,
            "ContentLength": len(data),
            "CacheControl": cache_control,
            "ChecksumSHA256": sha256,
            "IfNoneMatch": "*",
        }
        headers = {
            "Content-Type": content_type,
            "Content-Length": str(len(data)),
            "Cache-Control": cache_control,
            "x-amz-checksum-sha256": sha256,
            "If-None-Match": "*",
        }
        return self._send("PUT", "put_object", given, headers, data) is not None

    def _send(
        self,
        method: str,
        operation: str,
        parameters: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> AWSResponse | None:
        if time.monotonic() < self._paused_until:
            return None
        try:
            url = self._signer.url(operation, parameters=parameters, seconds=_SIGNED_SECONDS)
            sent = HeadersDict({"User-Agent": self._agent, **(headers or {})})
            answer = self._http.send(AWSPreparedRequest(method, url, sent, body, stream_output=body is None))
        except Exception as error:  # noqa: BLE001 -- botocore meets the same and tells it better
            log.debug("direct_request_failed", error=str(error))
            self._paused_until = time.monotonic() + TROUBLED_SECONDS
            return None
        if answer.status_code == 200:
            return answer
        answer.raw.close()
        if answer.status_code >= 500:
            self._paused_until = time.monotonic() + TROUBLED_SECONDS
        elif answer.status_code not in _OF_THE_OBJECT:
            self.leave()
        return None
