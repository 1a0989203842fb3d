"""Makes a group of Unity programs from the YAML, with ports, seeds and side channels, and checks the executable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from headrace.config import RunConfig
from headrace.stages.activity import preparing
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.programs.group import RUN_LOGS, ProgramGroup, make_program_group
from headrace.stages.environments.programs.process import find_executable
from headrace.stages.environments.programs.worker import worker_settings
from headrace.stages.environments.unity.executable import Executable
from headrace.stages.environments.unity.instance import UnityInstance, Worker
from headrace.stages.environments.unity.side_channels.standard import SideChannelBridge
from headrace.stages.errors import LoadError, blaming, describe_error, type_of
from headrace.stages.loading import load_callable

_OF_CHANNELS = ("channel_id", "message_queue", "on_message_received")
"""Attributes that every side channel has, whatever its class."""


def make_unity_group(request: EnvironmentRequest) -> ProgramGroup:
    """Make the group that `env_settings` describes; its first reset starts the programs.

    Worker n gets the run's seed + n.

    Raises:
        LoadError: if a side channel can't be loaded.
    """
    config = request.config
    settings = config.env_settings
    channels = [channel_maker(config, index) for index in range(len(settings.side_channels))]

    def make(index: int, parameters: EpisodeParameters | None) -> UnityInstance:
        worker_id = request.replica * settings.num_envs + index
        connect = partial(_connect, request, worker_id, channels, parameters)
        return UnityInstance(worker_id, connect, without_graphics=worker_id == first_without_graphics(config))

    return make_program_group(config, settings.num_envs, make, waits_for_restart=False)


@preparing()
def _connect(
    request: EnvironmentRequest,
    worker_id: int,
    channels: list[Callable[[], Any]],
    parameters: EpisodeParameters | None,
) -> tuple[Worker, SideChannelBridge]:
    from headrace.stages.environments.unity.worker import EDITOR_PORT, UnityWorker  # imports gRPC, which no check needs

    config, env, seed = request.config, request.config.env_settings, request.seed
    bridge = SideChannelBridge(config.engine_settings, parameters, worker_id, seed, [make() for make in channels])
    settings = worker_settings(config, worker_id, seed, patient=False)
    settings = replace(
        settings,
        port=EDITOR_PORT if env.env_path is None else settings.port,
        seed=settings.seed & 0x7FFFFFFF,  # Unity's seeds are int32
    )
    executable = _executable(config, worker_id, request.run_folder)
    worker = UnityWorker(settings, executable, env.num_areas, bridge.channels, env.listen)
    return worker, bridge


def first_without_graphics(config: RunConfig) -> int | None:
    """Return the number of the first worker without graphics, which alone logs a warning. None if all have graphics."""
    if config.env_settings.env_path is None:
        return None
    return 0 if config.engine_settings.no_graphics else 1 if config.engine_settings.no_graphics_monitor else None


def _executable(config: RunConfig, worker_id: int, run_folder: Path | None) -> Executable | None:
    settings, engine = config.env_settings, config.engine_settings
    if settings.env_path is None:
        return None
    return Executable(
        settings.env_path,
        settings.env_args or (),
        run_folder / RUN_LOGS / f"Player-{worker_id}.log" if run_folder is not None else None,
        config.debug,
        no_graphics=engine.no_graphics or (engine.no_graphics_monitor and worker_id > 0),
    )


def check_executable(config: RunConfig) -> None:
    """If an executable is given, check that it exists.

    Raises:
        ProgramRefused: if the executable does not exist.
    """
    if config.env_settings.env_path is not None:
        find_executable(Path(config.env_settings.env_path), "Unity")


def named_channels(config: RunConfig) -> Iterator[Callable[[], Any]]:
    """Yield functions that import the side channels; each raises a LoadError if the import fails."""
    for index in range(len(config.env_settings.side_channels)):
        yield partial(_find_channel, config, index)


def channel_maker(config: RunConfig, index: int) -> Callable[[], Any]:
    """Return a function that makes a side channel of the user's class.

    Raises:
        LoadError: if the named object can't be found or is not a class.
    """
    what = f"side channel {config.env_settings.side_channels[index]!r}"
    found = _find_channel(config, index)

    def make() -> Any:
        try:
            channel = found()
        except Exception as error:
            raise LoadError(f"{what}: creating it failed: {describe_error(error)}") from error
        missing = [name for name in _OF_CHANNELS if not hasattr(channel, name)]
        if missing:
            raise LoadError(
                f"{what}: {type_of(channel)} is not a side channel: it has no {', '.join(missing)}; derive it from "
                "headrace.unity.SideChannel"
            )
        return channel

    return make


def _find_channel(config: RunConfig, index: int) -> Callable[[], Any]:
    reference = config.env_settings.side_channels[index]
    with blaming("env_settings", "side_channels", index):
        return load_callable(reference, config.source_folder, "side channel", "a class")
