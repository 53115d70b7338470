"""Tokens of an issuer with a JWK Set, over the running API."""

import asyncio
import gzip
import json
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from asset_api.jwks import MAX_BYTES, FetchFailed, fetch_from
from support.eventually import eventually
from support.issuer import Issuer, KeyServer, claims, forged, key_server, new_key, public_texts

Api = Any
PATH = "/assets/5f0c8a4e-0000-0000-0000-000000000000"


@pytest.fixture
def served() -> Iterator[KeyServer]:
    with key_server(Issuer()) as server:
        yield server


@pytest.fixture
def start(start_api: Callable[..., Api], served: KeyServer) -> Callable[..., Api]:
    return lambda **changed: start_api(
        **{"DARKROOM_JWT_SECRET": None, "DARKROOM_JWKS_URL": served.url, "DARKROOM_JWKS_MIN_SECONDS": "1", **changed}
    )


def ask(api: Api, token: str) -> int:
    """404 for whoever gets in: there is no such asset."""
    answer = api.http.get(PATH, headers={"Authorization": f"Bearer {token}"})
    if answer.status_code == 401:
        assert answer.headers["www-authenticate"].startswith("Bearer ")
        assert answer.json()["type"] == "urn:darkroom:problem:unauthenticated"
    return int(answer.status_code)


def test_attacks_are_401_and_nothing_that_a_token_names_is_asked(start: Callable[..., Api], served: KeyServer) -> None:
    api = start(DARKROOM_JWKS_MIN_SECONDS="60")
    issuer = served.issuer
    assert {ask(api, issuer.token(kid)) for kid in issuer.keys} == {404}
    assert served.asked == ["/keys"]
    with key_server(Issuer({"RS256": new_key("RS256")})) as theirs:
        own = theirs.issuer.token(header={"jku": theirs.url, "x5u": theirs.url, "kid": theirs.url})
        forgeries = [own, issuer.token(header={"jku": theirs.url, "kid": "unknown"})]
        forgeries += [forged({"alg": alg, "kid": "RS256"}, claims()) for alg in ("none", "None", "nOnE")]
        forgeries += [
            forged({"alg": "HS256", "kid": "RS256"}, claims(), secret=text)
            for text in public_texts(issuer.keys["RS256"]).values()
        ]
        forgeries += [
            forged({"alg": "RS256", "kid": kid}, claims()) for kid in ("../../etc/passwd", ["RS256"], 7, theirs.url)
        ]
        forgeries += [issuer.token(aud="another"), issuer.token(iss="another"), issuer.token(exp=...)]
        assert [ask(api, token) for token in forgeries] == [401] * len(forgeries)
        assert theirs.asked == []
    assert ask(api, issuer.token()) == 404
    assert served.asked == ["/keys"]


async def ask_all(api: Api, tokens: list[str]) -> Counter[int]:
    async with httpx.AsyncClient(base_url=api.url, timeout=30) as client:
        answers = await asyncio.gather(
            *(client.get(PATH, headers={"Authorization": f"Bearer {token}"}) for token in tokens)
        )
    return Counter(answer.status_code for answer in answers)


def test_a_hundred_unknown_keys_are_one_fetch_and_valid_callers_do_not_notice(
    start: Callable[..., Api], served: KeyServer
) -> None:
    api = start(DARKROOM_JWKS_MIN_SECONDS="60")
    forgeries = [forged({"alg": "RS256", "kid": f"k{n}"}, claims()) for n in range(100)]
    valid = [served.issuer.token() for _ in range(100)]
    assert asyncio.run(ask_all(api, forgeries + valid)) == {401: 100, 404: 100}
    assert len(served.asked) <= 2


def test_a_rotation_is_noticed_and_an_outage_is_not(start: Callable[..., Api], served: KeyServer) -> None:
    api = start()
    issuer = served.issuer
    assert ask(api, issuer.token()) == 404
    issuer.keys["ES256-next"] = new_key("ES256")
    issuer.publish()
    eventually(lambda: ask(api, issuer.token("ES256-next")) == 404, deadline=10)
    for status in (500, 302):
        served.status = status
        in_vain = len(served.asked) + 1

        def asked_in_vain(asks: int = in_vain) -> bool:
            unknown = ask(api, forged({"alg": "RS256", "kid": "unknown"}, claims()))
            return unknown == 401 and len(served.asked) >= asks

        eventually(asked_in_vain, deadline=10)
        assert {ask(api, issuer.token(kid)) for kid in issuer.keys} == {404}
    assert set(served.asked) == {"/keys"}


def test_an_issuer_that_is_down_at_the_start_is_503_and_not_401(start: Callable[..., Api], served: KeyServer) -> None:
    served.status = 503
    api = start()
    answer = api.http.get(PATH, headers={"Authorization": f"Bearer {served.issuer.token()}"})
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:darkroom:problem:unavailable")
    assert int(answer.headers["retry-after"]) > 0
    served.status = 200
    eventually(lambda: ask(api, served.issuer.token()) == 404, deadline=10)


def test_a_scope_that_is_missing_is_403(api: Api) -> None:
    wanted = {"filename": "photo.jpg", "content_type": "image/jpeg", "size": 4}
    for scopes, get, post in (
        ([], 403, 403),
        (["assets:read"], 404, 403),
        (["assets:write"], 403, 201),
        (["assets:admin"], 404, 201),
    ):
        headers = api.headers(key=json.dumps(scopes).replace(" ", ""), scopes=scopes)
        read = api.http.get(PATH, headers=headers)
        assert read.status_code == get
        if get == 403:
            assert read.headers["www-authenticate"].endswith('error="insufficient_scope", scope="assets:read"')
            assert read.json()["type"] == "urn:darkroom:problem:insufficient-scope"
        assert api.http.post("/assets", json=wanted, headers=headers).status_code == post


def fetched(served: KeyServer) -> Any:
    async def once() -> Any:
        async with httpx.AsyncClient() as client:
            return await fetch_from(served.url, client, seconds=10)()

    return asyncio.run(once())


def test_the_key_set_is_asked_for_as_it_is(served: KeyServer) -> None:
    assert fetched(served) == served.issuer.key_set
    assert served.accepted == ["identity"]


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "x-gzip"])
def test_one_that_was_packed_all_the_same_is_read(served: KeyServer, encoding: str) -> None:
    served.encoded = encoding, gzip.compress(json.dumps(served.issuer.key_set).encode())
    assert fetched(served) == served.issuer.key_set


def test_a_packed_answer_is_never_unpacked_further_than_a_key_set_may_be_long(served: KeyServer) -> None:
    assert fetched(served) == served.issuer.key_set  # what a process loads for its first request is in memory from here
    served.encoded = "gzip", gzip.compress(b" " * 100_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(FetchFailed, match=f"more than {MAX_BYTES} bytes"):
            fetched(served)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10_000_000


@pytest.mark.parametrize(
    ("encoding", "content", "says"),
    [
        ("br", b"packed", "packed as 'br'"),
        ("gzip, gzip", gzip.compress(gzip.compress(b"{}")), "packed as 'gzip, gzip'"),
        ("gzip", b"{}", "Error -3"),
        ("gzip", gzip.compress(b"{}")[:-9], "is cut off"),
    ],
    ids=["br", "twice", "not at all", "cut off"],
)
def test_what_cannot_be_unpacked_is_said_to_be_so(served: KeyServer, encoding: str, content: bytes, says: str) -> None:
    served.encoded = encoding, content
    with pytest.raises(FetchFailed, match=says):
        fetched(served)
