"""The runs on the page: this process's run, and runs in folders. All calls come from the server's thread.

Main supplies the states of this process's run, and the server's thread delivers them.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

import yaml

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS
from headrace.config.plain_data import parse_json
from headrace.pipeline.common.global_state_guard import OURS
from headrace.pipeline.common.process import ProcessUsage, read_usage, usage_lacks
from headrace.pipeline.reporting.console import ELO, REWARD
from headrace.pipeline.reporting.history import History, event_files, read_events
from headrace.pipeline.reporting.statistics import PIPELINE
from headrace.pipeline.reporting.time_shares import bottleneck_of_runs
from headrace.pipeline.run_folder.folder import read_configuration
from headrace.pipeline.run_folder.names import CONFIGURATION
from headrace.queues.disks import answered
from headrace.queues.files import matching, read_file
from headrace.stages.ghost.league_chart import chart_of
from headrace.startup_context import shortened

LATE_S = 60.0
"""Seconds without a new state after which main counts as blocked."""
OVER = ("failed", "ended")


class LiveRun:
    """The run in this process.

    Args:
        name: the run id.
        config: the run's configuration.
        history: the run's curves.
        tail: the newest lines of the run's log.
    """

    live = True
    group = 0

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
        """Store a state from main, and the leagues' reports if given."""
        state["hosts"], state["usage_lacks"] = self._processes.measure(state["hosts"]), usage_lacks()
        self._state, self._at = state, time.monotonic()
        if leagues is not None:
            self._leagues = [league_for_page(report) for report in leagues]

    def event(self) -> dict[str, Any]:
        """Return the newest state, with the curve points and log lines added since the last call."""
        lines = self.tail.since(self._last_line)
        self._last_line = lines[-1]["number"] if lines else self._last_line
        points: dict[str, dict[str, list[list[float]]]] = {}
        fresh, marks = self.history.take_fresh()
        for category, name, (step, at, value) in fresh:
            points.setdefault(category, {}).setdefault(name, []).append([step, round(at, 1), float(f"{value:.6g}")])
        seen = {"revision": self.history.revision, "log": lines}
        return {"state": self._state, "points": points, "marks": marks, **seen}

    def state(self) -> dict[str, Any]:
        """Return the newest state."""
        return self._state

    def curves(self) -> dict[str, Any]:
        """Return all curves and marks."""
        return curves_of(self.history)

    def leagues(self) -> list[dict[str, Any]]:
        """Return the leagues, in the form of `league_for_page`."""
        return self._leagues

    def configuration(self) -> str:
        """Return the resolved configuration as YAML."""
        return self._configuration

    def log(self) -> list[dict[str, Any]]:
        """Return the newest lines of the log."""
        return self.tail.since(0)

    def trouble(self) -> str:
        """Return the reason why the run is not healthy; empty if it is."""
        if self._state["status"] in OVER:
            return self._state["message"] or "the run has ended"
        late = time.monotonic() - self._at
        return f"the main process has been blocked for {late:.0f} s" if late > LATE_S else ""


def curves_of(history: History) -> dict[str, Any]:
    """Return all curves and marks, in the form that the page reads."""
    return {"revision": history.revision, "curves": history.plain(), "marks": history.marks()}


class RunInFolder:
    """A run that is read from its folder, and read again when its event files have grown.

    Args:
        folder: `results/<run-id>`.
        name: the run's name on the page.

    Attributes:
        group: a number shared by runs that have the same configuration and differ only in their seeds.
    """

    live = False

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._folder = folder
        self._history = History()
        self._signature: object = None
        self.group = 0

    def state(self) -> dict[str, Any]:
        """Return the progress of the run's behaviours."""
        settings, behaviors, all_curves = self._behaviors(), [], self._read().plain()
        cause = bottleneck_of_runs(all_curves.pop(PIPELINE, {}), blocks=settings)
        for name, curves in all_curves.items():
            newest = {statistic: curve["values"][-1] for statistic, curve in curves.items()}
            block = settings.get(name) or {}
            behaviors.append(
                {
                    "name": name,
                    "trainer": block.get("trainer_type"),
                    "step": max(curve["steps"][-1] for curve in curves.values()),
                    "max_steps": block.get("max_steps"),
                    "steps_per_s": newest.get("Pipeline/Steps per Second"),
                    "reward": newest.get(REWARD),
                    "elo": newest.get(ELO),
                    "lag": newest.get("Policy/Lag"),
                }
            )
        rest: dict[str, Any] = {"hosts": [], "edges": [], "players": [], "bottleneck": cause and asdict(cause)}
        return {"status": "from its folder", "message": "", "behaviors": behaviors, **rest}

    def curves(self) -> dict[str, Any]:
        """Return all curves and marks."""
        return curves_of(self._read())

    def leagues(self) -> list[dict[str, Any]]:
        """Return the leagues stored in the run's folder; skip damaged files."""
        leagues = []
        for path in matching(self._folder, "*/league.json"):
            try:
                leagues.append(league_for_page(parse_json(read_file(path))))
            except (OSError, ValueError, LookupError, TypeError):
                continue
        return leagues

    def configuration(self) -> str:
        """Return the run's `configuration.yaml`."""
        try:
            return read_file(self._folder / CONFIGURATION).decode(errors="replace")
        except OSError as error:
            return f"# {error}"

    def log(self) -> list[dict[str, Any]]:
        """Return no lines, because this page shows no log."""
        return []

    def _read(self) -> History:
        signature = [(path, answered(path, path.stat).st_size) for path in event_files(self._folder)]
        if signature != self._signature:
            self._history, self._signature = History(), signature
            read_events(self._folder, self._behaviors(), self._history)
        return self._history

    def _behaviors(self) -> Mapping[str, Any]:
        return read_configuration(self._folder).get("behaviors") or {}


# CPU time and memory of the hosts' processes: read for processes on this machine, reported by the others.

_SHORT_S = 0.5
"""Minimum seconds between readings; over a shorter time, the clock's resolution would dominate the result."""


class Usage(TypedDict):
    """A process's CPU time and memory."""

    cpu: float
    """Average number of cores used since the last reading."""
    cpu_s: float
    """Total CPU time in seconds."""
    memory: int
    """Resident memory in bytes."""


class Processes:
    """Reads the CPU time and memory of the hosts' processes on request."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[ProcessUsage, float]] = {}

    def measure(self, hosts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the hosts, each with a `usage`, which is None for ended hosts and for processes already listed.

        If several learners share a process, only the first has a usage. Hosts in main's process have none.

        Args:
            hosts: the hosts as `state_of` describes them; `reported` is the last report from a host without a `pid` on
                this machine.
        """
        measured = []
        seen: set[int] = set()
        for host in hosts:
            reported, pid = host.pop("reported", None), host["pid"]
            measured.append({**host, "usage": None if pid in seen else self._usage(host, reported)})
            if pid is not None:
                seen.add(pid)
        return measured

    def _usage(self, host: dict[str, Any], reported: ProcessUsage | None) -> Usage | None:
        if host["pid"] is not None:
            reported = read_usage(host["pid"])
        elif host["ended"] or HOST_KINDS[host["kind"]].in_main:
            reported = None
        if reported is None:
            self._before.pop(host["name"], None)
            return None
        before, cores = self._before.get(host["name"], (reported, 0.0))
        if reported.cpu_s < before.cpu_s:  # a replacement has the same name
            before = reported
        passed = reported.at - before.at
        if passed > _SHORT_S:
            cores = (reported.cpu_s - before.cpu_s) / passed
        if passed > _SHORT_S or before is reported:
            self._before[host["name"]] = reported, cores
        return Usage(cpu=round(cores, 3), cpu_s=reported.cpu_s, memory=reported.memory)


# The newest lines of the log, as shown on the console.

MOST_LINES = 400


class LogTail(logging.Handler):
    """Keeps the newest log lines, numbered consecutively."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[dict[str, Any]] = deque(maxlen=MOST_LINES)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record as a numbered line."""
        try:
            text = shortened(record.getMessage())
        except Exception:  # as in the standard library's handlers, a log line never ends the program
            self.handleError(record)
            return
        self._count += 1
        self._lines.append(
            {"number": self._count, "time": round(time.time(), 1), "level": record.levelname, "text": text}
        )

    def since(self, number: int) -> list[dict[str, Any]]:
        """Return the lines whose number is greater than `number`."""
        return [line for line in list(self._lines) if line["number"] > number]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keep the lines that are logged in this context."""
        logger = logging.getLogger(OURS)
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)


# A league's report for the page: ratings and the matrix of results; a large matrix combines neighbouring cells.

MOST_CELLS = 40
"""Maximum number of rows, and of columns, in the matrix."""


def league_for_page(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a league report with its results as a matrix. For a league of several learners, return its chart instead.

    The report is a `headrace.stages.ghost.rating.report`. Rows are ranges of the learner's snapshots, or
    brains if no behaviour learns. Columns are brains and ranges of an opponent's snapshots. A cell is
    [won, drawn, lost] or None.
    """
    if "players" in report:
        return chart_of(report, MOST_CELLS)
    results = report["results"]
    columns = sorted({_opponent(result) for result in results})
    names = [result["brain"] for result in report.get("brains", [])] if report["rating"] is None else None
    rows = 1 + max((int(result["since"]) for result in results), default=-1)
    tall, wide = (max(1, -(-size // MOST_CELLS)) for size in (rows, len(columns)))
    block_of = {column: at // wide for at, column in enumerate(columns)}
    cells: list[list[list[int] | None]] = [[None] * (-(-len(columns) // wide)) for _ in range(-(-rows // tall))]
    for result in results:
        row, column = int(result["since"]) // tall, block_of[_opponent(result)]
        before = cells[row][column] or [0, 0, 0]
        cells[row][column] = [n + int(result[key]) for n, key in zip(before, ("won", "drawn", "lost"), strict=True)]
    return {
        "behavior": report["behavior"],
        "rating": report["rating"],
        "snapshots": [
            {key: snapshot.get(key) for key in ("snapshot", "step", "rating", "games", "won", "drawn", "lost")}
            for snapshot in report["snapshots"]
        ],
        "brains": report.get("brains", []),
        "columns": [
            {"against": name, "snapshot": number, "brain": brain or None} for name, brain, number in columns[::wide]
        ],
        "rows": [row * tall if names is None else names[row * tall] for row in range(len(cells))],
        "cells": cells,
    }


def _opponent(result: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return an opponent's sort key: its behaviour, then the snapshot's number; brains follow all snapshots."""
    snapshot = result["snapshot"]
    return str(result["against"]), str(result.get("brain") or ""), -1 if snapshot is None else int(snapshot)
