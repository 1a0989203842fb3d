"""Where this copy of Headrace is installed, and the operating system. It imports no other module of Headrace."""

from __future__ import annotations

import os
import sys

PARTS = ("config", "queues", "stages", "pipeline")
"""The packages below `headrace`."""
FOLDERS = sys.modules[__name__.rpartition(".")[0]].__path__
"""Where Python looks for these packages; more than one place in a checkout without links."""
ROOT = os.path.abspath(os.path.dirname(FOLDERS[0]))
"""The folder that `import headrace` needs on `sys.path`."""
CODE = (
    os.path.join(FOLDERS[0], ""),
    *(os.path.join(folder, part, "") for folder in FOLDERS for part in PARTS),
)
"""Path prefixes of Headrace's own source files."""


def on_linux() -> bool:
    """True if Linux-only features may be used: on Linux, unless `HEADRACE_PLATFORM=plain` turns them off."""
    return sys.platform == "linux" and os.environ.get("HEADRACE_PLATFORM") != "plain"
