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


MAX_OWNER_CHARACTERS = 255


def is_owner(name: object) -> bool:
    """Whether this can be an owner, a token's ``sub``: 1 to 255 printable characters, not all of them blanks."""
    # A lone surrogate is a string to Python's JSON reader, but not to MongoDB; it is not printable.
    return isinstance(name, str) and bool(name.strip()) and len(name) <= MAX_OWNER_CHARACTERS and name.isprintable()


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
        ValueError: the API takes no such owner.

    """
    if not is_owner(owner):
        raise ValueError(f"owner: must be 1 to {MAX_OWNER_CHARACTERS} printable characters, not all of them blanks")
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
