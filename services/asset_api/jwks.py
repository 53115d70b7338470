"""An issuer's public keys (a JWK Set), kept so that its troubles are not ours.

A key that is known is used without asking. The set is fetched again when it has become old, in the background, or when
a token names a key that is not in it, which is how a rotation is noticed; never more often than once in
``min_seconds``, however many unknown keys are named. While the issuer does not answer, the keys known stay in use.

PyJWT's own client is not used: it fetches in a blocking way, at every unknown key, and forgets its keys at a failure.
"""

import asyncio
import json
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import jwt
import structlog

from asset_api.auth import Key
from asset_api.errors import KeysUnavailable

log = structlog.get_logger()

MAX_BYTES = 256 * 1024
MAX_KEY_ID_CHARACTERS = 255
MIN_RSA_BITS = 2048
_GZIP = 16
"""Added to zlib's window: of gzip's form alone."""
NO_KEYS_SECONDS = 2.0
"""While no key is known at all, nobody gets in: the issuer is then asked this often."""

ALGORITHMS = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}
"""The one algorithm of each kind of key (kty, crv). There is no secret among them."""

Fetch = Callable[[], Awaitable[Any]]
KeyTable = dict[tuple[str, str], Key]
"""By key id and algorithm."""


class FetchFailed(Exception):
    """The key set could not be had, or is none. The message says why."""


class IssuerKeys:
    """The keys of one issuer. Times in seconds."""

    def __init__(
        self,
        fetch: Fetch,
        *,
        min_seconds: float,
        refresh_seconds: float,
        keep_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._min = min_seconds
        self._refresh = refresh_seconds
        self._keep = keep_seconds
        self._clock = clock
        self._keys: KeyTable = {}
        self._fetched_at = float("-inf")
        self._not_before = float("-inf")
        self._running: asyncio.Task[None] | None = None

    async def find(self, *, algorithm: str, key_id: str | None) -> Key | None:
        """The key of that id for that algorithm, if there is one. A token without a key id has none.

        Raises:
            KeysUnavailable: no key at all is known now.

        """
        if algorithm not in ALGORITHMS.values() or not key_id or len(key_id) > MAX_KEY_ID_CHARACTERS:
            return None
        age = self._clock() - self._fetched_at
        if age > self._keep:
            self._keys = {}
        found = self._keys.get((key_id, algorithm))
        if found is None:
            await self.refresh()
            found = self._keys.get((key_id, algorithm))
        elif age > self._refresh:
            self._start()
        if not self._keys:
            raise KeysUnavailable("the issuer's keys are not known")
        return found

    async def refresh(self) -> None:
        """Fetch the set, or wait for the fetch under way; nothing, if the last one began too short a time ago."""
        if (running := self._start()) is not None:
            # Shielded: one client that goes away does not end the others' waiting.
            await asyncio.shield(running)

    async def close(self) -> None:
        """End what is under way."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    def _start(self) -> asyncio.Task[None] | None:
        if self._running is None and (now := self._clock()) >= self._not_before:
            self._not_before = now + (self._min if self._keys else min(self._min, NO_KEYS_SECONDS))
            self._running = asyncio.create_task(self._fetch_once())
            self._running.add_done_callback(self._ended)
        return self._running

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._running = None

    async def _fetch_once(self) -> None:
        try:
            keys = usable_keys(await self._fetch())
        except FetchFailed as error:
            log.warning("jwks_fetch_failed", reason=str(error), keys_kept=len(self._keys))
            return
        self._keys = keys
        self._fetched_at = self._clock()
        self._not_before = self._fetched_at + self._min
        log.info("jwks_fetched", keys=len(keys))


def fetch_from(url: str, client: httpx.AsyncClient, *, seconds: float) -> Fetch:
    """Fetches the JSON at ``url``: this address and no other, in ``seconds`` at most.

    What it gives raises FetchFailed.
    """

    async def fetch() -> Any:
        asking = client.stream("GET", url, headers={"Accept-Encoding": "identity"}, follow_redirects=False)
        try:
            async with asyncio.timeout(seconds), asking as answer:
                if answer.status_code != httpx.codes.OK:
                    raise FetchFailed(f"the answer is {answer.status_code}")
                return json.loads(await _content(answer))
        except TimeoutError:
            raise FetchFailed(f"no answer within {seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise FetchFailed(f"{type(error).__name__}: {error}"[:300]) from error
        except (ValueError, RecursionError) as error:
            raise FetchFailed("the answer is not JSON") from error

    return fetch


async def _content(answer: httpx.Response) -> bytes:
    """What is in an answer, MAX_BYTES at most; raises FetchFailed.

    Some send gzip whatever is accepted. httpx would unpack it a whole chunk at a time, a thousand times as long.
    """
    encoding = answer.headers.get("content-encoding", "identity")
    unpack = zlib.decompressobj(wbits=zlib.MAX_WBITS | _GZIP) if encoding.lower() in ("gzip", "x-gzip") else None
    if unpack is None and encoding.lower() != "identity":
        raise FetchFailed(f"the answer is packed as {encoding[:40]!r}")
    content = bytearray()
    async for chunk in answer.aiter_raw():
        try:
            content += chunk if unpack is None else unpack.decompress(chunk, MAX_BYTES + 1 - len(content))
        except zlib.error as error:
            raise FetchFailed(f"the answer cannot be unpacked: {error}") from None
        if len(content) > MAX_BYTES:
            raise FetchFailed(f"the answer has more than {MAX_BYTES} bytes")
        if unpack is not None and unpack.eof:
            break  # whatever comes behind
    if unpack is not None and not unpack.eof:
        raise FetchFailed("the answer is cut off")
    return bytes(content)


def usable_keys(key_set: Any) -> KeyTable:
    """The keys of a JWK Set that signatures may be checked with. Others are left out.

    Raises:
        FetchFailed: it is no JWK Set, or has no usable key: an issuer that is set up wrongly must lock nobody out.

    """
    entries = key_set.get("keys") if isinstance(key_set, dict) else None
    if not isinstance(entries, list):
        raise FetchFailed("the answer is no JWK Set: it has no list of keys")
    keys: KeyTable = {}
    for entry in entries:
        if (algorithm := _algorithm(entry)) is None:
            continue
        try:
            key = jwt.PyJWK(entry, algorithm=algorithm).key
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError):
            continue
        if getattr(key, "key_size", MIN_RSA_BITS) >= MIN_RSA_BITS or algorithm != "RS256":
            keys[entry["kid"], algorithm] = Key(key, algorithm)
    if not keys:
        raise FetchFailed("the JWK Set has no key that can be used: RS256, ES256 or EdDSA, with a kid, for signatures")
    return keys


def _algorithm(entry: Any) -> str | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("kid"), str) or not entry["kid"] or "d" in entry:
        return None
    kind, curve = entry.get("kty"), entry.get("crv")
    if not isinstance(kind, str) or not isinstance(curve, str | None):
        return None
    algorithm = ALGORITHMS.get((kind, curve))
    operations = entry.get("key_ops", ["verify"])
    for_signatures = entry.get("use", "sig") == "sig" and isinstance(operations, list) and "verify" in operations
    return algorithm if for_signatures and entry.get("alg", algorithm) == algorithm else None
