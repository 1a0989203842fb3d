"""Makes a group of Godot games from the YAML, with their ports, seeds and roles, and checks that the build exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from headrace.config import RunConfig
from headrace.config.environment import GodotSettings
from headrace.stages.activity import preparing
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.godot.announcement import behaviors_of_agents
from headrace.stages.environments.godot.instance import GodotInstance, ParameterCalls
from headrace.stages.environments.godot.worker import DEFAULT_PORT, ENGINE, GodotBuild, GodotWorker
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.programs.group import RUN_LOGS, ProgramGroup, make_program_group
from headrace.stages.environments.programs.process import find_executable
from headrace.stages.environments.programs.worker import worker_settings


def make_godot_group(request: EnvironmentRequest) -> ProgramGroup:
    """Make the group that `environment` and `env_settings` describe; its first reset starts the games.

    Worker n gets the run's seed + n. Pressing Stop in the editor does not end a run; pressing Play continues it.
    """
    config, settings = request.config, _settings(request.config)
    roles = partial(behaviors_of_agents, roles=settings.behaviors, unnamed=settings.behavior, listed=config.behaviors)

    def make(index: int, parameters: EpisodeParameters | None) -> GodotInstance:
        worker_id = request.first_instance + index
        calls = ParameterCalls(index, parameters, settings.calls, f"Godot worker {worker_id}")
        connect = partial(_connect, request, worker_id)
        return GodotInstance(worker_id, connect, roles, settings.pictures, settings.info_keys, calls)

    return make_program_group(config, settings.num_envs, make, waits_for_restart=True)


@preparing()
def _connect(request: EnvironmentRequest, worker_id: int, parameters: Mapping[str, float], again: bool) -> GodotWorker:
    settings = worker_settings(request.config, worker_id, request.seed, again)
    if request.config.env_settings.env_path is None:
        return GodotWorker(replace(settings, port=settings.port or DEFAULT_PORT), None)
    return GodotWorker(settings, _build(request, request.config.env_settings.env_path, worker_id, parameters))


def _build(request: EnvironmentRequest, path: str, worker_id: int, parameters: Mapping[str, float]) -> GodotBuild:
    config, engine, settings = request.config, request.config.engine_settings, _settings(request.config)
    log_file = None
    if request.run_folder is not None and not config.debug:
        log_file = request.run_folder.absolute() / RUN_LOGS / f"Godot-{worker_id}.log"
    return GodotBuild(
        path,
        config.env_settings.env_args or (),
        log_file,
        config.debug,
        headless=engine.no_graphics or (engine.no_graphics_monitor and worker_id > 0),
        speedup=engine.time_scale,
        fixed_fps=settings.fixed_fps,
        action_repeat=None if settings.action_repeat is None else settings.action_repeat.steps,
        parameters=parameters,
    )


def _settings(config: RunConfig) -> GodotSettings:
    settings = config.environment
    assert isinstance(settings, GodotSettings), "the table of environment kinds names this model"
    return settings


def check_build(config: RunConfig) -> None:
    """If a build is given, check that it exists.

    Raises:
        ProgramRefused: if the build does not exist.
    """
    if config.env_settings.env_path is not None:
        find_executable(Path(config.env_settings.env_path), ENGINE)
