"""What a run found, for people as tables and for programs as JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from darkroom.chaos.checks import Checked
from darkroom.chaos.evidence import Evidence
from darkroom.chaos.faults import Planned
from darkroom.chaos.frontend import Upload
from darkroom.chaos.injector import Injected

EXAMPLES = 3


@dataclass(frozen=True)
class Report:
    """One run. Times in seconds."""

    seed: int
    options: Mapping[str, Any]
    checked: Sequence[Checked]
    plan: Sequence[Sequence[Planned]]
    injected: Sequence[Injected]
    events: Mapping[str, tuple[int, int]]
    """By type: how many different ones were seen on the topics, and how many repetitions."""
    documents: Mapping[str, int]
    uploads: Mapping[str, int]
    longest_stall: float
    loaded: float
    settled: float
    left_open: str
    resent: Sequence[str]
    redriven: int
    remarks: Sequence[str]

    @property
    def violations(self) -> int:
        """How many violations there are, of all invariants."""
        return sum(len(one.violations) for one in self.checked)

    def as_json(self) -> dict[str, Any]:
        """Everything, for ``--json``."""
        return {
            "seed": self.seed,
            "options": dict(self.options),
            "violations": self.violations,
            "invariants": [
                {
                    "invariant": one.invariant,
                    "how": one.how,
                    "looked_at": one.looked_at,
                    "violations": list(one.violations),
                }
                for one in self.checked
            ],
            "plan": [
                {"lane": number, "at": one.at, "fault": one.fault, "seconds": one.seconds, "choice": one.choice}
                for number, lane in enumerate(self.plan)
                for one in lane
            ],
            "faults": [
                {
                    "fault": one.planned.fault,
                    "target": one.target,
                    "planned": one.planned.at,
                    "began": round(one.began, 2),
                    "healed": round(one.healed, 2),
                }
                for one in sorted(self.injected, key=lambda one: one.began)
            ],
            "events": {name: {"seen": seen, "repeated": again} for name, (seen, again) in self.events.items()},
            "documents": dict(self.documents),
            "uploads": dict(self.uploads),
            "longest_stall": round(self.longest_stall, 2),
            "seconds": {"loaded": round(self.loaded, 1), "settled": round(self.settled, 1)},
            "left_open": self.left_open,
            "notifications_resent": list(self.resent),
            "dead_letters_redriven": self.redriven,
            "remarks": list(self.remarks),
        }

    def show(self, console: Console) -> None:
        """Print the tables."""
        console.print(self._invariants())
        console.print(self._faults())
        console.print(self._figures())
        for remark in self.remarks:
            console.print(f"[yellow]remark[/] {remark}", highlight=False, markup=True)
        verdict = "[bold green]No violation." if not self.violations else f"[bold red]{self.violations} violations."
        console.print(f"{verdict}[/] Seed {self.seed}.", highlight=False)

    def _invariants(self) -> Table:
        table = Table("invariant", "checked how", "looked at", "violations", title="What must hold")
        table.columns[2].justify = "right"
        for one in self.checked:
            found = "[green]none" if one.looked_at else "[yellow]none, nothing to look at"
            if one.violations:
                shown = "\n".join(one.violations[:EXAMPLES])
                found = f"[red]{len(one.violations)}[/]\n{shown}"
            table.add_row(one.invariant, one.how, f"{one.looked_at:,}", found)
        return table

    def _faults(self) -> Table:
        table = Table("fault", "injected", "seconds until healed", "targets", title="What was done to it")
        for column in table.columns[1:3]:
            column.justify = "right"
        for fault, count in sorted(Counter(one.planned.fault for one in self.injected).items()):
            of_kind = [one for one in self.injected if one.planned.fault is fault]
            targets = Counter(one.target for one in of_kind).most_common(EXAMPLES)
            table.add_row(
                str(fault),
                str(count),
                f"{sum(one.healed - one.began for one in of_kind) / count:.1f}",
                ", ".join(name if times == 1 else f"{name} ({times})" for name, times in targets),
            )
        table.add_section()
        table.add_row("all", str(len(self.injected)), "", "")
        return table

    def _figures(self) -> Table:
        table = Table("figure", "value", title="What was seen")
        table.columns[1].justify = "right"
        for name, (seen, again) in self.events.items():
            table.add_row(f"{name} on the topics", f"{seen:,} and {again:,} repeated")
        table.add_section()
        for name, count in {**self.documents, **self.uploads}.items():
            table.add_row(name, f"{count:,}")
        table.add_section()
        table.add_row("longest time without an ending while assets were open", f"{self.longest_stall:.1f} s")
        table.add_row("uploading under faults", f"{self.loaded:.1f} s")
        table.add_row("until all had ended, without faults", f"{self.settled:.1f} s")
        table.add_row("left open at the deadline", self.left_open)
        table.add_row("messages put back from the dead-letter queue", str(self.redriven))
        table.add_row("notifications that the restarted endpoint lost", str(len(self.resent)))
        return table


def count_events(evidence: Evidence) -> dict[str, tuple[int, int]]:
    """By type: different events on both topics, and repetitions."""
    seen: dict[str, set[str]] = {}
    total: Counter[str] = Counter()
    for record in evidence.records:
        if record.event is not None and record.topic != evidence.topics.uploaded_dlq:
            seen.setdefault(str(record.event.type), set()).add(record.event.id)
            total[str(record.event.type)] += 1
    return {name: (len(ids), total[name] - len(ids)) for name, ids in sorted(seen.items())}


def count_documents(evidence: Evidence) -> dict[str, int]:
    """Documents by collection and state."""
    counts = {f"assets {status}": n for status, n in sorted(Counter(a["status"] for a in evidence.assets).items())}
    counts |= {f"inbox {state}": n for state, n in sorted(Counter(r["state"] for r in evidence.inbox).items())}
    counts["outbox rows"] = len(evidence.rows)
    counts["claims beyond the first (fence - 1)"] = sum(row["fence"] - 1 for row in evidence.inbox)
    return counts


def count_uploads(uploads: Sequence[Upload]) -> dict[str, int]:
    """What the clients did."""
    return {
        "uploads": len(uploads),
        "uploads of broken pictures": sum(not upload.picture.good for upload in uploads),
        "requests repeated by clients": sum(upload.retries for upload in uploads),
        "PUTs sent": sum(len(upload.put_windows) for upload in uploads),
    }
