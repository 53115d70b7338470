"""``darkroom_processor_…``: what became of uploads, and how the decoding processes are used."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from darkroom.contracts.failures import FailureCode
from darkroom.metrics.registry import SECONDS, sampled
from processor.imaging.pool import DecoderPool
from processor.process import End, Observer


class ProcessorMetrics(Observer):
    """Counts what the processor tells."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._ends = Counter(
            "darkroom_processor_uploads_total",
            "Uploads that came to an end here: ready, failed, given_up, ignored, dead_letter.",
            ["outcome"],
            registry=registry,
        )
        self._failures = Counter(
            "darkroom_processor_failures_total", "Assets that became FAILED, by code.", ["code"], registry=registry
        )
        self._retries = Counter(
            "darkroom_processor_retries_total", "Attempts that failed and will be made again.", registry=registry
        )
        self._decode = Histogram(
            "darkroom_processor_decode_seconds",
            "How long decoding processes took over one picture, whatever came of it.",
            registry=registry,
            buckets=SECONDS,
        )
        self._deaths = Counter(
            "darkroom_processor_decoder_deaths_total",
            "Decoding processes that died over a picture, or were ended over it: too slow, too large, called off.",
            registry=registry,
        )
        for end in End:
            self._ends.labels(end.value)
        for code in FailureCode:
            self._failures.labels(code.value)

    def ended(self, end: End) -> None:
        """See ``Observer``."""
        self._ends.labels(end.value).inc()

    def failed(self, code: FailureCode) -> None:
        """See ``Observer``."""
        self._failures.labels(code.value).inc()

    def retried(self) -> None:
        """See ``Observer``."""
        self._retries.inc()

    def decoded(self, seconds: float, alive: bool) -> None:
        """A decoding process had a picture for so long, and lived to give it back or did not."""
        self._decode.observe(seconds)
        if not alive:
            self._deaths.inc()

    def watch(self, pool: DecoderPool) -> None:
        """Show at each scrape how the decoding processes are used."""
        sampled(self._registry, "darkroom_processor_decoders", "Decoding processes.", lambda: sum(pool.use()))
        sampled(
            self._registry, "darkroom_processor_decoders_busy", "Decoding processes at work.", lambda: pool.use()[1]
        )
