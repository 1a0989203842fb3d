"""CPU time and memory of the hosts' processes: read where they run on this machine, told where they don't."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypedDict

from headrace.config.host_kinds import HOST_KINDS
from headrace.pipeline.common.process_usage import ProcessUsage, read_usage

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
