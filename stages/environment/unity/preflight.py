"""The check of a Unity run before it starts. Importing this module needs no gRPC."""

from __future__ import annotations

from pathlib import Path

from config import RunConfig
from stages.unity.executable import find_executable


def check_executable(config: RunConfig) -> None:
    """Check that the executable is there, if one is given.

    Raises:
        UnityRefused: if it is not.
    """
    if config.env_settings.env_path is not None:
        find_executable(Path(config.env_settings.env_path))
