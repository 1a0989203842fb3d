"""What a process of this machine uses, from Linux' /proc; unknown elsewhere."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_CPU_FIELDS = slice(11, 13)
"""User and system time, counted behind the name of the program."""


class ProcessUsage(NamedTuple):
    """What a process used up to some time."""

    at: float
    """When, by the monotonic clock of who looked, or was told."""
    cpu_s: float
    """CPU time in all."""
    memory: int
    """Resident bytes; pages that several processes share count in each."""


def read_usage(pid: int) -> ProcessUsage | None:
    """Return what a process uses; None if it is gone, or this system does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    cpu_s = sum(map(int, text.rpartition(")")[2].split()[_CPU_FIELDS])) / _TICKS
    return ProcessUsage(time.monotonic(), cpu_s, pages * _PAGE)
