"""How tests start the stand-in Unity, and read what it reports."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from stages.unity.executable import Executable

BUILD = Path(__file__).with_name("unity_client") / "unity_build"
"""Without its extension, as users give it."""

os.environ["UNITY_CLIENT_PYTHON"] = sys.executable


class NoChannels:
    """Side channels with nothing to say."""

    def outgoing(self) -> bytes:
        return b""

    def incoming(self, data: bytes) -> None:
        pass


def build(folder: Path, *arguments: str) -> Executable:
    """The stand-in Unity, whose logs and reports go to the folder."""
    return Executable(BUILD, (*arguments, "--report", str(folder)), log_folder=folder)


def reports(folder: Path) -> list[dict[str, Any]]:
    """What all stand-ins that have ended by themselves say, oldest first."""
    found = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(path.read_text()) for path in found]
