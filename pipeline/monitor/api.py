"""The routes of the page's server: the page's files, `/api/…`, the stream of states, `/healthz` and `/metrics`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from operator import methodcaller
from pathlib import Path
from typing import Any, cast

from aiohttp import hdrs, web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from headrace.paths import ROOT
from headrace.pipeline.monitor.shown_runs import LiveRun, RunInFolder
from headrace.pipeline.web import Api, file_routes, json_response, refusal, to_json

SILENCE_S = 15.0
"""Seconds without a new state after which a keep-alive message is sent, so that proxies keep the connection open."""


class StateFeed:
    """Streams the newest state to viewers as server-sent events.

    Args:
        patience_s: seconds after which a viewer that does not read is disconnected.
        most_viewers: maximum number of viewers.
    """

    def __init__(self, patience_s: float = 30.0, most_viewers: int = 100) -> None:
        self._patience_s = patience_s
        self._most_viewers = most_viewers
        self.sequence = 0
        self._state: dict[str, Any] = {}
        self._event: bytes | None = None
        self._changed = asyncio.Event()
        self.viewers = 0
        """Number of connected viewers."""
        self._over = False

    def publish(self, state: dict[str, Any]) -> None:
        """Publish a state that replaces the previous one."""
        self.sequence += 1
        self._state, self._event = {**state, "sequence": self.sequence}, None
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def close(self) -> None:
        """End all streams after the newest state has been sent."""
        self._over = True
        self._changed.set()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Stream states to a viewer: first the newest, then a newer one whenever the viewer has read the last."""
        if self.viewers >= self._most_viewers:
            raise web.HTTPServiceUnavailable(text=f"{self._most_viewers} viewers are already connected")
        response = web.StreamResponse(headers={hdrs.CACHE_CONTROL: "no-store", "X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        self.viewers += 1
        try:
            await response.prepare(request)
            if request.transport is not None:
                request.transport.set_write_buffer_limits(high=64 * 1024)
            await self._send_to(response)
        except (ConnectionResetError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self.viewers -= 1
        return response

    def _newest(self) -> bytes:
        """Return the newest state as an event, encoded when the first viewer requests it."""
        if self._event is None:
            self._event = b"id: %d\ndata: %s\n\n" % (self.sequence, to_json(self._state))
        return self._event

    async def _send_to(self, response: web.StreamResponse) -> None:
        seen = 0
        while True:
            changed = self._changed
            event = self._newest() if self.sequence != seen else b": still here\n\n"
            seen = self.sequence
            async with asyncio.timeout(self._patience_s):
                await response.write(event)
            if self._over and seen == self.sequence:
                return
            try:
                async with asyncio.timeout(SILENCE_S):
                    await changed.wait()
            except TimeoutError:
                continue


USUAL_PORT = 8470
"""Default port of the page."""
_FILES = files("headrace.pipeline.monitor").joinpath("page")
PAGE = {"/": "index.html", **{f"/{file.name}": file.name for file in _FILES.iterdir() if file.name != "index.html"}}
"""Names of the page's files, keyed by URL path."""
STATISTICS = "statistics.md"
"""Name of the file that explains the statistics. It is in `docs`, or next to the page's files if Headrace is installed.
"""
OPEN = frozenset({*PAGE, f"/{STATISTICS}", "/healthz"})
"""Paths that need no token because they reveal nothing about the run."""


def page_routes() -> list[web.RouteDef]:
    """Return the routes for the page's files."""
    routes = file_routes(_FILES, PAGE)
    if f"/{STATISTICS}" not in PAGE:  # a checkout has this file only in docs
        routes += file_routes(Path(ROOT, "docs"), {f"/{STATISTICS}": STATISTICS})
    return routes


def add_runs(api: Api, runs: Mapping[str, LiveRun | RunInFolder], options: Mapping[str, Any]) -> None:
    """Add the routes that read runs.

    Args:
        api: receives the routes.
        runs: the runs, keyed by the id in their URL paths.
        options: the permissions to report to the page.
    """

    async def all_runs(_: web.Request) -> web.Response:
        listed = [{"id": key, "name": run.name, "live": run.live, "group": run.group} for key, run in runs.items()]
        return json_response({"runs": listed, **options})

    def reading(read: Callable[[LiveRun | RunInFolder], Any]) -> Callable[[web.Request], Any]:
        async def respond(request: web.Request) -> web.Response:
            key = request.match_info["run"]
            if key not in runs:
                raise web.HTTPNotFound(text=f"unknown run '{key}'; available: {', '.join(runs)}")
            return json_response(read(runs[key]))

        return respond

    api.add("GET", "/api/runs", all_runs, "The runs, and what the page may do")
    for name, read in _READS.items():
        api.add("GET", f"/api/runs/{{run}}/{name}", reading(read), f"A run's {name}")


_READS: dict[str, Callable[[LiveRun | RunInFolder], Any]] = {
    **{name: methodcaller(name) for name in ("state", "curves", "leagues", "log")},
    "configuration": lambda run: {"yaml": run.configuration()},
}


_OF_BEHAVIORS = {
    "max_steps": "Steps at which the behaviour's training ends",
    "steps_per_s": "Trainer steps per second",
    "reward": "Mean return of the last 100 training episodes",
    "elo": "Rating of the newest policy",
    "lag": "Lag of the acting policies, in updates",
    "policy_wait": "Share of the time that actors waited for the next policy",
}
_OF_QUEUES = {
    "depth": "Number of items in the queue",
    "capacity": "Maximum number of items in the queue",
    "high_water": "Highest number of items in the queue so far",
    "put_wait": "Share of the time that producers waited for space",
    "get_wait": "Share of the time that consumers waited for items",
}


def add_health(api: Api, run: LiveRun) -> None:
    """Add the routes for a live run's health and metrics."""
    registry = CollectorRegistry()
    registry.register(_Collector(run))

    async def health(_: web.Request) -> web.Response:
        trouble = run.trouble()
        return refusal(503, trouble) if trouble else web.json_response({"status": run.state()["status"]})

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    api.add("GET", "/healthz", health, "200 while the run is healthy, 503 otherwise")
    api.add("GET", "/metrics", metrics, "The run's numbers in Prometheus' text format")


class _Collector:
    """Collects Prometheus metrics from the newest state."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run

    def collect(self) -> Iterator[Metric]:
        state, gauge, counter = self._run.state(), GaugeMetricFamily, CounterMetricFamily
        healthy = 0.0 if self._run.trouble() else 1.0
        yield _metric(gauge, "healthy", "1 while the run is healthy", (), [((), healthy)])
        behaviors = [((behavior["name"],), behavior) for behavior in state["behaviors"]]
        samples: list[tuple[Sequence[str], Any]]
        for name, key in (("steps", "step"), ("updates", "updates")):
            samples = [(labels, behavior[key]) for labels, behavior in behaviors]
            yield _metric(counter, name, f"Trainer {name} so far", ("behavior",), samples)
        for key, text in _OF_BEHAVIORS.items():
            yield _metric(gauge, key, text, ("behavior",), [(labels, behavior[key]) for labels, behavior in behaviors])
        edges = [((edge["queue"], edge["source"][0], edge["target"][0]), edge) for edge in state["edges"]]
        for key, text in _OF_QUEUES.items():
            samples = [(labels, edge[key]) for labels, edge in edges]
            yield _metric(gauge, f"queue_{key}", text, ("queue", "source", "target"), samples)
        text = "Share of the time that the bottleneck is busy; absent if no single part is the bottleneck"
        causes = [cause for cause in (state.get("bottleneck"),) if cause is not None and cause["host"]]
        samples = [((cause["host"], cause["stage"], cause["behavior"]), cause["busy"]) for cause in causes]
        yield _metric(gauge, "bottleneck", text, ("host", "stage", "behavior"), samples)
        usages = [((host["name"],), host["usage"]) for host in state["hosts"] if host.get("usage")]
        samples = [(labels, usage["cpu_s"]) for labels, usage in usages]
        yield _metric(counter, "process_cpu_seconds", "CPU time", ("host",), samples)
        samples = [(labels, usage["memory"]) for labels, usage in usages]
        yield _metric(gauge, "process_resident_memory_bytes", "Resident memory", ("host",), samples)
        newest = self._run.history.newest().items()
        samples = [((category, name), value) for category, named in newest for name, value in named.items()]
        yield _metric(gauge, "statistic", "Latest summary value of a statistic", ("category", "statistic"), samples)


def _metric(
    kind: Callable[..., Any], name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], Any]]
) -> Metric:
    metric: Any = kind(f"headrace_{name}", text, labels=labels)
    for values, number in samples:
        if number is not None:
            metric.add_metric(values, number)
    return cast("Metric", metric)
