"""``darkroom_api_…``: requests by route, registrations, and who listens."""

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily
from starlette.types import Scope

from asset_api.live import Hub
from darkroom.metrics.registry import SECONDS, Computed, sampled

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NO_ROUTE = "none"


class ApiMetrics:
    """Counts what the edge and the routes tell."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._requests = Counter(
            "darkroom_api_requests_total",
            "Requests by route template, method and status class; aborted: the client went before the answer.",
            ["route", "method", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "darkroom_api_request_seconds",
            "From a request's arrival to the beginning of its answer, so that live streams count as well.",
            ["route", "method"],
            registry=registry,
            buckets=SECONDS,
        )
        self._registrations = Counter(
            "darkroom_api_registrations_total",
            "Registrations: new, replayed (an equal request with the same key), refused (the key, or a quota).",
            ["outcome"],
            registry=registry,
        )
        self._outcomes = {outcome: self._registrations.labels(outcome) for outcome in ("new", "replayed", "refused")}
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def answered(self, scope: Scope, status: int, seconds: float) -> None:
        """A request was answered after so long, or with status 0 was not."""
        # The template, such as /assets/{asset_id}: whoever calls decides what the path itself says.
        route = getattr(scope.get("route"), "path_format", NO_ROUTE)
        method = scope["method"] if scope["method"] in METHODS else "other"
        key = route, method, status // 100
        if (children := self._children.get(key)) is None:
            # Looked up once: the library's own way to them costs more than counting does.
            counter = self._requests.labels(route, method, f"{status // 100}xx" if status else "aborted")
            children = self._children[key] = counter, self._seconds.labels(route, method)
        children[0].inc()
        children[1].observe(seconds)

    def registered(self, outcome: str) -> None:
        """A registration ended: new, replayed or refused."""
        self._outcomes[outcome].inc()

    def watch(self, hub: Hub) -> None:
        """Show at each scrape who listens, and how the change stream is."""
        sampled(self.registry, "darkroom_api_stream_listeners", "Live streams that are open.", lambda: hub.listening)
        Computed(
            self.registry,
            lambda: [
                CounterMetricFamily(
                    "darkroom_api_change_stream_restarts",
                    "How often the change stream behind the live streams broke and was opened again.",
                    hub.restarts,
                )
            ],
        )
