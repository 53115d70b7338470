"""The health server: its three questions, its metrics, and that they do not hold each other up."""

import json
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest

from darkroom.metrics.registry import exposition, new_registry, sampled
from darkroom.runtime.health import health_server
from support.scrape import scrape


def ask(port: int, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_started_is_ready_until_that_was_so_once() -> None:
    fit = threading.Event()

    def ready() -> dict[str, object]:
        if not fit.is_set():
            raise RuntimeError("MongoDB does not answer")
        return {"shards": 64}

    with health_server(host="127.0.0.1", port=0, live=dict, ready=ready) as port:
        for path in ("/startedz", "/readyz"):
            assert ask(port, path) == (503, {"status": "unfit", "reason": "RuntimeError: MongoDB does not answer"})
        assert ask(port, "/healthz") == (200, {"status": "ok"})
        fit.set()
        assert ask(port, "/startedz") == (200, {"status": "ok", "shards": 64})
        fit.clear()
        assert ask(port, "/readyz")[0] == 503
        assert ask(port, "/startedz") == (200, {"status": "ok"})


def test_metrics_are_there_for_who_has_some() -> None:
    registry = new_registry()
    sampled(registry, "darkroom_relay_in_flight_rows", "…", lambda: 3)
    with health_server(host="127.0.0.1", port=0, live=dict, ready=dict, metrics=exposition(registry)) as port:
        assert scrape(port).value("darkroom_relay_in_flight_rows") == 3
        assert "/metrics" in ask(port, "/nowhere")[1]["error"]
    with health_server(host="127.0.0.1", port=0, live=dict, ready=dict) as port:
        assert ask(port, "/metrics")[0] == 404


def test_a_check_that_hangs_holds_up_no_scrape() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def hang() -> dict[str, object]:
        asked.set()
        go_on.wait(30)
        return {}

    with health_server(host="127.0.0.1", port=0, live=dict, ready=hang, metrics=exposition(new_registry())) as port:
        waiting = threading.Thread(target=ask, args=(port, "/readyz"))
        waiting.start()
        assert asked.wait(10)
        assert scrape(port).value("process_open_fds") > 0
        go_on.set()
        waiting.join(10)
    assert not waiting.is_alive()


@pytest.mark.parametrize("path", ["/", "/metricsx", "/readyz/"])
def test_there_is_nothing_else(path: str) -> None:
    with health_server(host="127.0.0.1", port=0, live=dict, ready=dict) as port:
        assert ask(port, path)[0] == 404
