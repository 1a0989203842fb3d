"""From the YAML to a group of games that speak the open protocol: programs, ports, seeds."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from headrace.config import RunConfig
from headrace.config.open_protocol import OpenProtocolSettings
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.open_protocol.instance import OpenInstance
from headrace.stages.environments.open_protocol.worker import GameProgram, OpenWorker
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.programs.group import ProgramGroup
from headrace.stages.restarts import RestartBudget

RUN_LOGS = "run_logs"
"""Subfolder of a run's folder for games' logs."""


def make_open_group(request: EnvironmentRequest) -> ProgramGroup:
    """Make the group that `environment` and `env_settings` describe; nothing is started before its first reset.

    Game n has the run's seed + n. The end of a game that its user starts does not end a run: its next start goes on.
    """
    config, env = request.config, request.config.env_settings

    def make(index: int, parameters: EpisodeParameters | None) -> OpenInstance:
        worker_id = request.first_instance + index
        connect = partial(_connect, config, worker_id, request.seed, request.run_folder)
        return OpenInstance(worker_id, connect, index, parameters)

    return ProgramGroup(
        make,
        request.settings.num_envs,
        lambda: RestartBudget(env.max_lifetime_restarts, env.restarts_rate_limit_n, env.restarts_rate_limit_period_s),
        editor=env.env_path is None,
        on_close="restart" if env.env_path is None else env.on_close,
        in_step=config.pipeline.deterministic,
    )


def check_game(config: RunConfig) -> None:
    """Check, before a run starts, that its program is there, and what WebSockets need.

    Raises:
        ProgramRefused: if something is not.
    """
    if config.env_settings.env_path is not None:
        GameProgram(config.env_settings.env_path).command("tcp", 0, 0)


def _connect(config: RunConfig, worker_id: int, seed: int, run_folder: Path | None, again: bool) -> OpenWorker:
    env = config.env_settings
    program = None
    if env.env_path is not None:
        log_file = None if run_folder is None else run_folder.absolute() / RUN_LOGS / f"Game-{worker_id}.log"
        program = GameProgram(env.env_path, env.env_args or (), log_file, config.debug)
    port = env.base_port + worker_id if env.base_port else 0
    return OpenWorker(
        *(worker_id, _transport(config), port, program, seed + worker_id),
        *(env.timeout_wait, env.max_message_mib),
        patient=again,
    )


def _transport(config: RunConfig) -> str:
    settings = config.environment
    assert isinstance(settings, OpenProtocolSettings), "the table of environment kinds names this model"
    return settings.transport
