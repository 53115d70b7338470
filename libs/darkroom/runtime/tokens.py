"""Bearer tokens for development and operations: what the API's HS256 check accepts."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import jwt

ALGORITHM = "HS256"
AUDIENCE = "darkroom"
ISSUER = "darkroom"
MIN_SECRET_BYTES = 32
"""Of the key: as long as what HS256 makes of it, or it is what an attacker guesses first."""
SCOPES = ("assets:read", "assets:write")
"""What a token allows unless it is asked for less or more."""


def mint(
    secret: str,
    *,
    owner: str,
    seconds: float = 3600,
    audience: str = AUDIENCE,
    issuer: str = ISSUER,
    scopes: Iterable[str] = SCOPES,
) -> str:
    """A token with which its bearer acts as ``owner`` for ``seconds``, within ``scopes``.

    Raises:
        ValueError: the owner is empty.

    """
    if not owner.strip():
        raise ValueError("owner: empty; name who the token is for")
    now = datetime.now(UTC)
    claims = {
        "sub": owner,
        "aud": audience,
        "iss": issuer,
        "iat": now,
        "exp": now + timedelta(seconds=seconds),
        "scope": " ".join(scopes),
    }
    return jwt.encode(claims, secret, algorithm=ALGORITHM)
