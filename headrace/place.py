"""Where this Headrace lies, and on what system. Of all modules this is the lowest: it imports none of the others."""

from __future__ import annotations

import os
import sys

PARTS = ("config", "queues", "stages", "pipeline")
"""The packages below `headrace`."""
FOLDERS = sys.modules[__name__.rpartition(".")[0]].__path__
"""Where Python looks for them; more than one in a checkout without links."""
ROOT = os.path.abspath(os.path.dirname(FOLDERS[0]))
"""The folder that has to be on `sys.path` for `import headrace`."""
CODE = (
    os.path.join(FOLDERS[0], ""),
    *(os.path.join(folder, part, "") for folder in FOLDERS for part in PARTS),
)
"""How the names of our files begin."""


def on_linux() -> bool:
    """True where Linux's own means may be used: there, unless `HEADRACE_PLATFORM=plain` switches them off."""
    return sys.platform == "linux" and os.environ.get("HEADRACE_PLATFORM") != "plain"
