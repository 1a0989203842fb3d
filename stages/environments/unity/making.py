"""From the YAML to a group of Unity programs: executables, ports, seeds, side channels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from headrace.config import RunConfig
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.programs.group import ProgramGroup
from headrace.stages.environments.unity.executable import Executable
from headrace.stages.environments.unity.instance import UnityInstance, Worker
from headrace.stages.environments.unity.preflight import channel_maker
from headrace.stages.environments.unity.side_channel_bridge import SideChannelBridge
from headrace.stages.environments.unity.worker import EDITOR_PORT, UnityWorker
from headrace.stages.restarts import RestartBudget

RUN_LOGS = "run_logs"
"""Subfolder of a run's folder for Unity's own logs."""


def make_unity_group(request: EnvironmentRequest) -> ProgramGroup:
    """Make the group that `env_settings` describes; nothing is started before its first reset.

    Worker n has the run's seed + n.

    Raises:
        LoadError: if a side channel can't be loaded.
    """
    config = request.config
    settings = config.env_settings
    channels = [channel_maker(config, index) for index in range(len(settings.side_channels))]

    def make(index: int, parameters: EpisodeParameters | None) -> UnityInstance:
        worker_id = request.replica * settings.num_envs + index
        connect = partial(
            _connect, config, worker_id, request.seed, request.run_folder, channels, parameters=parameters
        )
        return UnityInstance(worker_id, connect, without_graphics=worker_id == first_without_graphics(config))

    return ProgramGroup(
        make,
        settings.num_envs,
        lambda: RestartBudget(
            settings.max_lifetime_restarts, settings.restarts_rate_limit_n, settings.restarts_rate_limit_period_s
        ),
        editor=settings.env_path is None,
        on_close=settings.on_close,
        in_step=config.pipeline.deterministic,
    )


def _connect(
    config: RunConfig,
    worker_id: int,
    seed: int,
    run_folder: Path | None,
    channels: list[Callable[[], Any]],
    parameters: EpisodeParameters | None,
) -> tuple[Worker, SideChannelBridge]:
    settings = config.env_settings
    bridge = SideChannelBridge(config.engine_settings, parameters, worker_id, seed, [make() for make in channels])
    worker = UnityWorker(
        worker_id,
        _port(config, worker_id),
        _executable(config, worker_id, run_folder),
        (seed + worker_id) & 0x7FFFFFFF,  # Unity's seeds are int32
        settings.num_areas,
        settings.timeout_wait,
        bridge.channels,
        settings.listen,
        settings.max_message_mib,
    )
    return worker, bridge


def first_without_graphics(config: RunConfig) -> int | None:
    """The first worker without graphics, as one warning is enough."""
    if config.env_settings.env_path is None:
        return None
    return 0 if config.engine_settings.no_graphics else 1 if config.engine_settings.no_graphics_monitor else None


def _port(config: RunConfig, worker_id: int) -> int:
    if config.env_settings.env_path is None:
        return EDITOR_PORT
    base = config.env_settings.base_port
    return base + worker_id if base else 0


def _executable(config: RunConfig, worker_id: int, run_folder: Path | None) -> Executable | None:
    settings, engine = config.env_settings, config.engine_settings
    if settings.env_path is None:
        return None
    return Executable(
        Path(settings.env_path),
        settings.env_args or (),
        no_graphics=engine.no_graphics or (engine.no_graphics_monitor and worker_id > 0),
        log_folder=run_folder / RUN_LOGS if run_folder is not None else None,
        show_output=config.debug,
    )
