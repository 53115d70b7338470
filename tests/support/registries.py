"""Every registry that a process of Darkroom makes, over stand-ins: what the names are does not depend on the parts."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from asset_api.metrics import ApiMetrics
from darkroom.metrics.consumption import ConsumptionMetrics
from darkroom.metrics.keeping import ReconcilerMetrics, SweeperMetrics
from darkroom.metrics.registry import new_registry
from notifier.metrics import NotifierMetrics
from outbox_relay.metrics import RelayMetrics
from processor.metrics import ProcessorMetrics
from s3_bridge.metrics import BridgeMetrics


def registries() -> dict[str, CollectorRegistry]:
    """By the name of the service."""
    made = {
        name: new_registry()
        for name in ("asset_api", "processor", "outbox_relay", "notifier", "s3_bridge", "sweeper", "reconciler")
    }
    # Attributes are asked for at a scrape only.
    nobody: Any = SimpleNamespace(
        state=lambda: SimpleNamespace(lag={}), restarts=0, kafka_silent=lambda: 0.0, look=lambda: None
    )
    ApiMetrics(made["asset_api"]).watch(nobody)
    ProcessorMetrics(made["processor"]).watch(nobody)
    for name in ("processor", "notifier"):
        ConsumptionMetrics(made[name]).watch(nobody)
    NotifierMetrics(made["notifier"], channels=["email", "webhook"])
    RelayMetrics(made["outbox_relay"]).watch(relay=nobody, leases=nobody, backlog=nobody)
    BridgeMetrics(made["s3_bridge"]).watch(nobody)
    SweeperMetrics(made["sweeper"], last_end=lambda: None)
    ReconcilerMetrics(made["reconciler"], passes=["unfinished"], kinds=["lost_notification"], last_end=lambda _: None)
    return made


def families() -> Iterator[tuple[str, str, str]]:
    """Each metric of Darkroom's own: the service, the name as it is written in a query, the type."""
    for service, registry in registries().items():
        for family in registry.collect():
            yield service, family.name + ("_total" if family.type == "counter" else ""), family.type
