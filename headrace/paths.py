"""Where this copy of Headrace is installed, and the operating system it runs on. Imports no other Headrace modules."""

from __future__ import annotations

import os
import sys
from functools import cache

PARTS = ("config", "queues", "stages", "pipeline")
"""The packages below `headrace`."""
FOLDERS = sys.modules[__name__.rpartition(".")[0]].__path__
"""Folders that Python searches for these packages. A checkout without links has more than one."""
ROOT = os.path.abspath(os.path.dirname(FOLDERS[0]))
"""Folder that must be on `sys.path` for `import headrace`."""
CODE = (
    os.path.join(FOLDERS[0], ""),
    *(os.path.join(folder, part, "") for folder in FOLDERS for part in PARTS),
)
"""Path prefixes of Headrace's own source files."""


def on_linux() -> bool:
    """Return True if Linux-only features may be used: on Linux, unless `HEADRACE_PLATFORM=plain` turns them off."""
    return sys.platform == "linux" and os.environ.get("HEADRACE_PLATFORM") != "plain"


@cache
def _opens_process_handles() -> bool:
    try:
        handle = os.pidfd_open(os.getpid())
    except (AttributeError, OSError):  # an old kernel, or a sandbox that forbids it
        return False
    os.close(handle)
    return True


def has_process_handles() -> bool:
    """Return True if Linux gives out handles of processes (pidfd), by which leftover processes are ended."""
    return on_linux() and _opens_process_handles()
