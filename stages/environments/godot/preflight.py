"""The check of a run of Godot before it starts: its build."""

from __future__ import annotations

from pathlib import Path

from headrace.config import RunConfig
from headrace.stages.environments.godot.build import ENGINE
from headrace.stages.environments.programs.executables import find_executable


def check_build(config: RunConfig) -> None:
    """Check that the build is there, if one is given.

    Raises:
        ProgramRefused: if it is not.
    """
    if config.env_settings.env_path is not None:
        find_executable(Path(config.env_settings.env_path), ENGINE)
