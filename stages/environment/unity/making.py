"""From the YAML to a group of Unity programs: what is started, on which ports, with which seeds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from config import RunConfig
from stages.environment.parameters import EpisodeParameters
from stages.environment.unity.group import UnityGroup
from stages.environment.unity.instance import UnityInstance, Worker
from stages.environment.unity.side_channel_bridge import Telling
from stages.error_text import describe_error
from stages.errors import LoadError, blaming
from stages.loading import load_callable
from stages.restarts import RestartBudget
from stages.unity.executable import Executable
from stages.unity.worker import EDITOR_PORT, UnityWorker

RUN_LOGS = "run_logs"
"""Where in a run's folder Unity's own logs go, beside those of the run."""


def make_unity_group(config: RunConfig, seed: int, replica: int = 0, run_folder: Path | None = None) -> UnityGroup:
    """Make the group that `env_settings` describes; nothing is started before its first reset.

    Args:
        config: the run's configuration.
        seed: the run's; worker n's is n more.
        replica: of the actor; its workers' numbers follow those of the replica before.
        run_folder: where Unity's logs go; None: where Unity likes.

    Raises:
        LoadError: if a side channel can't be loaded.
    """
    settings = config.env_settings
    channels = [_channel_maker(config, index) for index in range(len(settings.side_channels))]

    def make(index: int, parameters: EpisodeParameters | None) -> UnityInstance:
        worker_id = replica * settings.num_envs + index
        connect = partial(_connect, config, worker_id, seed, run_folder, channels, parameters=parameters)
        return UnityInstance(worker_id, connect, blind=worker_id == first_without_graphics(config))

    return UnityGroup(
        make,
        settings.num_envs,
        lambda: RestartBudget(
            settings.max_lifetime_restarts, settings.restarts_rate_limit_n, settings.restarts_rate_limit_period_s
        ),
        editor=settings.env_path is None,
        in_step=config.pipeline.deterministic,
    )


def _connect(
    config: RunConfig,
    worker_id: int,
    seed: int,
    run_folder: Path | None,
    channels: list[Callable[[], Any]],
    parameters: EpisodeParameters | None,
) -> tuple[Worker, Telling]:
    settings = config.env_settings
    telling = Telling(config.engine_settings, parameters, worker_id, seed, [make() for make in channels])
    worker = UnityWorker(
        worker_id,
        _port(config, worker_id),
        _executable(config, worker_id, run_folder),
        (seed + worker_id) & 0x7FFFFFFF,  # Unity's are int32
        settings.num_areas,
        settings.timeout_wait,
        telling.channels,
    )
    return worker, telling


def first_without_graphics(config: RunConfig) -> int | None:
    """The first worker that is started without graphics: one warning will do."""
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


def find_side_channel(config: RunConfig, index: int) -> Callable[[], Any]:
    """What one of `env_settings.side_channels` names.

    Raises:
        LoadError: if it can't be found or is no class.
    """
    reference = config.env_settings.side_channels[index]
    with blaming("env_settings", "side_channels", index):
        return load_callable(reference, config.source_folder, "side channel", "a class")


def _channel_maker(config: RunConfig, index: int) -> Callable[[], Any]:
    what = f"side channel {config.env_settings.side_channels[index]!r}"
    found = find_side_channel(config, index)

    def make() -> Any:
        try:
            made = found()
        except Exception as error:
            raise LoadError(f"{what}: making one failed: {describe_error(error)}") from error
        missing = [name for name in ("channel_id", "message_queue", "on_message_received") if not hasattr(made, name)]
        if missing:
            raise LoadError(
                f"{what}: a {type(made).__name__} is no side channel, it has no {', '.join(missing)}; derive it from "
                "stages.unity.side_channels.SideChannel"
            )
        return made

    return make
