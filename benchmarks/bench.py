"""Every benchmark, in one table and one JSON file.

    python benchmarks/bench.py [--mongo URL --kafka BOOTSTRAP] [--quick] [--json FILE]

Ratios compare contestants of the same run on the same servers; nothing else here compares. ``--quick`` measures less of
everything, without Debezium and with fewer published rows, to see that it runs.
"""

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import exactly_once
import journey
import kills
import relay
from darkroom.runtime import logging
from measuring import servers


@dataclass(frozen=True)
class Line:
    """One figure: where it is in what was found, its unit, and what must hold."""

    title: str
    where: tuple[str, ...]
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None

    def cells(self, found: dict[str, Any]) -> tuple[str, str, str, str] | None:
        """Title, value, target, and whether it is met; None if it was not measured."""
        value: Any = found
        for name in self.where:
            if name not in value:
                return None
            value = value[name]
        shown = f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
        if self.at_least is not None:
            return self.title, f"{shown} {self.unit}", f"at least {self.at_least:g}", _met(value >= self.at_least)
        if self.at_most is not None:
            return self.title, f"{shown} {self.unit}", f"at most {self.at_most:g}", _met(value <= self.at_most)
        return self.title, f"{shown} {self.unit}", "", ""


def _met(yes: bool) -> str:
    return "yes" if yes else "NO"


LINES = (
    Line("relay", ("relay", "relay", "per_second"), "events/s"),
    Line("relay ÷ bare loop", ("relay", "relay ÷ bare loop"), at_least=0.8),
    Line("relay ÷ bare producer, same payload", ("relay", "relay ÷ bare producer")),
    Line("relay ÷ Debezium, warm", ("relay", "relay ÷ debezium"), at_least=1.2),
    Line("relay, own CPU an event", ("relay", "relay", "cpu_us"), "µs", at_most=30),
    Line("bare loop, own CPU an event", ("relay", "bare loop", "cpu_us"), "µs"),
    Line("Debezium, own CPU an event", ("relay", "debezium", "cpu_us"), "µs"),
    Line("Debezium, memory", ("relay", "debezium MiB"), "MiB"),
    Line("idle, commit → Kafka, p50", ("relay", "idle ms", "p50"), "ms", at_most=6),
    Line("idle, commit → Kafka, p99", ("relay", "idle ms", "p99"), "ms", at_most=20),
    Line("idle, Debezium, p50", ("relay", "debezium idle ms", "p50"), "ms"),
    Line("idle, Debezium, p99", ("relay", "debezium idle ms", "p99"), "ms"),
    Line("relay with history ÷ without", ("relay", "with history ÷ without"), at_least=0.9),
    Line("bare loop with history ÷ without", ("relay", "bare loop with history ÷ without")),
    Line("claim + start + finish, p50", ("exactly_once", "new_p50_ms"), "ms", at_most=8),
    Line("claim + start + finish, client CPU", ("exactly_once", "new_cpu_ms"), "ms", at_most=3),
    Line("a duplicate, p50", ("exactly_once", "duplicate_p50_ms"), "ms"),
    Line("a duplicate, client CPU", ("exactly_once", "duplicate_cpu_ms"), "ms"),
    Line("one processor, no image step", ("exactly_once", "one_processors_per_s"), "events/s"),
    Line("two processors, no image step", ("exactly_once", "two_processors_per_s"), "events/s"),
    Line("relays killed: kills", ("kills", "kills")),
    Line("relays killed: missing events", ("kills", "missing"), at_most=0),
    Line("relays killed: assets out of order", ("kills", "assets out of order"), at_most=0),
    Line("relays killed: duplicates", ("kills", "duplicates")),
    Line("PUT done → AssetReady read, p50", ("journey", "put_to_ready_ms", "p50"), "ms"),
)


def measure(mongo: str, kafka: str, *, quick: bool) -> dict[str, Any]:
    """All but the journey, which brings its own servers."""
    told = argparse.ArgumentParser()
    relay.add_arguments(told)
    sizes = ["--events=10000", "--rounds=1", "--published=20000"] if quick else ["--published=1000000", "--debezium"]
    of_relay = told.parse_args(sizes)
    told = argparse.ArgumentParser()
    kills.add_arguments(told)
    of_kills = told.parse_args(["--events=2000", "--assets=100", "--seconds=5", "--every=1"] if quick else [])
    return {
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "exactly_once": exactly_once.measure(mongo, kafka, 500 if quick else 3000),
        "relay": relay.measure(mongo, kafka, of_relay),
        "kills": kills.measure(mongo, kafka, of_kills),
    }


def main() -> None:
    """Measure, print the table, and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mongo")
    parser.add_argument("--kafka")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    logging.configure(service="bench", level="WARNING")
    with servers(given.mongo, given.kafka) as (mongo, kafka):
        found = measure(mongo, kafka, quick=given.quick)
    found["journey"] = journey.measure(5 if given.quick else 50)
    table = Table("what", "measured", "must be", "is", title=f"{found['cores']} cores, load {found['load_before']:.1f}")
    for line in LINES:
        if (cells := line.cells(found)) is not None:
            table.add_row(*cells)
    Console().print(table)
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
