"""Counts of the policy server, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from headrace.pipeline.serving.action_request import RequestRefused

CONTENT_TYPE = CONTENT_TYPE_LATEST
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class Counted(Protocol):
    """What is read of a model when somebody asks."""

    def gauges(self) -> Mapping[str, tuple[str, float]]:
        """Return values by the end of their names, each with its purpose."""
        ...

    @property
    def decisions(self) -> int:
        """Calls of the policy."""
        ...


class Tally:
    """Counts requests.

    Args:
        models: by name.
    """

    def __init__(self, models: Mapping[str, Counted]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "headrace_serving_requests", "Requests for actions", ["model", "outcome"], registry=self._registry
        )
        self._agents = Counter("headrace_serving_agents", "Agents decided for", ["model"], registry=self._registry)
        self._seconds = Histogram(
            "headrace_serving_seconds",
            "Seconds from a request that was read to its answer",
            ["model"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._registry.register(_Models(models))

    def answered(self, model: str, agents: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(model, "answered").inc()
        self._agents.labels(model).inc(agents)
        self._seconds.labels(model).observe(seconds)

    def refused(self, model: str, refusal: RequestRefused) -> None:
        """Count a request that was refused, for a model that is there."""
        self._requests.labels(model, refusal.why.name.lower()).inc()

    def text(self) -> bytes:
        """Return all counts in Prometheus' text format."""
        return generate_latest(self._registry)


class _Models:
    """Reads the models when it is asked."""

    def __init__(self, models: Mapping[str, Counted]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        decisions = CounterMetricFamily("headrace_serving_decisions", "Calls of the policy", labels=["model"])
        gauges: dict[str, GaugeMetricFamily] = {}
        for name, model in self._models.items():
            decisions.add_metric([name], model.decisions)
            for key, (text, value) in model.gauges().items():
                if key not in gauges:
                    gauges[key] = GaugeMetricFamily(f"headrace_serving_{key}", text, labels=["model"])
                gauges[key].add_metric([name], value)
        yield decisions
        yield from gauges.values()
