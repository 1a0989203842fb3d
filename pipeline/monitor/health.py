"""`/healthz` and `/metrics`: what probes and Prometheus ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from headrace.pipeline.monitor.live_run import LiveRun
from headrace.pipeline.web.site import refusal

_OF_BEHAVIORS = {
    "max_steps": "Steps at which it ends",
    "steps_per_s": "Trainer steps per second",
    "reward": "Mean return of the last 100 training episodes",
    "elo": "Rating of the newest policy",
    "lag": "Updates by which acting policies were behind",
}
_OF_QUEUES = {
    "depth": "Items that wait",
    "capacity": "Most items that wait",
    "high_water": "Most items that ever waited",
    "put_wait": "Share of time in which producers waited for room",
    "get_wait": "Share of time in which consumers waited for items",
}


def health_routes(run: LiveRun) -> list[web.RouteDef]:
    """Return the routes of a live run."""
    registry = CollectorRegistry()
    registry.register(_Collector(run))

    async def health(_: web.Request) -> web.Response:
        trouble = run.trouble()
        return refusal(503, trouble) if trouble else web.json_response({"status": run.state()["status"]})

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return [web.get("/healthz", health), web.get("/metrics", metrics)]


class _Collector:
    """Reads the newest state when it is asked."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run

    def collect(self) -> Iterator[Metric]:
        state = self._run.state()
        healthy = GaugeMetricFamily("headrace_healthy", "1 while the run goes on")
        healthy.add_metric([], 0.0 if self._run.trouble() else 1.0)
        yield healthy
        yield from self._behaviors(state["behaviors"])
        yield from _gauges("headrace_queue_", _OF_QUEUES, state["edges"], ("queue", "source", "target"), _ends)
        yield from _usages(state["hosts"])
        values = GaugeMetricFamily(
            "headrace_statistic", "Newest summary of a statistic", labels=["category", "statistic"]
        )
        for category, named in self._run.history.newest().items():
            for name, value in named.items():
                values.add_metric([category, name], value)
        yield values

    def _behaviors(self, behaviors: list[dict[str, Any]]) -> Iterator[Metric]:
        for key, name in (("step", "steps"), ("updates", "updates")):
            counter = CounterMetricFamily(f"headrace_{name}", f"Trainer {name} so far", labels=["behavior"])
            for each in behaviors:
                counter.add_metric([each["name"]], each[key])
            yield counter
        yield from _gauges("headrace_", _OF_BEHAVIORS, behaviors, ("behavior",), lambda each: [each["name"]])


def _ends(edge: dict[str, Any]) -> list[str]:
    return [edge["queue"], edge["source"][0], edge["target"][0]]


def _gauges(
    prefix: str, keys: dict[str, str], rows: list[dict[str, Any]], labels: tuple[str, ...], label: Any
) -> Iterator[Metric]:
    for key, words in keys.items():
        gauge = GaugeMetricFamily(prefix + key, words, labels=labels)
        for row in rows:
            if row[key] is not None:
                gauge.add_metric(label(row), row[key])
        yield gauge


def _usages(hosts: list[dict[str, Any]]) -> Iterator[Metric]:
    cpu = CounterMetricFamily("headrace_process_cpu_seconds", "CPU time", labels=["host"])
    memory = GaugeMetricFamily("headrace_process_resident_memory_bytes", "Resident memory", labels=["host"])
    for host in hosts:
        if host.get("usage"):
            cpu.add_metric([host["name"]], host["usage"]["cpu_s"])
            memory.add_metric([host["name"]], host["usage"]["memory"])
    yield from (cpu, memory)
