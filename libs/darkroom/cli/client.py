"""The public API as a browser uses it: register, put the bytes straight into S3, look at the asset until it is done."""

import time
import uuid
from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import httpx

TERMINAL = frozenset({"READY", "FAILED", "EXPIRED", "TRASHED", "PURGED"})


class Refused(Exception):
    """The API or S3 refused the upload: ``problem_type`` is the problem's type, the message its detail.

    ``asset_id`` is there when the API had registered it before S3 refused.
    """

    def __init__(self, problem_type: str, detail: str, *, asset_id: str | None = None) -> None:
        super().__init__(detail)
        self.problem_type = problem_type
        self.asset_id = asset_id


@dataclass(frozen=True)
class Sent:
    """An upload that is on its way; wall-clock seconds since the epoch."""

    asset_id: str
    began: float
    registered: float
    uploaded: float


class Uploader:
    """Uploads for one owner. Thread-safe."""

    def __init__(self, api_url: str, token: str) -> None:
        self._api = httpx.Client(base_url=api_url, headers={"Authorization": f"Bearer {token}"}, timeout=30)
        self._s3 = httpx.Client(timeout=120)

    def close(self) -> None:
        """Close the connections."""
        self._api.close()
        self._s3.close()

    def send(self, *, filename: str, content_type: str, data: bytes) -> Sent:
        """Register and upload.

        Raises:
            Refused: the API or S3 answered 4xx.
            httpx.HTTPError: no answer, or a 5xx.

        """
        began = time.time()
        answer = self._api.post(
            "/assets",
            headers={"Idempotency-Key": str(uuid.uuid4())},
            json={
                "filename": filename,
                "content_type": content_type,
                "size": len(data),
                "checksum_sha256": b64encode(sha256(data).digest()).decode(),
            },
        )
        _check(answer)
        registered = time.time()
        asset = answer.json()
        upload = asset["upload"]
        stored = self._s3.request(upload["method"], upload["url"], headers=upload["headers"], content=data)
        _check(stored, asset_id=asset["asset_id"])
        return Sent(asset["asset_id"], began, registered, time.time())

    def get(self, asset_id: str) -> dict[str, Any]:
        """The asset as the API shows it."""
        answer = self._api.get(f"/assets/{asset_id}")
        _check(answer)
        asset: dict[str, Any] = answer.json()
        return asset


def _check(answer: httpx.Response, *, asset_id: str | None = None) -> None:
    if 400 <= answer.status_code < 500:
        try:
            problem = answer.json()
        except ValueError:
            problem = {"type": f"s3:{answer.status_code}", "detail": answer.text[:500]}
        detail = problem.get("detail") or problem.get("title", "")
        raise Refused(problem.get("type", "about:blank"), detail, asset_id=asset_id)
    answer.raise_for_status()
