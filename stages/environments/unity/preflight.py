"""The checks of a Unity run before it starts: its executable, and the user's own side channels. Imports no gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from headrace.config import RunConfig
from headrace.stages.environments.programs.executables import find_executable
from headrace.stages.error_text import describe_error
from headrace.stages.errors import LoadError, blaming
from headrace.stages.loading import load_callable


def check_executable(config: RunConfig) -> None:
    """Check that the executable is there, if one is given.

    Raises:
        ProgramRefused: if it is not.
    """
    if config.env_settings.env_path is not None:
        find_executable(Path(config.env_settings.env_path), "Unity")


def named_channels(config: RunConfig) -> Iterator[Callable[[], Any]]:
    """Yield calls that import the side channels; each raises a LoadError if it can't."""
    for index in range(len(config.env_settings.side_channels)):
        yield partial(_find_channel, config, index)


def channel_maker(config: RunConfig, index: int) -> Callable[[], Any]:
    """Return a function that makes a side channel of the user's class.

    Raises:
        LoadError: if what is named can't be found or is no class.
    """
    what = f"side channel {config.env_settings.side_channels[index]!r}"
    found = _find_channel(config, index)

    def make() -> Any:
        try:
            made = found()
        except Exception as error:
            raise LoadError(f"{what}: making one failed: {describe_error(error)}") from error
        missing = [name for name in ("channel_id", "message_queue", "on_message_received") if not hasattr(made, name)]
        if missing:
            raise LoadError(
                f"{what}: a {type(made).__name__} is no side channel, it has no {', '.join(missing)}; derive it from "
                "headrace.unity.SideChannel"
            )
        return made

    return make


def _find_channel(config: RunConfig, index: int) -> Callable[[], Any]:
    reference = config.env_settings.side_channels[index]
    with blaming("env_settings", "side_channels", index):
        return load_callable(reference, config.source_folder, "side channel", "a class")
