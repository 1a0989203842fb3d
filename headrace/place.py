"""The place of this Headrace, and its system. The lowest module of all: it imports none of the others."""

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
"""The beginning of the paths of Headrace's files."""


def on_linux() -> bool:
    """True where Linux's own features may be used: on Linux, unless `HEADRACE_PLATFORM=plain` switches them off."""
    return sys.platform == "linux" and os.environ.get("HEADRACE_PLATFORM") != "plain"
