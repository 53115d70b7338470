"""Only a token that we signed, for us, now, lets anybody in."""

import asyncio
import base64
import json
import re
import time
from typing import Any

import jwt
import pytest

from asset_api import auth
from asset_api.auth import Caller, InvalidToken, Scope, SecretKey, Tokens
from asset_api.settings import Settings
from darkroom.runtime.settings import load
from darkroom.runtime.tokens import mint
from support.eventually import eventually

SECRET = "unit-test-secret-of-more-than-32-bytes"


def claims(**changed: Any) -> dict[str, Any]:
    now = int(time.time())
    good = {"sub": "owner-1", "aud": "darkroom", "iss": "darkroom", "iat": now, "exp": now + 60, **changed}
    return {name: value for name, value in good.items() if value is not ...}


def signed(payload: str | dict[str, Any], *, header: dict[str, Any] | None = None, secret: str = SECRET) -> str:
    """A token with a good HS256 signature over whatever header and payload."""
    text = payload if isinstance(payload, str) else json.dumps(payload)
    parts = [json.dumps(header or {"alg": "HS256", "typ": "JWT"}), text]
    body = b".".join(base64.urlsafe_b64encode(part.encode()).rstrip(b"=") for part in parts)
    signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(body, secret.encode())
    return (body + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def caller(token: str) -> Caller:
    tokens = Tokens(keys=SecretKey(SECRET), audience="darkroom", issuer="darkroom", leeway_seconds=10)
    return asyncio.run(tokens.caller(token))


def test_a_minted_token_is_accepted() -> None:
    both = frozenset({"assets:read", "assets:write"})
    assert caller(mint(SECRET, owner="owner-1")) == Caller("owner-1", both)
    assert caller(signed(claims())) == Caller("owner-1", frozenset())
    assert caller(signed(claims(aud=["another", "darkroom"]))).owner_id == "owner-1"
    # Clocks may differ by the leeway.
    assert caller(mint(SECRET, owner="owner-1", seconds=-5)) == Caller("owner-1", both)


def test_a_token_that_was_good_ends_in_time_all_the_same() -> None:
    tokens = Tokens(keys=SecretKey(SECRET), audience="darkroom", issuer="darkroom", leeway_seconds=0)
    token = signed(claims(exp=time.time() + 1))
    first = asyncio.run(tokens.caller(token))
    assert asyncio.run(tokens.caller(token)) is first, "checked once"

    def refused() -> bool:
        try:
            asyncio.run(tokens.caller(token))
        except InvalidToken as error:
            return "expired" in str(error)
        return False

    eventually(refused, deadline=5, what="the token's end")


def test_tokens_that_are_known_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_KNOWN_TOKENS", 3)
    tokens = Tokens(keys=SecretKey(SECRET), audience="darkroom", issuer="darkroom", leeway_seconds=0)
    for number in range(10):
        assert asyncio.run(tokens.caller(mint(SECRET, owner=f"owner-{number}"))).owner_id == f"owner-{number}"
    assert len(tokens._known) == 3


@pytest.mark.parametrize(
    ("scope", "may"),
    [
        ("", set()),
        ("assets:read", {Scope.READ}),
        ("openid  assets:write", {Scope.WRITE}),
        ("assets:admin", set(Scope)),
        ("assets:readx xassets:write Assets:Read", set()),
    ],
)
def test_a_token_allows_what_its_scope_names(scope: str, may: set[Scope]) -> None:
    found = caller(signed(claims(scope=scope)))
    assert {one for one in Scope if found.may(one)} == may


@pytest.mark.parametrize("owner", ["", " ", "o" * 256, "two\nlines", "\ud800"])
def test_no_token_is_minted_for_an_owner_that_is_refused(owner: str) -> None:
    with pytest.raises(ValueError, match="owner: must be 1 to 255 printable characters"):
        mint(SECRET, owner=owner)


def test_the_longest_owner_is_taken() -> None:
    assert caller(mint(SECRET, owner="ö" * 255)).owner_id == "ö" * 255


@pytest.mark.parametrize(
    "payload",
    [
        claims(exp=...),
        claims(sub=...),
        claims(aud=...),
        claims(iss=...),
        claims(exp=int(time.time()) - 60),
        claims(nbf=int(time.time()) + 600),
        claims(iat=int(time.time()) + 600),
        claims(exp="soon"),
        claims(exp=None),
        claims(exp={}),
        claims(exp=str(int(time.time()) + 600)),
        claims(exp=True),
        claims(nbf=str(int(time.time()) - 600)),
        claims(iat=str(int(time.time()) - 600)),
        claims(aud="another"),
        claims(aud=["another", "third"]),
        claims(aud=None),
        claims(iss="another"),
        claims(iss=["darkroom"]),
        claims(sub=123),
        claims(sub=""),
        claims(sub="  "),
        claims(sub=None),
        claims(sub=["owner-1"]),
        claims(sub={"$gt": ""}),
        claims(sub="a\u0000b"),
        claims(sub="\ud800"),
        claims(sub="x" * 256),
        claims(scope=["assets:read"]),
        claims(scope=7),
        claims(scope=None),
        json.dumps(claims()).replace('"exp": ', '"exp": 1e999, "was": '),
        json.dumps(claims()).replace('"exp": ', f'"exp": {10**400}, "was": '),
        json.dumps(claims()).replace('"exp": ', '"exp": NaN, "was": '),
        "[" * 3000,
        "[]",
        "null",
        "no json",
    ],
    # Without moments: tests that run side by side must have the same names.
    ids=lambda payload: re.sub(r"\d{9,}", "N", str(payload))[:60].encode("ascii", "backslashreplace").decode(),
)
def test_well_signed_but_wrong_claims_are_refused(payload: str | dict[str, Any]) -> None:
    with pytest.raises(InvalidToken):
        caller(signed(payload))


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "HS384", "HS512", "RS256", "", None, 7, []])
def test_the_algorithm_is_not_the_tokens_to_choose(algorithm: object) -> None:
    with_signature = signed(claims(), header={"alg": algorithm, "typ": "JWT"})
    without = with_signature.rpartition(".")[0] + "."
    for token in (with_signature, without, without.removesuffix(".")):
        with pytest.raises(InvalidToken):
            caller(token)


@pytest.mark.parametrize(
    "token",
    [
        signed(claims(), secret="another-secret-of-more-than-32-bytes!"),
        signed(claims())[:-4] + "AAAA",
        signed(claims(), header={"alg": "HS256", "crit": ["x"], "x": 1}),
        "",
        "a.b.c",
        "a" * 9000,
        "é.é.é",
        "..",
    ],
    ids=range(8),
)
def test_what_we_did_not_sign_is_refused(token: str) -> None:
    with pytest.raises(InvalidToken):
        caller(token)


def test_a_short_secret_is_refused_at_the_start_and_never_shown(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DARKROOM_MONGO_URL", "mongodb://127.0.0.1:1/")
    monkeypatch.setenv("DARKROOM_BUCKET", "pictures-of-us")
    monkeypatch.setenv("DARKROOM_JWT_SECRET", "too-short-7")
    with pytest.raises(SystemExit, match=r"DARKROOM_JWT_SECRET.*32 bytes") as refused:
        load(Settings)
    assert "too-short-7" not in str(refused.value)
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "set either this one or DARKROOM_JWT_SECRET"),
        ({"JWT_SECRET": SECRET, "JWKS_URL": "https://id.example/keys"}, "not both"),
        ({"JWKS_URL": "http://id.example/keys"}, "https://"),
        ({"JWKS_URL": "file:///etc/passwd"}, "https://"),
    ],
)
def test_one_family_of_keys_is_set_up(given: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MONGO_URL": "mongodb://127.0.0.1:1/", "BUCKET": "pictures-of-us", **given}.items():
        monkeypatch.setenv(f"DARKROOM_{name}", value)
    with pytest.raises(SystemExit, match=f"DARKROOM_JWKS_URL.*{says}"):
        load(Settings)
    monkeypatch.delenv("DARKROOM_JWT_SECRET", raising=False)
    for url in ("https://id.example/keys", "http://127.0.0.1:80/keys"):
        monkeypatch.setenv("DARKROOM_JWKS_URL", url)
        assert load(Settings).jwks_url == url
