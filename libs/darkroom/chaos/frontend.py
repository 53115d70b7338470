"""Frontends that upload while everything breaks and never give up: one as a good client, some as nervous ones.

A client repeats a request with the same Idempotency-Key after any error, asks for a fresh URL when S3 failed, and takes
412 on its own PUT as success: the object is there, only the answer was lost.
"""

import random
import threading
import time
from base64 import b64encode
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import httpx

from darkroom.chaos.pictures import Picture, make

OWNER = "chaos"
CORRUPT_SHARE = 0.1
TWIN_SHARE = 0.25
"""Uploads whose registration is sent several times at once, to different API processes."""
TWINS = 3
AGAIN_SHARE = 0.15
"""Uploads whose bytes are sent again after they arrived."""
PAUSE_SECONDS = (0.1, 0.8)
API_SECONDS = 15.0
S3_SECONDS = 30.0
REGISTERED = (200, 201)
REPEATED = 412


class GaveUp(Exception):
    """An upload did not succeed in its time, or was refused for good. The message has the last answer."""


@dataclass
class Upload:
    """One upload and what its client was told. Monotonic seconds."""

    key: str
    picture: Picture
    asset_ids: set[str] = field(default_factory=set)
    began: float = 0.0
    sent: float | None = None
    """When its bytes were known to be in S3."""
    put_windows: list[tuple[float, float]] = field(default_factory=list)
    """From the sending of each PUT to its end, whatever that was."""
    retries: int = 0
    error: str | None = None

    @property
    def asset_id(self) -> str | None:
        """The id the client uses: any, as all must be the same."""
        return min(self.asset_ids, default=None)


class Frontends:
    """Uploads ``count`` pictures, evenly over ``seconds``, from ``threads`` clients; all of it chosen by ``seed``."""

    def __init__(
        self,
        api_urls: Sequence[str],
        token: str,
        *,
        count: int,
        seconds: float,
        seed: int,
        threads: int = 8,
        patience: float = 120.0,
    ) -> None:
        self._urls = api_urls
        self._seed = seed
        self._threads = threads
        self._patience = patience
        self._interval = seconds / count
        self._stop = threading.Event()
        self._headers = {"Authorization": f"Bearer {token}"}
        self.uploads = [self._upload(number) for number in range(count)]

    def stop(self) -> None:
        """Begin nothing more; what is under way ends."""
        self._stop.set()

    def run(self) -> None:
        """Upload everything; returns when all have ended. Errors are kept with their upload."""
        begin = time.monotonic()
        with ExitStack() as stack:
            api = stack.enter_context(httpx.Client(headers=self._headers, timeout=API_SECONDS))
            s3 = stack.enter_context(httpx.Client(timeout=S3_SECONDS))
            twins = stack.enter_context(ThreadPoolExecutor(self._threads * TWINS, thread_name_prefix="twin"))
            pool = stack.enter_context(ThreadPoolExecutor(self._threads, thread_name_prefix="frontend"))
            futures = []
            for number, upload in enumerate(self.uploads):
                if self._stop.wait(max(0.0, begin + number * self._interval - time.monotonic())):
                    break
                futures.append(pool.submit(self._one, number, upload, api, s3, twins))
            for future in futures:
                future.result()

    def _upload(self, number: int) -> Upload:
        chance = self._chance(number)
        return Upload(f"chaos-{self._seed}-{number}", make(chance, good=chance.random() >= CORRUPT_SHARE))

    def _chance(self, number: int) -> random.Random:
        return random.Random(f"{self._seed}-{number}")  # noqa: S311 -- a load, no secret

    def _one(self, number: int, upload: Upload, api: httpx.Client, s3: httpx.Client, twins: ThreadPoolExecutor) -> None:
        chance = self._chance(-1 - number)
        twin, again = chance.random() < TWIN_SHARE, chance.random() < AGAIN_SHARE
        upload.began = time.monotonic()
        deadline = upload.began + self._patience
        try:
            if twin:
                answers = list(twins.map(lambda nth: self._register(upload, api, number + nth, deadline), range(TWINS)))
                answer = answers[0]
            else:
                answer = self._register(upload, api, number, deadline)
            self._put(upload, answer, api, s3, number, deadline)
            upload.sent = time.monotonic()
            if again and answer["upload"] is not None:
                self._put_again(upload, answer["upload"], s3)
        except GaveUp as error:
            upload.error = str(error)

    def _register(self, upload: Upload, api: httpx.Client, turn: int, deadline: float) -> dict[str, Any]:
        picture = upload.picture
        body = {
            "filename": picture.filename,
            "content_type": picture.content_type,
            "size": len(picture.data),
            "checksum_sha256": b64encode(sha256(picture.data).digest()).decode(),
        }
        last = "never asked"
        while time.monotonic() < deadline:
            url = f"{self._urls[turn % len(self._urls)]}/assets"
            try:
                answer = api.post(url, headers={"Idempotency-Key": upload.key}, json=body)
            except httpx.HTTPError as error:
                last = f"{type(error).__name__}: {error}"
            else:
                if answer.status_code in REGISTERED:
                    found: dict[str, Any] = answer.json()
                    upload.asset_ids.add(found["asset_id"])
                    return found
                last = f"POST /assets: {answer.status_code} {answer.text[:200]}"
                if 400 <= answer.status_code < 500:
                    raise GaveUp(last)
            upload.retries += 1
            turn += 1
            _pause()
        raise GaveUp(f"not registered in {self._patience:g} s; last: {last}")

    def _put(
        self, upload: Upload, answer: dict[str, Any], api: httpx.Client, s3: httpx.Client, turn: int, deadline: float
    ) -> None:
        """Returns once the object is known to be there: by 200, by 412, or since the asset is already worked on."""
        last = "never asked"
        while (signed := answer["upload"]) is not None:
            if time.monotonic() > deadline:
                raise GaveUp(f"not uploaded in {self._patience:g} s; last: {last}")
            status, last = _send(upload, signed, s3)
            if status == 200 or status == REPEATED:
                return
            upload.retries += 1
            turn += 1
            _pause()
            answer = self._register(upload, api, turn, deadline)

    def _put_again(self, upload: Upload, signed: dict[str, Any], s3: httpx.Client) -> None:
        status, last = _send(upload, signed, s3)
        if status == 200:
            upload.error = f"S3 took the original a second time: {last}"


def _send(upload: Upload, signed: dict[str, Any], s3: httpx.Client) -> tuple[int | None, str]:
    began = time.monotonic()
    try:
        answer = s3.request(signed["method"], signed["url"], headers=signed["headers"], content=upload.picture.data)
    except httpx.HTTPError as error:
        return None, f"{type(error).__name__}: {error}"
    finally:
        upload.put_windows.append((began, time.monotonic()))
    return answer.status_code, f"PUT: {answer.status_code} {answer.text[:200]}"


def _pause() -> None:
    time.sleep(random.uniform(*PAUSE_SECONDS))  # noqa: S311 -- spreads retries
