"""Read what a registry or a service shows to Prometheus."""

import math
import urllib.request
from collections.abc import Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from darkroom.metrics.registry import exposition


class Samples:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self._values = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """One sample's value; KeyError tells what there is of that name."""
        try:
            return self._values[(name, tuple(sorted(labels.items())))]
        except KeyError:
            raise KeyError(f"no {name} {labels}; there is {self.of(name)}") from None

    def of(self, name: str) -> Mapping[tuple[tuple[str, str], ...], float]:
        """All samples of that name."""
        return {labels: value for (each, labels), value in self._values.items() if each == name}

    def names(self) -> set[str]:
        """Of all samples."""
        return {name for name, _ in self._values}


def scraped(registry: CollectorRegistry) -> Samples:
    """A scrape of a registry of this process."""
    content_type, text = exposition(registry)("")
    assert content_type.startswith("text/plain")
    return Samples(text.decode())


def scrape(port: int) -> Samples:
    """A scrape of a service of this machine, by its health port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return Samples(answer.read().decode())


def is_nan(value: float) -> bool:
    """Whether a value could not be had."""
    return math.isnan(value)
