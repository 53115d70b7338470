"""Alerts, the dashboard and their pages: every metric that they name exists, and every one that exists is explained."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.registries import registries

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "deploy" / "monitoring"
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
NAMED = re.compile(r"\b(?:darkroom|process)_[a-z_]+\b")
HISTOGRAM = ("_bucket", "_count", "_sum")


def existing() -> dict[str, str]:
    """The type of each metric, by the name that a query uses."""
    return {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for registry in registries().values()
        for family in registry.collect()
    }


def named(text: str) -> set[str]:
    """The metrics that a text names; the parts of a histogram count as it."""
    known, found = existing(), set()
    for name in NAMED.findall(text):
        base = next(
            (name.removesuffix(end) for end in HISTOGRAM if known.get(name.removesuffix(end)) == "histogram"), name
        )
        found.add(base)
    return found


@pytest.mark.parametrize(
    "file", ["deploy/monitoring/alerts.yaml", "deploy/monitoring/alerts_test.yaml", "deploy/monitoring/dashboard.json"]
)
def test_what_is_queried_exists(file: str) -> None:
    assert named((ROOT / file).read_text(encoding="utf-8")) <= existing().keys()


@pytest.mark.parametrize("page", ["alerts.md", "metrics.md"])
def test_what_a_page_names_exists(page: str) -> None:
    # Of families that are meant as a whole, such as `unpublished_…`, only the beginning is written.
    assert named((ROOT / "docs" / page).read_text(encoding="utf-8")) <= existing().keys()


def test_every_metric_is_explained() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE))
    assert rows == existing()


def test_every_cloudwatch_metric_is_explained() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    handler = (ROOT / "services" / "s3_bridge" / "handler.py").read_text(encoding="utf-8")
    assert set(re.findall(r'\("([A-Z]\w+)", ', handler)) == set(re.findall(r"^\| `([A-Z]\w+)` \|", page, re.MULTILINE))


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == [alert["alert"] for alert in ALERTS]
    for alert in ALERTS:
        assert alert["annotations"]["runbook_url"] == f"docs/alerts.md#{alert['alert'].lower()}"
        assert alert["labels"]["severity"] in {"page", "ticket"}
        assert f"`{alert['expr']}`" in page
    assert page.count("- **Look at**:") == page.count("- **Mend**:") == len(ALERTS)


def test_every_alert_is_provoked_in_a_test_of_the_rules() -> None:
    tests = yaml.safe_load((MONITORING / "alerts_test.yaml").read_text(encoding="utf-8"))["tests"]
    fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert fired == {alert["alert"] for alert in ALERTS}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on PATH (Debian: prometheus)")
@pytest.mark.parametrize("command", [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")])
def test_promtool_agrees(command: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *command], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_shows_what_there_is_in_places_of_its_own() -> None:
    panels = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells
        taken |= cells
        assert panel["type"] == "row" or all(target["expr"] for target in panel["targets"])
