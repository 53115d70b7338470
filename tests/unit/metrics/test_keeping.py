"""When the sweeper and the reconciler were last done is asked anew at each scrape: another process may have done it."""

from datetime import UTC, datetime

from prometheus_client import CollectorRegistry
from pymongo.errors import AutoReconnect

from darkroom.metrics.keeping import ReconcilerMetrics, SweeperMetrics

SWEPT, PASSED = "darkroom_sweeper_last_sweep_timestamp_seconds", "darkroom_reconciler_last_pass_timestamp_seconds"


def test_what_another_process_has_done_is_seen_and_an_outage_is_no_time() -> None:
    registry, ends = CollectorRegistry(), dict[str, datetime]()

    def last_end(name: str) -> datetime | None:
        if name == "away":
            raise AutoReconnect("no primary")
        return ends.get(name)

    SweeperMetrics(registry, last_end=lambda: last_end("sweep"))
    ReconcilerMetrics(registry, passes=["objects", "away"], kinds=["orphan"], last_end=last_end)
    assert registry.get_sample_value(SWEPT) == 0
    assert registry.get_sample_value(PASSED, {"pass": "objects"}) == 0
    ends |= {"sweep": datetime.fromtimestamp(100, UTC), "objects": datetime.fromtimestamp(200.5, UTC)}
    assert registry.get_sample_value(SWEPT) == 100
    assert registry.get_sample_value(PASSED, {"pass": "objects"}) == 200.5
    assert str(registry.get_sample_value(PASSED, {"pass": "away"})) == "nan"
