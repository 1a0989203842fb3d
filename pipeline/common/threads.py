"""The number of threads that numeric libraries use: one per process, unless the user has set another.

For small networks more threads only get into each other's way. The libraries read these variables once, when NumPy is
imported.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def use_one_thread(environment: MutableMapping[str, str]) -> None:
    """Set the variables that are not set in a process's environment."""
    for name in VARIABLES:
        environment.setdefault(name, "1")


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
