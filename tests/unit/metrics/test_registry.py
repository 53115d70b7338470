"""What a registry holds, what a scrape costs, and what the names are."""

import re
import subprocess
import sys

import prometheus_client
import pytest
from prometheus_client.metrics_core import GaugeMetricFamily

from darkroom.metrics.registry import Computed, Kept, exposition, new_registry, sampled
from support.registries import families, registries
from support.scrape import is_nan, scraped

NAME = re.compile(r"darkroom_(api|consumer|inbox|processor|relay|notifier|bridge|sweeper|reconciler)_[a-z_]+")
UNITS = (
    *("seconds", "bytes", "total", "records", "rows", "partitions", "polls", "listeners", "decoders"),
    # Of a set whose size is known, or yes and no.
    *("shards_owned", "decoders_busy", "breaker_open"),
)
LABELS = {
    *("outcome", "server", "answer", "write", "why", "topic", "partition"),
    *("route", "method", "status", "code", "channel", "reason", "kind", "pass"),
}


def test_a_registry_holds_its_process_and_nothing_of_anybody_elses() -> None:
    first, second = new_registry(), new_registry()
    sampled(first, "darkroom_relay_in_flight_rows", "…", lambda: 3)
    assert scraped(first).value("darkroom_relay_in_flight_rows") == 3
    assert scraped(first).value("process_open_fds") > 0
    assert "darkroom_relay_in_flight_rows" not in scraped(second).names()
    assert not [one for one in prometheus_client.REGISTRY.collect() if one.name.startswith("darkroom")]


def test_importing_what_measures_makes_no_metric() -> None:
    code = (
        "import asset_api.metrics, processor.metrics, outbox_relay.metrics, notifier.metrics, s3_bridge.metrics, "
        "darkroom.metrics.keeping, prometheus_client; "
        "assert not [m.name for m in prometheus_client.REGISTRY.collect() if m.name.startswith('darkroom')]"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_value_that_cannot_be_had_hides_no_other() -> None:
    registry = new_registry()

    def refuse() -> float:
        raise RuntimeError("the server is away")

    sampled(registry, "darkroom_a", "…", refuse)
    sampled(registry, "darkroom_b", "…", lambda: 1)
    samples = scraped(registry)
    assert is_nan(samples.value("darkroom_a"))
    assert samples.value("darkroom_b") == 1


def test_labels_that_come_and_go_are_made_at_each_scrape() -> None:
    registry = new_registry()
    lag = {"0": 5}

    def family() -> list[GaugeMetricFamily]:
        made = GaugeMetricFamily("darkroom_lag", "…", labels=["partition"])
        for partition, value in lag.items():
            made.add_metric([partition], value)
        return [made]

    Computed(registry, family)
    assert scraped(registry).value("darkroom_lag", partition="0") == 5
    lag.clear()
    assert not scraped(registry).of("darkroom_lag")


def test_what_costs_something_is_asked_once_in_its_time_also_when_it_fails() -> None:
    asked = []

    def ask() -> int:
        asked.append(1)
        if len(asked) > 1:
            raise RuntimeError("away")
        return 7

    kept = Kept(ask, seconds=60)
    assert [kept(), kept()] == [7, 7]
    assert len(asked) == 1
    at_once = Kept(ask, seconds=0)
    with pytest.raises(RuntimeError, match="away"):
        at_once()
    failing = Kept(ask, seconds=60)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="away"):
            failing()
    assert len(asked) == 3


def test_who_asks_for_open_metrics_gets_it() -> None:
    content_type, body = exposition(new_registry())("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_names_follow_the_rule_and_counters_end_in_total() -> None:
    own = [(name, kind) for _, name, kind in families() if name.startswith("darkroom")]
    assert len({name for name, _ in own}) > 40
    for name, kind in own:
        assert NAME.fullmatch(name), name
        assert name.endswith(UNITS), name
        assert name.endswith("_total") == (kind == "counter"), name


def test_no_label_can_hold_an_id() -> None:
    for registry in registries().values():
        for collector in list(registry._collector_to_names):
            assert set(getattr(collector, "_labelnames", ())) <= LABELS
