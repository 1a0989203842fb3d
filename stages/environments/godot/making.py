"""From the YAML to a group of games made with Godot: the check of its build, ports, seeds, roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from headrace.config import RunConfig
from headrace.config.environment import GodotSettings
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.godot.announcement import Announcement, behaviors_of_agents
from headrace.stages.environments.godot.instance import GodotInstance, ParameterCalls
from headrace.stages.environments.godot.worker import DEFAULT_PORT, ENGINE, GodotBuild, GodotWorker
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.programs.group import RUN_LOGS, ProgramGroup, make_program_group
from headrace.stages.environments.programs.process import find_executable
from headrace.stages.environments.programs.worker import worker_settings


def make_godot_group(request: EnvironmentRequest) -> ProgramGroup:
    """Make the group that `environment` and `env_settings` describe; nothing is started before its first reset.

    Worker n has the run's seed + n. The editor's Stop does not end a run: its next Play goes on.
    """
    config, settings = request.config, _settings(request.config)
    env = config.env_settings

    def make(index: int, parameters: EpisodeParameters | None) -> GodotInstance:
        worker_id = request.first_instance + index
        told = ParameterCalls(index, parameters, settings.calls, f"Godot worker {worker_id}")
        connect = partial(_connect, config, worker_id, request.seed, request.run_folder)
        roles = partial(_roles, config)
        return GodotInstance(worker_id, connect, roles, settings.pictures, settings.info_keys, told)

    return make_program_group(config, settings.num_envs, make, "restart" if env.env_path is None else env.on_close)


def _connect(
    config: RunConfig,
    worker_id: int,
    seed: int,
    run_folder: Path | None,
    parameters: Mapping[str, float],
    again: bool,
) -> GodotWorker:
    settings = worker_settings(config, worker_id, seed, again)
    if config.env_settings.env_path is None and not settings.port:
        settings = replace(settings, port=DEFAULT_PORT)
    return GodotWorker(settings, _build(config, worker_id, run_folder, parameters))


def _build(
    config: RunConfig, worker_id: int, run_folder: Path | None, parameters: Mapping[str, float]
) -> GodotBuild | None:
    env, engine, settings = config.env_settings, config.engine_settings, _settings(config)
    if env.env_path is None:
        return None
    log_file = run_folder.absolute() / RUN_LOGS / f"Godot-{worker_id}.log" if run_folder is not None else None
    return GodotBuild(
        env.env_path,
        env.env_args or (),
        None if config.debug else log_file,
        config.debug,
        headless=engine.no_graphics or (engine.no_graphics_monitor and worker_id > 0),
        speedup=engine.time_scale,
        fixed_fps=settings.fixed_fps,
        action_repeat=None if settings.action_repeat is None else settings.action_repeat.steps,
        parameters=parameters,
    )


def _roles(config: RunConfig, announcement: Announcement, owner: str) -> list[tuple[str, int]]:
    settings = _settings(config)
    return behaviors_of_agents(announcement, owner, settings.behaviors, settings.behavior, config.behaviors)


def _settings(config: RunConfig) -> GodotSettings:
    settings = config.environment
    assert isinstance(settings, GodotSettings), "the table of environment kinds names this model"
    return settings


def check_build(config: RunConfig) -> None:
    """Check that the build is there, if one is given.

    Raises:
        ProgramRefused: if it is not.
    """
    if config.env_settings.env_path is not None:
        find_executable(Path(config.env_settings.env_path), ENGINE)
