"""What the API shows on its health port, and that its public port shows nothing of it."""

import uuid
from typing import Any

import httpx

from support.eventually import eventually
from support.scrape import Samples, scrape


def health_port(api: Any) -> int:
    return next(int(event["health_port"]) for event in api.events() if event["event"] == "api_started")


def counted(samples: Samples, outcome: str) -> float:
    return samples.value("darkroom_api_registrations_total", outcome=outcome)


def test_requests_and_registrations_are_counted_apart_from_the_public_port(api: Any) -> None:
    port = health_port(api)
    before = scrape(port)
    key = uuid.uuid4().hex
    assert [api.register(key=key).status_code for _ in range(2)] == [201, 200]
    assert api.register(key=key, size=5).status_code == 422
    secret = uuid.uuid4().hex
    assert api.get(str(uuid.uuid4())).status_code == 404
    assert api.http.get(f"/nowhere/{secret}").status_code == 404
    assert api.http.request("PROPFIND", "/assets").status_code == 405
    after = scrape(port)
    assert {
        outcome: counted(after, outcome) - counted(before, outcome) for outcome in ("new", "replayed", "refused")
    } == {
        "new": 1,
        "replayed": 1,
        "refused": 1,
    }
    requests = after.of("darkroom_api_requests_total")
    labels = [dict(found) for found in requests]
    assert {"route": "/assets/{asset_id}", "method": "GET", "status": "4xx"} in labels
    assert {"route": "none", "method": "GET", "status": "4xx"} in labels
    assert any(found["method"] == "other" for found in labels)
    assert secret not in str(labels)
    assert after.value("darkroom_api_request_seconds_count", route="/assets", method="POST") >= 3
    assert api.http.get("/metrics").status_code == 404
    for path in ("/healthz", "/readyz", "/startedz"):
        assert httpx.get(f"http://127.0.0.1:{port}{path}", timeout=20).status_code == 200


def test_an_open_stream_is_a_listener_and_counts_as_answered(api: Any) -> None:
    port = health_port(api)
    before = scrape(port).value("darkroom_api_stream_listeners")
    with api.http.stream("GET", "/assets/stream", headers=api.headers()) as answer:
        assert answer.status_code == 200
        eventually(lambda: scrape(port).value("darkroom_api_stream_listeners") == before + 1)
        assert scrape(port).value("darkroom_api_request_seconds_count", route="/assets/stream", method="GET") >= 1
    eventually(lambda: scrape(port).value("darkroom_api_stream_listeners") == before, deadline=40)
