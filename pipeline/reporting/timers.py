"""Timers and gauges: `run_logs/timers.json`, in ML-Agents' format.

`Timers` counts named code blocks and work that other hosts report, and sums their times; blocks are nested as they ran.
`GaugeWriter` adds each summary's mean and sum. `progress` shows live numbers.
"""

from __future__ import annotations

import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from headrace.pipeline.common.process import version_of
from headrace.pipeline.reporting.statistics import StatisticsWriter, Summary
from headrace.pipeline.run_folder.atomic_files import REAL, FileOperations, write_atomic
from headrace.stages.activity import ACTING, ASKING, LEARNING, STEPPING
from headrace.stages.environments.unity.versions import COMMUNICATION_VERSION

FORMAT_VERSION = "0.1.0"

_MAIN_LOOP = ("TrainerController.start_learning", "TrainerController.advance")
_PLACES = {
    ACTING: (*_MAIN_LOOP, "env_step", "SubprocessEnvManager._take_step"),
    ASKING: (*_MAIN_LOOP, "env_step", "SubprocessEnvManager._take_step"),
    STEPPING: (*_MAIN_LOOP, "env_step", "workers", "worker_root", "UnityEnvironment.step"),
    LEARNING: (*_MAIN_LOOP, "trainer_advance", "_update_policy"),
}
"""Maps each kind of work that hosts report to its path in ML-Agents' timer tree."""


class _TimerNode:
    __slots__ = ("children", "count", "is_parallel", "root", "total")

    def __init__(self, root: _TimerNode | None = None) -> None:
        self.root = root or self
        self.total = 0.0
        self.count = 0
        self.is_parallel = False
        """True if the block ran in other processes, in which case its total may exceed its parent's total."""
        self.children: dict[str, _TimerNode] = {}

    def child(self, name: str) -> _TimerNode:
        """Return the child node for a named block of code, creating it if missing."""
        if name not in self.children:
            self.children[name] = _TimerNode(self.root)
        return self.children[name]

    def as_dict(self) -> dict[str, Any]:
        inside = sum(child.total for child in self.children.values())
        result: dict[str, Any] = {
            "total": self.total,
            "count": self.count,
            # Children that ran in concurrent tasks may add up to more than the elapsed time.
            "self": max(0.0, self.total - inside),
        }
        if self.is_parallel:
            result["is_parallel"] = True
        if self.children:
            result["children"] = {name: child.as_dict() for name, child in self.children.items()}
        return result


_current: ContextVar[_TimerNode | None] = ContextVar("headrace_timer", default=None)
"""The innermost timer running in this task; a shared stack would mix up interleaved tasks."""


class Timers:
    """Times of named blocks of code, and gauges.

    Args:
        clock: returns seconds from any origin.
        wall_clock: returns seconds since 1970.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._root = _TimerNode()
        self._started = clock()
        self._gauges: dict[str, dict[str, float]] = {}
        self._metadata = {
            "timer_format_version": FORMAT_VERSION,
            "start_time_seconds": str(int(wall_clock())),
            "python_version": sys.version,
            "platform": platform.platform(),
            "command_line_arguments": " ".join(sys.argv),
            "mlagents_version": f"headrace {version_of('headrace', 'unknown')}",
            "mlagents_envs_version": f"headrace {version_of('headrace', 'unknown')}",
            "communication_protocol_version": COMMUNICATION_VERSION,
            "pytorch_version": version_of("torch", "unknown"),
            "numpy_version": version_of("numpy", "unknown"),
        }

    @contextmanager
    def timer(self, name: str) -> Iterator[None]:
        """Time the body of a `with` statement, as a child of the running timer."""
        parent = _current.get()
        if parent is None or parent.root is not self._root:
            parent = self._root
        node = parent.child(name)
        token, started = _current.set(node), self._clock()
        try:
            yield
        finally:
            node.total += self._clock() - started
            node.count += 1
            _current.reset(token)

    def add_work(self, work: Mapping[str, tuple[float, int]]) -> None:
        """Add a host's work: seconds and counts, keyed by the names in `headrace.stages.activity`."""
        for kind, (seconds, count) in work.items():
            if kind not in _PLACES:  # ML-Agents' tree has no node for it
                continue
            node = self._root
            for name in _PLACES[kind]:
                node = node.child(name)
                if name not in _MAIN_LOOP:
                    node.is_parallel = True
                    node.total += seconds
            node.count += count
            if kind in (STEPPING, LEARNING):  # one call per step and per update
                self._count_loop(_PLACES[kind], count)

    def _count_loop(self, place: Sequence[str], count: int) -> None:
        node = self._root
        for name in place[:-1]:
            node = node.children[name]
            node.count = 1 if name == _MAIN_LOOP[0] else node.count + count

    def set_gauge(self, name: str, value: float) -> None:
        """Record a gauge's value; `timers.json` contains the last value, minimum, maximum and count."""
        if not math.isfinite(value):  # a sum may overflow, which JSON can't represent
            return
        gauge = self._gauges.setdefault(name, {"value": value, "min": value, "max": value, "count": 0})
        gauge["value"] = value
        gauge["min"] = min(gauge["min"], value)
        gauge["max"] = max(gauge["max"], value)
        gauge["count"] += 1

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `timers.json`; the root's total is the time since these timers were created."""
        self._root.total, self._root.count = self._clock() - self._started, 1
        node = self._root
        for name in _MAIN_LOOP if _MAIN_LOOP[0] in node.children else ():
            node = node.child(name)
            node.total = self._root.total
        metadata = {**self._metadata, "end_time_seconds": str(int(self._wall_clock()))}
        return {"name": "root", "gauges": self._gauges, "metadata": metadata, **self._root.as_dict()}

    def write(self, path: Path, *, files: FileOperations = REAL) -> None:
        """Write `timers.json` atomically; called at every checkpoint and at the end."""
        write_atomic(path, json.dumps(self.as_dict(), indent=4, allow_nan=False).encode(), files=files)


def gauge_name(category: str, name: str, what: str) -> str:
    """Return a gauge's name as in ML-Agents: with dots instead of slashes, and without spaces."""
    return f"{category}.{name}.{what}".replace("/", ".").replace(" ", "")


class GaugeWriter(StatisticsWriter):
    """A writer that stores each statistic's mean and sum as gauges in `timers`."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        """Set the gauges of one summary."""
        for name, summary in summaries.items():
            # ML-Agents keeps only the last value, so mean and sum are that value.
            only = summary.how == "last"
            self._timers.set_gauge(gauge_name(category, name, "mean"), summary.last if only else summary.mean)
            self._timers.set_gauge(gauge_name(category, name, "sum"), summary.last if only else summary.sum)
