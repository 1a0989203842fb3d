"""Checks before a run starts anything or creates its folder.

The configuration itself was already checked when it was loaded. This module checks what the configuration names:
recordings, policies, demonstrations, executables, modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from headrace.config import RunConfig
from headrace.config.environment_kinds import load_entry
from headrace.config.errors import dotted
from headrace.config.host_kinds import HOST_KINDS
from headrace.config.section_checks import lacking_programs, persons_in
from headrace.pipeline.common.errors import RunError, RunFolderError
from headrace.pipeline.common.graph import acts
from headrace.pipeline.main.fixed_settings import check_settings
from headrace.pipeline.main.references import in_place, names_of_main
from headrace.pipeline.policies.export import NEWEST, check_undamaged
from headrace.pipeline.policies.inference import plays_given_models
from headrace.pipeline.policies.ml_agents import left_checkpoint, left_steps
from headrace.pipeline.policies.warm_start import initial_policy
from headrace.pipeline.run_folder.checkpoint import CheckpointError, holds_checkpoint, newest_checkpoint
from headrace.pipeline.run_folder.folder import check_there_is_a_run, unusable
from headrace.pipeline.run_folder.names import check_behavior_name
from headrace.queues.errors import StreamError
from headrace.stages.environments.given import find_given, is_given
from headrace.stages.errors import StageError, blaming
from headrace.surroundings import absolute


def check_run(config: RunConfig) -> None:
    """Check that a run can start.

    Raises:
        RunError: if it can't; the message says why.
        RunFolderError: if the run to resume or play does not exist.
    """
    if acts(config):
        _check_environment(config)
    _check_resumed(config)
    mistakes = [*_mistakes(config, _PARTS), *names_of_main(config)]
    if mistakes:
        raise RunError("\n".join(mistakes))


def missing_parts(config: RunConfig) -> list[str]:
    """Return the files, runs, packages and people that a run needs but does not have, each with a remedy."""
    return _mistakes(config, (_check_resumed, *_PARTS))


def _mistakes(config: RunConfig, checks: Iterable[Callable[[RunConfig], None]]) -> list[str]:
    found = []
    for check in checks:
        try:
            check(config)
        except (RunError, RunFolderError) as error:
            found.append(str(error))
    return found


def _check_environment(config: RunConfig) -> None:
    lacking = [in_place(config, each.path, f"{dotted(each.path)}: {each.message}") for each in lacking_programs(config)]
    if lacking:
        raise RunError("\n".join(lacking))
    check, settings = config.environment_kind.preflight, config.environment
    try:
        if settings is not None and is_given(settings.factory):
            with blaming("environment", "factory"):
                find_given(settings.factory)
        if check is not None:
            load_entry(check)(config)
    except StageError as error:
        raise RunError(in_place(config, error.key, str(error))) from error


def _check_demonstrations(config: RunConfig) -> None:
    """Check that the demonstrations to imitate exist, before any engine is started."""
    if config.checkpoint_settings.inference:
        return
    for name, settings in config.behaviors.items():
        sources = [settings.hyperparameters, settings.behavioral_cloning, *settings.signals.values()]
        for path in dict.fromkeys(getattr(source, "demo_path", None) for source in sources):
            if path is not None and settings.learns:
                _check_demonstration(path, name, config.source_folder)


def _check_demonstration(path: str, behavior: str, folder: Path | None) -> None:
    from headrace.stages.trainer.imitation.loading import check_there

    try:
        check_there(path, behavior, folder)
    except (StageError, OSError) as error:
        raise RunError(str(error)) from error


def _check_resumed(config: RunConfig) -> None:
    """Check that the run to resume or to play exists, and that its checkpoint fits the settings."""
    settings = config.checkpoint_settings
    if not (settings.resume or settings.inference) or (settings.inference and plays_given_models(config)):
        return
    folder = absolute(settings.results_dir) / settings.run_id
    if not settings.inference:
        _check_origin(folder)
    check_there_is_a_run(settings.results_dir, settings.run_id)
    if not settings.inference:
        with suppress(CheckpointError):  # reported when the run chooses a checkpoint
            checkpoint = newest_checkpoint(folder / "checkpoints")
            if checkpoint is not None:
                check_settings(config, checkpoint)


def _check_starts(config: RunConfig) -> None:
    """Check that the policies that a new run starts from exist and are undamaged."""
    if config.checkpoint_settings.resume or config.checkpoint_settings.inference:
        return
    for name, settings in config.behaviors.items():
        if settings.learns and (path := initial_policy(config, name)) is not None:
            try:
                check_undamaged(path)
            except (OSError, ValueError) as error:
                raise RunError(str(error)) from error


def _check_names(config: RunConfig) -> None:
    """Check that a new run can save progress under its behaviours' names."""
    if config.checkpoint_settings.resume or config.checkpoint_settings.inference:
        return
    for name in config.behaviors:
        try:
            check_behavior_name(name)
        except RunFolderError as error:
            raise RunError(in_place(config, ("behaviors", name), str(error))) from error


def _check_host_kinds(config: RunConfig) -> None:
    """Check that the packages needed by the run's host kinds are installed."""
    for which, hosts in config.pipeline.hosts:
        needed = "" if hosts.kind is None else HOST_KINDS[hosts.kind].extra
        if needed and find_spec(needed) is None:
            raise RunError(
                f"pipeline.hosts.{which}.kind: '{hosts.kind}' needs the package {needed}, which is not installed: run "
                f'`pip install "headrace[{needed}]"`, or use a different kind'
            )


def _check_persons(config: RunConfig) -> None:
    """Check that people who play can reach the live page and see the game there."""
    found = persons_in(config)
    if not found:
        return
    from headrace.stages.exhibition.making import why_not_shown

    where = f"{dotted(found[0][0])}.brain: 'player'"
    if refused := why_not_shown(config):
        raise RunError(f"{where} needs a game that the live page can show: {refused}")
    if config.monitor is None or not config.monitor.control:
        raise RunError(
            f"{where} stands for a person on the live page: start the run with --monitor-control (or set 'monitor: "
            f"{{control: true}}'), and play at the address that it prints"
        )


def _check_origin(run_folder: Path) -> None:
    """Check that a trained run to resume has a checkpoint; otherwise training would overwrite its policies."""
    try:
        exports = sorted(run_folder.glob(f"*/{NEWEST}"))
        ours = [path for path in exports if left_checkpoint(run_folder, path.parent.name) is None]
        if holds_checkpoint(run_folder / "checkpoints"):
            return
        if not ours:
            left_steps(run_folder)  # refuses an unusable checkpoint before anything is written
            return
    except OSError as error:
        raise unusable(run_folder, error) from error
    raise RunError(
        f"{run_folder} has trained policies ({ours[0]}), but {run_folder / 'checkpoints'} holds no checkpoint: none "
        "could be written, or they were removed. Resuming would train from step 0 and overwrite the policies. Restore "
        "the checkpoints from a copy; or start a new run with a different --run-id from the newest policy, with "
        f"--initialize-from={run_folder.name}; or start over with --force, which archives this run"
    )


def _check_streams(config: RunConfig) -> None:
    """Check that the recordings exist and are readable."""
    if config.replay is None:
        return
    from headrace.stages.replay.source import recorded_edge

    try:
        recorded_edge(config.replay.streams)
    except (StageError, StreamError, OSError) as error:
        raise RunError(str(error)) from error


_PARTS = (
    *(_check_names, _check_streams, _check_demonstrations, _check_starts),
    *(_check_host_kinds, _check_persons),
)
"""Checks for everything that a run needs apart from its environment and the run that it resumes."""
