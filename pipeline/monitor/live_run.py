"""The run of this process on its page: main supplies states, and the server's thread delivers them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypedDict

import yaml

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS
from headrace.pipeline.common.kept_state import OURS
from headrace.pipeline.common.process import ProcessUsage, read_usage, usage_lacks
from headrace.pipeline.reporting.history import History
from headrace.stages.ghost.league_chart import chart_of

LATE_S = 60.0
"""Seconds without a state after which main counts as blocked."""
OVER = ("failed", "ended")


class LiveRun:
    """The run of this process.

    Args:
        name: its run id.
        config: its configuration.
        history: its curves.
        tail: the newest lines of its log.
    """

    live = True

    def __init__(self, name: str, config: RunConfig, history: History, tail: LogTail) -> None:
        self.name = name
        self.history = history
        self.tail = tail
        self._configuration = yaml.safe_dump(config.to_plain(), sort_keys=False)
        self._state: dict[str, Any] = {"status": "starting", "message": "", "behaviors": [], "hosts": [], "edges": []}
        self._processes = Processes()
        self._leagues: list[dict[str, Any]] = []
        self._at = time.monotonic()
        self._last_line = 0

    def receive(self, state: dict[str, Any], leagues: list[dict[str, Any]] | None) -> None:
        """Store a state from main, and the leagues' reports if they are new."""
        state["hosts"], state["usage_lacks"] = self._processes.look(state["hosts"]), usage_lacks()
        self._state, self._at = state, time.monotonic()
        if leagues is not None:
            self._leagues = [league_for_page(report) for report in leagues]

    def event(self) -> dict[str, Any]:
        """Return the newest state with everything added since the last call: curve points and log lines."""
        lines = self.tail.since(self._last_line)
        self._last_line = lines[-1]["number"] if lines else self._last_line
        points: dict[str, dict[str, list[list[float]]]] = {}
        fresh, marks = self.history.take_fresh()
        for category, name, (step, at, value) in fresh:
            points.setdefault(category, {}).setdefault(name, []).append([step, round(at, 1), float(f"{value:.6g}")])
        seen = {"revision": self.history.revision, "log": lines}
        return {"state": self._state, "points": points, "marks": marks, **seen}

    def state(self) -> dict[str, Any]:
        """The newest state."""
        return self._state

    def curves(self) -> dict[str, Any]:
        """All curves."""
        return curves_of(self.history)

    def leagues(self) -> list[dict[str, Any]]:
        """The leagues."""
        return self._leagues

    def configuration(self) -> str:
        """The configuration."""
        return self._configuration

    def log(self) -> list[dict[str, Any]]:
        """The newest lines."""
        return self.tail.since(0)

    def trouble(self) -> str:
        """Reason why the run is not healthy; empty if it is."""
        if self._state["status"] in OVER:
            return self._state["message"] or "the run has ended"
        late = time.monotonic() - self._at
        return f"main has been blocked for {late:.0f} s" if late > LATE_S else ""


def curves_of(history: History) -> dict[str, Any]:
    """Return all curves and marks, as the page reads them."""
    return {"revision": history.revision, "curves": history.plain(), "marks": history.marks()}


# CPU time and memory of the hosts' processes: read for those on this machine, reported by the others.

_SHORT_S = 0.5
"""Minimum seconds between readings: over less, the clock's ticks would dominate the share of a core."""


class Usage(TypedDict):
    """CPU time and memory that a process uses."""

    cpu: float
    """Cores used since the last reading."""
    cpu_s: float
    """Total CPU time."""
    memory: int
    """Resident bytes."""


class Processes:
    """Reads the CPU and memory usage of the hosts' processes from time to time."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[ProcessUsage, float]] = {}

    def look(self, hosts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the hosts with the `usage` of each; None for hosts that have ended or that share a process.

        Of several learners in one process, the first has its usage. Hosts in main's process have none.

        Args:
            hosts: as `state` describes them; `told` is the last report of a host without a `pid` on this machine.
        """
        found = []
        seen: set[int] = set()
        for host in hosts:
            reported, pid = host.pop("told", None), host["pid"]
            found.append({**host, "usage": None if pid in seen else self._usage(host, reported)})
            if pid is not None:
                seen.add(pid)
        return found

    def _usage(self, host: dict[str, Any], reported: ProcessUsage | None) -> Usage | None:
        if host["pid"] is not None:
            reported = read_usage(host["pid"])
        elif host["ended"] or HOST_KINDS[host["kind"]].in_main:
            reported = None
        if reported is None:
            self._before.pop(host["name"], None)
            return None
        before, cores = self._before.get(host["name"], (reported, 0.0))
        if reported.cpu_s < before.cpu_s:  # a replacement has its name
            before = reported
        passed = reported.at - before.at
        if passed > _SHORT_S:
            cores = (reported.cpu_s - before.cpu_s) / passed
        if passed > _SHORT_S or before is reported:
            self._before[host["name"]] = reported, cores
        return Usage(cpu=round(cores, 3), cpu_s=reported.cpu_s, memory=reported.memory)


# The newest lines of the log, as the console shows them.

MOST_LINES = 400
_LONGEST = 4000
"""Maximum characters per line."""


class LogTail(logging.Handler):
    """Keeps the newest lines, each with a number that grows by one."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[dict[str, Any]] = deque(maxlen=MOST_LINES)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        try:
            text = record.getMessage()[:_LONGEST]
        except Exception:  # like every handler of the standard library: a log line never ends the program
            self.handleError(record)
            return
        self._count += 1
        self._lines.append(
            {"number": self._count, "time": round(time.time(), 1), "level": record.levelname, "text": text}
        )

    def since(self, number: int) -> list[dict[str, Any]]:
        """Return the lines with a number greater than this."""
        return [line for line in list(self._lines) if line["number"] > number]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keep the log lines of this context."""
        logger = logging.getLogger(OURS)
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)


# A league's report for the page: ratings, and the matrix of results, neighbours summed if it is large.

MOST_CELLS = 40
"""Maximum number of rows and of columns of the matrix."""


def league_for_page(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `headrace.stages.ghost.league.report` with its results as a matrix; for several learners, their chart.

    Rows are spans of the learner's snapshots, or brains if no behaviour learns. Columns are spans of an opponent's
    snapshots and brains. A cell is [won, drawn, lost] or None.
    """
    if "players" in report:
        return chart_of(report, MOST_CELLS)
    results = report["results"]
    columns = sorted({_opponent(each) for each in results})
    names = [each["brain"] for each in report.get("brains", [])] if report["rating"] is None else None
    rows = 1 + max((int(each["since"]) for each in results), default=-1)
    tall, wide = (max(1, -(-size // MOST_CELLS)) for size in (rows, len(columns)))
    place = {column: at // wide for at, column in enumerate(columns)}
    cells: list[list[list[int] | None]] = [[None] * (-(-len(columns) // wide)) for _ in range(-(-rows // tall))]
    for each in results:
        row, column = int(each["since"]) // tall, place[_opponent(each)]
        before = cells[row][column] or [0, 0, 0]
        cells[row][column] = [n + int(each[key]) for n, key in zip(before, ("won", "drawn", "lost"), strict=True)]
    return {
        "behavior": report["behavior"],
        "rating": report["rating"],
        "snapshots": [
            {key: each.get(key) for key in ("snapshot", "step", "rating", "games", "won", "drawn", "lost")}
            for each in report["snapshots"]
        ],
        "brains": report.get("brains", []),
        "columns": [
            {"against": name, "snapshot": number, "brain": brain or None} for name, brain, number in columns[::wide]
        ],
        "rows": [row * tall if names is None else names[row * tall] for row in range(len(cells))],
        "cells": cells,
    }


def _opponent(each: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return the sort key of a player: its behaviour, then the snapshot's number; brains follow all snapshots."""
    snapshot = each["snapshot"]
    return str(each["against"]), str(each.get("brain") or ""), -1 if snapshot is None else int(snapshot)
