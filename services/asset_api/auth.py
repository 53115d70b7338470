"""Who calls: a JWT in the Authorization header, checked without asking anybody about that token.

The algorithm is the key's, never the token's to choose, and only one family of keys is set up at a time: a secret
(HS256) for development, or an issuer's public keys (``jwks``) for production. Nothing that a token names is followed.
"""

import hashlib
import math
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import jwt
from fastapi.openapi.models import HTTPBearer as HTTPBearerModel
from fastapi.security.base import SecurityBase
from starlette.requests import Request

from asset_api.errors import KeysUnavailable
from asset_api.problems import Problem, Problems, unavailable
from darkroom.runtime.tokens import ALGORITHM, is_owner

MAX_TOKEN_CHARACTERS = 8192
MAX_KNOWN_TOKENS = 4096
# PyJWT lets some odd claims (exp as 1e999, deeply nested JSON) out as plain Python errors.
ODD = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)


class Scope(StrEnum):
    """What a token allows. ``assets:admin`` includes the others."""

    READ = "assets:read"
    WRITE = "assets:write"
    ADMIN = "assets:admin"


@dataclass(frozen=True)
class Caller:
    """Whoever the token speaks for. Every query is limited to this owner."""

    owner_id: str
    scopes: frozenset[str] = field(default_factory=frozenset)
    expires_at: float = field(default=math.inf, compare=False)
    """When the token ends, in seconds since 1970: what goes on for longer ends with it."""

    def may(self, scope: Scope) -> bool:
        """Whether the token allows it."""
        return scope in self.scopes or Scope.ADMIN in self.scopes


class InvalidToken(ValueError):
    """The token proves nothing. The message is for people and tells no secret."""


class Key(NamedTuple):
    """A key to check signatures with, and the one algorithm that it is for."""

    key: Any
    algorithm: str


class Keys(Protocol):
    """Where keys come from."""

    async def find(self, *, algorithm: str, key_id: str | None) -> Key | None:
        """The key of that id for that algorithm, if there is one.

        Raises:
            KeysUnavailable: no key at all is known now.

        """


class SecretKey:
    """The one HS256 secret, whatever key id a token names."""

    def __init__(self, secret: str) -> None:
        self._key = Key(secret, ALGORITHM)

    async def find(self, *, algorithm: str, key_id: str | None) -> Key | None:  # noqa: ARG002 -- there is one key
        """The secret, for HS256 alone."""
        return self._key if algorithm == self._key.algorithm else None


class _Known(NamedTuple):
    """What a token said, by which key it was checked, and the id that it named it by."""

    caller: Caller
    key: Key
    key_id: str | None


class Tokens:
    """Checks tokens: exp, sub, aud and iss must be there and right, signed by a key that is known.

    A token that was good is not checked again while its time lasts and the very key that it was checked with is in use.
    """

    def __init__(self, *, keys: Keys, audience: str, issuer: str, leeway_seconds: float) -> None:
        self._keys = keys
        self._audience = audience
        self._issuer = issuer
        self._leeway = leeway_seconds
        # By digest: a token is a password as long as it lives.
        self._known: dict[bytes, _Known] = {}

    async def caller(self, token: str) -> Caller:
        """Whom a token speaks for.

        Raises:
            InvalidToken: saying what is wrong with it.
            KeysUnavailable: no key at all is known now.

        """
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise InvalidToken("The token is too long.")
        digest = hashlib.sha256(token.encode()).digest()
        if (known := self._known.get(digest)) is not None:
            key = await self._keys.find(algorithm=known.key.algorithm, key_id=known.key_id)
            if key is known.key and time.time() < known.caller.expires_at:
                return known.caller
            self._known.pop(digest, None)
        known = await self._check(token)
        if len(self._known) >= MAX_KNOWN_TOKENS:
            del self._known[next(iter(self._known))]
        self._known[digest] = known
        return known.caller

    async def _check(self, token: str) -> _Known:
        try:
            header = jwt.get_unverified_header(token)
        except ODD:
            raise InvalidToken("The token is not valid.") from None
        key_id = header.get("kid")
        key = await self._keys.find(algorithm=str(header.get("alg")), key_id=key_id)
        if key is None:
            raise InvalidToken("The token is not signed by a key and an algorithm that are accepted here.")
        try:
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway,
                options={"require": ["exp", "sub", "aud", "iss"]},
            )
            expires_at = float(claims["exp"]) + self._leeway
        except jwt.ExpiredSignatureError:
            raise InvalidToken("The token has expired.") from None
        except ODD:
            raise InvalidToken("The token is not valid.") from None
        if not all(_is_number(claims[name]) for name in ("exp", "nbf", "iat") if name in claims):
            raise InvalidToken("The token's exp, nbf and iat must be numbers.")
        return _Known(Caller(owner_id=_owner(claims), scopes=_scopes(claims), expires_at=expires_at), key, key_id)


class Bearer(SecurityBase):
    """FastAPI dependency: the caller, who may do what ``scope`` names, or 401 or 403."""

    def __init__(self, tokens: Tokens, *, scope: Scope) -> None:
        self.model = HTTPBearerModel(bearerFormat="JWT")
        self.scheme_name = "bearer"
        self._tokens = tokens
        self._scope = scope

    async def __call__(self, request: Request) -> Caller:
        """The caller of a request.

        Raises:
            Problem: 401 when there is no token or not a valid one, 403 when it lacks the scope.

        """
        fields = request.headers.getlist("authorization")
        scheme, _, token = fields[0].partition(" ") if len(fields) == 1 else ("", "", "")
        if scheme.lower() != "bearer" or not token.strip():
            raise _unauthenticated("Send one Authorization header: Bearer, a blank, and a token.", 'realm="darkroom"')
        try:
            caller = await self._tokens.caller(token.strip())
        except InvalidToken as error:
            raise _unauthenticated(str(error), 'realm="darkroom", error="invalid_token"') from None
        except KeysUnavailable:
            raise unavailable("The keys that tokens are checked with cannot be fetched.") from None
        if not caller.may(self._scope):
            challenge = f'Bearer realm="darkroom", error="insufficient_scope", scope="{self._scope}"'
            raise Problem(
                Problems.INSUFFICIENT_SCOPE,
                f"The token's scope must include {self._scope}.",
                headers={"WWW-Authenticate": challenge},
            )
        return caller


def _is_number(value: object) -> bool:
    """RFC 7519, which PyJWT reads more generously than those who check the same token elsewhere may."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _owner(claims: dict[str, Any]) -> str:
    owner = claims["sub"]
    if not isinstance(owner, str) or not is_owner(owner):
        raise InvalidToken("The token's sub must be a non-empty string of printable characters.")
    return owner


def _scopes(claims: dict[str, Any]) -> frozenset[str]:
    """RFC 8693: one string, separated by blanks; no claim, no scope."""
    scope = claims.get("scope", "")
    if not isinstance(scope, str):
        raise InvalidToken("The token's scope must be one string, its values separated by blanks.")
    return frozenset(scope.split())


def _unauthenticated(detail: str, challenge: str) -> Problem:
    return Problem(Problems.UNAUTHENTICATED, detail, headers={"WWW-Authenticate": f"Bearer {challenge}"})
