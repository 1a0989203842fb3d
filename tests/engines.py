"""Real engines that tests run games in, and the marks of tests that need one."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

GODOT3 = shutil.which(os.environ.get("GODOT", "godot3-server"))
GODOT4 = shutil.which(os.environ.get("GODOT4", "godot"))


def _is_version_4(engine: str | None) -> bool:
    if engine is None:
        return False
    told = subprocess.run([engine, "--headless", "--version"], capture_output=True, text=True)
    return told.stdout.startswith("4.")


needs_godot3 = pytest.mark.skipif(GODOT3 is None, reason="needs Godot 3: apt-get install godot3-server")
needs_godot4 = pytest.mark.skipif(
    not _is_version_4(GODOT4),
    reason="needs Godot 4 as `godot`, or its path in GODOT4: docs/godot.md, 'Tested versions'",
)
