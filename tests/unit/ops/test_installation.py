"""Settings of operations, and times as servers write them."""

from datetime import UTC, datetime

import pytest

from darkroom.ops.installation import OpsSettings, _moment


def test_health_urls_are_a_list_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MONGO_URL": "mongodb://h", "KAFKA_BOOTSTRAP": "h:1", "BUCKET": "bucket"}.items():
        monkeypatch.setenv(f"DARKROOM_{name}", value)
    monkeypatch.setenv("DARKROOM_HEALTH_URLS", "http://a/readyz, http://b/readyz,")
    assert OpsSettings().health_urls == ("http://a/readyz", "http://b/readyz")


@pytest.mark.parametrize(
    "text", ["2026-03-01T12:00:00.000Z", "Sun, 01 Mar 2026 12:00:00 GMT", "1772366400", 1772366400]
)
def test_every_way_to_write_a_time_is_read(text: object) -> None:
    assert _moment(text) == datetime(2026, 3, 1, 12, tzinfo=UTC)
