"""AWS Signature Version 4 in a URL's query, for S3: what botocore does, byte for byte, at a tenth of its time.

A test compares both over many requests, and the service does at its start.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from urllib.parse import quote

ALGORITHM = "AWS4-HMAC-SHA256"
_SERVICE = "s3"
_END = "aws4_request"
_UNRESERVED = "-_.~"  # letters and digits are so anyway


@dataclass(frozen=True, repr=False)
class Credentials:
    """An access key, its secret, and the token that belongs to temporary ones. Its text shows none of them."""

    access_key: str
    secret_key: str
    token: str | None


@dataclass(frozen=True)
class Place:
    """Where objects are: ``scheme``, ``host``, the ``path`` before every key (``/`` or ``/bucket/``), the region."""

    scheme: str
    host: str
    path: str
    region: str


def presign(
    method: str,
    key: str,
    *,
    place: Place,
    credentials: Credentials,
    now: datetime,
    seconds: int,
    headers: Mapping[str, str] | None = None,
    query: Sequence[tuple[str, str]] = (),
) -> str:
    """A URL that S3 accepts for ``seconds`` from ``now`` (aware, UTC), and only with exactly these headers.

    ``headers`` have lower-case names and values without blanks at their ends or in a row.
    """
    stamp = _stamp(now.replace(microsecond=0))
    scope = f"{stamp[:8]}/{place.region}/{_SERVICE}/{_END}"
    signed = sorted([*(headers or {}).items(), ("host", place.host)])
    names = ";".join([name for name, _ in signed])
    queried, sorted_query = _queries(
        *query,
        ("X-Amz-Algorithm", ALGORITHM),
        ("X-Amz-Credential", f"{credentials.access_key}/{scope}"),
        ("X-Amz-Date", stamp),
        ("X-Amz-Expires", str(seconds)),
        ("X-Amz-SignedHeaders", names),
        *([("X-Amz-Security-Token", credentials.token)] if credentials.token else ()),
    )
    path = quote(place.path + key, safe="/" + _UNRESERVED)
    fields = "".join([f"{name}:{value}\n" for name, value in signed])
    canonical = f"{method}\n{path}\n{sorted_query}\n{fields}\n{names}\nUNSIGNED-PAYLOAD"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = f"{ALGORITHM}\n{stamp}\n{scope}\n{digest}"
    signing_key = _signing_key(credentials.secret_key, stamp[:8], place.region)
    signature = hmac.digest(signing_key, to_sign.encode(), "sha256").hex()
    return f"{place.scheme}://{place.host}{path}?{queried}&X-Amz-Signature={signature}"


@lru_cache(maxsize=8)
def _stamp(second: datetime) -> str:
    return second.strftime("%Y%m%dT%H%M%SZ")


@lru_cache(maxsize=64)
def _queries(*parameters: tuple[str, str]) -> tuple[str, str]:
    """The query as it is sent, and as it is signed. Most URLs of a second have the same one."""
    encoded = [(quote(name, safe=_UNRESERVED), quote(value, safe=_UNRESERVED)) for name, value in parameters]
    return _joined(encoded), _joined(sorted(encoded))


def _joined(encoded: Sequence[tuple[str, str]]) -> str:
    return "&".join(f"{name}={value}" for name, value in encoded)


@lru_cache(maxsize=4)
def _signing_key(secret_key: str, day: str, region: str) -> bytes:
    """Good for one day, region and service: derived once, not once a URL."""
    made = f"AWS4{secret_key}".encode()
    for part in (day, region, _SERVICE, _END):
        made = hmac.digest(made, part.encode(), "sha256")
    return made
