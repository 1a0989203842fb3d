"""The run of this process on its page: main hands states in, the server's thread gives them out."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, TypedDict

import yaml

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS
from headrace.pipeline.common.process_usage import ProcessUsage, read_usage
from headrace.pipeline.monitor.league_matrix import league_for_page
from headrace.pipeline.monitor.log_tail import LogTail
from headrace.pipeline.reporting.history import History

LATE_S = 60.0
"""After so long without a state, main is held by something."""
OVER = ("failed", "ended")


class LiveRun:
    """The run of this process.

    Args:
        name: its run id.
        config: its configuration.
        history: its curves.
        tail: its log.
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
        self._told = 0

    def receive(self, state: dict[str, Any], leagues: list[dict[str, Any]] | None) -> None:
        """Take a state from main, and the reports of leagues if they are new."""
        state["hosts"] = self._processes.look(state["hosts"])
        self._state, self._at = state, time.monotonic()
        if leagues is not None:
            self._leagues = [league_for_page(report) for report in leagues]

    def event(self) -> dict[str, Any]:
        """The newest state, with what has come since the last call: points of curves, lines of the log."""
        lines = self.tail.since(self._told)
        self._told = lines[-1]["number"] if lines else self._told
        points: dict[str, dict[str, list[list[float]]]] = {}
        for category, name, (step, at, value) in self.history.take_fresh():
            points.setdefault(category, {}).setdefault(name, []).append([step, round(at, 1), float(f"{value:.6g}")])
        return {"state": self._state, "points": points, "revision": self.history.revision, "log": lines}

    def state(self) -> dict[str, Any]:
        """The newest state."""
        return self._state

    def curves(self) -> dict[str, Any]:
        """All curves."""
        return {"revision": self.history.revision, "curves": self.history.plain()}

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
        """Why the run is not healthy; empty if it is."""
        if self._state["status"] in OVER:
            return self._state["message"] or "the run has ended"
        late = time.monotonic() - self._at
        return f"main has been held for {late:.0f} s" if late > LATE_S else ""


# CPU time and memory of the hosts' processes: read where they run on this machine, told where they don't.

_SHORT_S = 0.5
"""Over less time, the share of a core would be an accident of the clock's ticks."""


class Usage(TypedDict):
    """What a process uses."""

    cpu: float
    """Cores, since the last look."""
    cpu_s: float
    """CPU time in all."""
    memory: int
    """Resident bytes."""


class Processes:
    """Looks at the processes of hosts now and then."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[ProcessUsage, float]] = {}

    def look(self, hosts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the hosts with the `usage` of each; None of those that have ended, and that share a process.

        The first of several learners in one process has its usage, and no host that lies in main's.

        Args:
            hosts: as `state` describes them; `told` is what one said last, for those without a `pid` on this machine.
        """
        found = []
        seen: set[int] = set()
        for host in hosts:
            told, pid = host.pop("told", None), host["pid"]
            found.append({**host, "usage": None if pid in seen else self._usage(host, told)})
            if pid is not None:
                seen.add(pid)
        return found

    def _usage(self, host: dict[str, Any], told: ProcessUsage | None) -> Usage | None:
        if host["pid"] is not None:
            told = read_usage(host["pid"])
        elif host["ended"] or HOST_KINDS[host["kind"]].in_main:
            told = None
        if told is None:
            self._before.pop(host["name"], None)
            return None
        before, cores = self._before.get(host["name"], (told, 0.0))
        if told.cpu_s < before.cpu_s:  # a replacement has its name
            before = told
        passed = told.at - before.at
        if passed > _SHORT_S:
            cores = (told.cpu_s - before.cpu_s) / passed
        if passed > _SHORT_S or before is told:
            self._before[host["name"]] = told, cores
        return Usage(cpu=round(cores, 3), cpu_s=told.cpu_s, memory=told.memory)
