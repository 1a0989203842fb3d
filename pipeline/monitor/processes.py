"""CPU time and memory of processes, from Linux' /proc; nothing elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_CPU_FIELDS = slice(11, 13)
"""User and system time, counted behind the name of the program."""


class Usage(TypedDict):
    """What a process uses."""

    cpu: float
    """Cores, since the last look."""
    cpu_s: float
    """CPU time in all."""
    memory: int
    """Resident bytes; pages that several share count in each."""


class Processes:
    """Looks at processes now and then."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, float]] = {}

    def look(self, pids: Iterable[int]) -> dict[int, Usage]:
        """Return what these processes use; those that are gone are absent."""
        found, seen, now = {}, {}, time.monotonic()
        for pid in pids:
            try:
                text = Path(f"/proc/{pid}/stat").read_text()
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except (OSError, IndexError, ValueError):
                continue
            cpu_s = sum(map(int, text.rpartition(")")[2].split()[_CPU_FIELDS])) / _TICKS
            at, before = self._before.get(pid, (now, cpu_s))
            seen[pid] = (now, cpu_s) if now - at > 0.5 or pid not in self._before else (at, before)
            cores = (cpu_s - before) / (now - at) if now > at else 0.0
            found[pid] = Usage(cpu=round(cores, 3), cpu_s=cpu_s, memory=pages * _PAGE)
        self._before = seen
        return found
