"""Who calls: a JWT in the Authorization header, checked without asking anybody."""

import math
from dataclasses import dataclass, field
from typing import Any

import jwt
from fastapi.openapi.models import HTTPBearer as HTTPBearerModel
from fastapi.security.base import SecurityBase
from starlette.requests import Request

from asset_api.problems import Problem, Problems
from darkroom.runtime.tokens import ALGORITHM

MAX_TOKEN_CHARACTERS = 8192
MAX_OWNER_CHARACTERS = 255


@dataclass(frozen=True)
class Caller:
    """Whoever the token speaks for. Every query is limited to this owner."""

    owner_id: str
    expires_at: float = field(default=math.inf, compare=False)
    """When the token ends, in seconds since 1970: what goes on for longer ends with it."""


class InvalidToken(ValueError):
    """The token proves nothing. The message is for people and tells no secret."""


class Tokens:
    """Checks HS256 tokens: the algorithm is pinned, and exp, sub, aud and iss must be there and right."""

    def __init__(self, *, secret: str, audience: str, issuer: str, leeway_seconds: float) -> None:
        self._secret = secret
        self._audience = audience
        self._issuer = issuer
        self._leeway = leeway_seconds

    def caller(self, token: str) -> Caller:
        """Whom a token speaks for.

        Raises:
            InvalidToken: saying what is wrong with it.

        """
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise InvalidToken("The token is too long.")
        try:
            claims = jwt.decode(
                token,
                self._secret,
                algorithms=[ALGORITHM],
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway,
                options={"require": ["exp", "sub", "aud", "iss"]},
            )
        except jwt.ExpiredSignatureError:
            raise InvalidToken("The token has expired.") from None
        except (jwt.InvalidTokenError, ValueError, TypeError, OverflowError, RecursionError):
            # PyJWT lets some odd claims (exp as 1e999, deeply nested JSON) out as plain Python errors.
            raise InvalidToken("The token is not valid.") from None
        return Caller(owner_id=_owner(claims), expires_at=float(claims["exp"]) + self._leeway)


class Bearer(SecurityBase):
    """FastAPI dependency: the caller, or 401."""

    def __init__(self, tokens: Tokens) -> None:
        self.model = HTTPBearerModel(bearerFormat="JWT")
        self.scheme_name = "bearer"
        self._tokens = tokens

    async def __call__(self, request: Request) -> Caller:
        """The caller of a request.

        Raises:
            Problem: 401, when there is no token or not a valid one.

        """
        fields = request.headers.getlist("authorization")
        scheme, _, token = fields[0].partition(" ") if len(fields) == 1 else ("", "", "")
        if scheme.lower() != "bearer" or not token.strip():
            raise _unauthenticated("Send one Authorization header: Bearer, a blank, and a token.", 'realm="darkroom"')
        try:
            return self._tokens.caller(token.strip())
        except InvalidToken as error:
            raise _unauthenticated(str(error), 'realm="darkroom", error="invalid_token"') from None


def _owner(claims: dict[str, Any]) -> str:
    owner = claims["sub"]
    # A lone surrogate is a string to Python's JSON reader, but not to MongoDB.
    if not isinstance(owner, str) or not owner.strip() or len(owner) > MAX_OWNER_CHARACTERS or not owner.isprintable():
        raise InvalidToken("The token's sub must be a non-empty string of printable characters.")
    return owner


def _unauthenticated(detail: str, challenge: str) -> Problem:
    return Problem(Problems.UNAUTHENTICATED, detail, headers={"WWW-Authenticate": f"Bearer {challenge}"})
