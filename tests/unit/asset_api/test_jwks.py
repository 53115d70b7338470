"""Tokens of an issuer: who can sign gets in, whatever else a token says; and the issuer is asked rarely."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import jwt
import pytest

from asset_api.auth import Caller, InvalidToken, Tokens
from asset_api.errors import KeysUnavailable
from asset_api.jwks import FetchFailed, IssuerKeys, usable_keys
from support.issuer import ALGORITHMS, Issuer, claims, forged, new_key, public_jwk, public_texts

ISSUER = Issuer()
MIN, REFRESH, KEEP = 30.0, 300.0, 86_400.0


class Source:
    """The issuer's key set, as often as it is asked for; the time is what the test says."""

    def __init__(self, issuer: Issuer = ISSUER) -> None:
        self.issuer = issuer
        self.fetches = 0
        self.down = False
        self.now = 0.0
        self.keys = IssuerKeys(
            self.fetch, min_seconds=MIN, refresh_seconds=REFRESH, keep_seconds=KEEP, clock=lambda: self.now
        )
        self.tokens = Tokens(keys=self.keys, audience="darkroom", issuer="darkroom", leeway_seconds=10)

    async def fetch(self) -> Any:
        self.fetches += 1
        await asyncio.sleep(0)
        if self.down:
            raise FetchFailed("down")
        return self.issuer.key_set

    async def caller(self, token: str) -> Caller | None:
        """None instead of a refusal."""
        try:
            return await self.tokens.caller(token)
        except InvalidToken:
            return None


def with_source(test: Callable[[Source], Awaitable[None]], issuer: Issuer = ISSUER) -> None:
    async def run() -> None:
        source = Source(issuer)
        await test(source)
        await source.keys.close()

    asyncio.run(run())


def test_each_kind_of_key_lets_its_tokens_in() -> None:
    async def test(source: Source) -> None:
        for kid in ALGORITHMS:
            assert await source.caller(ISSUER.token(kid)) == Caller("owner-1", frozenset({"assets:read"}))
        assert source.fetches == 1

    with_source(test)


ODD_ALGORITHMS: tuple[Any, ...] = (
    *("none", "None", "NONE", "nOnE", "", None, []),
    *("HS256", "RS512", "PS256", "ES256", "EdDSA"),
)


def attacks() -> dict[str, str]:
    made = {
        f"HS256 with the public key as {name}": forged({"alg": "HS256", "kid": "RS256"}, claims(), secret=text)
        for name, text in public_texts(ISSUER.keys["RS256"]).items()
    }
    made |= {f"alg {alg!r}": forged({"alg": alg, "kid": "RS256"}, claims()) for alg in ODD_ALGORITHMS}
    made |= {
        f"kid {str(kid)[:20]!r}": forged({"alg": "RS256", "kid": kid}, claims())
        for kid in ("../../dev/null", "/etc/passwd", "", ["RS256"], 7, None, {"a": 1}, "x" * 300, "\ud800", "' or 1=1")
    }
    made |= {
        f"{name} of its own": ISSUER.token(header={"kid": "unknown", name: value})
        for name, value in {
            "jku": "http://127.0.0.1:9/keys",
            "x5u": "http://127.0.0.1:9/cert",
            "jwk": public_jwk(new_key("RS256"), "RS256", kid="unknown"),
        }.items()
    }
    stranger = Issuer()
    made |= {f"a stranger's {kid}": stranger.token(kid) for kid in ALGORITHMS}
    made |= {
        "no kid": forged({"alg": "RS256"}, claims()),
        "another key's kid": ISSUER.token(header={"kid": "ES256"}),
        "aud": ISSUER.token(aud="another"),
        "aud list": ISSUER.token(aud=["another", "third"]),
        "no aud": ISSUER.token(aud=...),
        "iss": ISSUER.token(iss="another"),
        "no iss": ISSUER.token(iss=...),
        "no exp": ISSUER.token(exp=...),
        "no sub": ISSUER.token(sub=...),
        "empty sub": ISSUER.token(sub=""),
        "expired": ISSUER.token(exp=1_000_000_000),
        "not yet": ISSUER.token(nbf=32_000_000_000),
    }
    return made


ATTACKS = attacks()


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gets_nobody_in(name: str) -> None:
    async def test(source: Source) -> None:
        assert await source.caller(ISSUER.token())
        assert await source.caller(ATTACKS[name]) is None
        assert await source.caller(ISSUER.token())

    with_source(test)


def test_a_sub_that_is_a_number_gets_nobody_in() -> None:
    async def test(source: Source) -> None:
        # Not by jwt.encode, which makes no such token.
        payload = json.dumps(claims(sub=123)).encode()
        token = jwt.api_jws.encode(payload, ISSUER.keys["RS256"], "RS256", headers={"kid": "RS256"})
        assert await source.caller(token) is None

    with_source(test)


def test_unknown_keys_cost_one_fetch_an_interval_and_nobody_elses_time() -> None:
    async def test(source: Source) -> None:
        await source.keys.refresh()
        source.now += MIN
        forgeries = [source.caller(forged({"alg": "RS256", "kid": f"k{n}"}, claims())) for n in range(100)]
        assert set(await asyncio.gather(*forgeries)) == {None}
        assert source.fetches == 2
        for n in range(100):
            assert await source.caller(forged({"alg": "RS256", "kid": f"again{n}"}, claims())) is None
            assert await source.caller(ISSUER.token())
        assert source.fetches == 2

    with_source(test)


def test_a_rotated_key_is_accepted_after_one_fetch_and_the_withdrawn_one_no_more() -> None:
    async def test(source: Source) -> None:
        issuer = source.issuer
        old = issuer.token("RS256")
        assert await source.caller(old)
        issuer.keys["RS256-next"] = new_key("RS256")
        issuer.publish()
        source.now += MIN
        assert await source.caller(issuer.token("RS256-next"))
        assert source.fetches == 2
        assert await source.caller(old)
        del issuer.keys["RS256"]
        issuer.publish()
        source.now += REFRESH + 1
        # The set is old: it is fetched in the background, and this caller does not wait.
        assert await source.caller(old)
        await source.keys.refresh()
        assert await source.caller(old) is None
        assert await source.caller(issuer.token("RS256-next"))

    with_source(test, Issuer())


def test_while_the_issuer_is_down_known_keys_stay_in_use_for_their_time() -> None:
    async def test(source: Source) -> None:
        assert await source.caller(ISSUER.token())
        source.down = True
        for _ in range(20):
            source.now += REFRESH + 1
            assert await source.caller(ISSUER.token())
            assert await source.caller(forged({"alg": "RS256", "kid": "unknown"}, claims())) is None
        source.now += KEEP + 1
        with pytest.raises(KeysUnavailable):
            await source.tokens.caller(ISSUER.token())
        source.down = False
        source.now += MIN
        assert await source.caller(ISSUER.token())

    with_source(test)


def test_an_issuer_that_was_never_reached_is_asked_again_soon_but_not_for_each_caller() -> None:
    async def test(source: Source) -> None:
        source.down = True
        for _ in range(10):
            with pytest.raises(KeysUnavailable):
                await source.tokens.caller(ISSUER.token())
        assert source.fetches == 1
        source.down = False
        source.now += 2
        assert await source.caller(ISSUER.token())

    with_source(test)


GOOD = public_jwk(ISSUER.keys["RS256"], "RS256", kid="a")


@pytest.mark.parametrize(
    "key_set",
    [
        None,
        [],
        {},
        {"keys": {}},
        {"keys": []},
        {"keys": [7, None, {}]},
        {"keys": [{**GOOD, "kid": 7}]},
        {"keys": [{**GOOD, "kid": ""}]},
        {"keys": [{name: value for name, value in GOOD.items() if name != "kid"}]},
        {"keys": [{**GOOD, "use": "enc"}]},
        {"keys": [{**GOOD, "key_ops": ["encrypt"]}]},
        {"keys": [{**GOOD, "alg": "RS512"}]},
        {"keys": [{**GOOD, "alg": "HS256"}]},
        {"keys": [{**GOOD, "n": "AQAB"}]},
        {"keys": [{**GOOD, "n": 7}]},
        {"keys": [{**GOOD, "d": "AQAB"}]},
        {"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "a", "alg": "HS256"}]},
        {"keys": [{"kty": ["RSA"], "kid": "a"}]},
        {"keys": [public_jwk(new_key("RS256", bits=1024), "RS256", kid="short")]},
    ],
    ids=lambda key_set: str(key_set)[:40],
)
def test_a_set_without_a_usable_key_is_a_failure(key_set: object) -> None:
    with pytest.raises(FetchFailed):
        usable_keys(key_set)


def test_one_bad_key_does_not_spoil_the_others() -> None:
    assert set(usable_keys({"keys": [7, GOOD, {**GOOD, "kid": "b", "n": "!"}]})) == {("a", "RS256")}
