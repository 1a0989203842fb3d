"""Checks before a run starts anything or creates its folder.

The configuration itself was already checked when it was loaded. This module checks what the configuration names:
recordings, policies, demonstrations, executables, and modules, classes and functions. Finding a name means importing
its module. `--validate` checks all names. A run checks the names that it uses in the main process; the hosts import the
others, and report the same mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.config import BehaviorSettings, RunConfig
from headrace.config.environment_kinds import load_entry
from headrace.config.errors import KeyPath, dotted
from headrace.config.host_kinds import HOST_KINDS
from headrace.config.reward_signals import OwnSignalSettings
from headrace.config.section_checks import lacking_programs, persons_in
from headrace.config.trainers import TRAINERS
from headrace.pipeline.common.errors import RunError, RunFolderError
from headrace.pipeline.common.graph import ACTOR, LEAGUE, MAIN, actor_names, acts, part_name
from headrace.pipeline.common.process import allow_open_files, lacks_torch
from headrace.pipeline.control import HostFailed
from headrace.pipeline.diagnosis.rules import load_rules
from headrace.pipeline.hosts.process import FILES_PER_BEHAVIOR, SPARE_BEHAVIORS
from headrace.pipeline.main.fixed_settings import check_settings
from headrace.pipeline.main.self_play import check_samplers
from headrace.pipeline.policies.export import NEWEST
from headrace.pipeline.policies.inference import check_brains, plays_given_models
from headrace.pipeline.policies.ml_agents import left_checkpoint, left_steps
from headrace.pipeline.policies.tensor_file import check_undamaged
from headrace.pipeline.policies.warm_start import initial_policy
from headrace.pipeline.reporting.writers import check_writers
from headrace.pipeline.roles.stages import check_stages
from headrace.pipeline.run_folder.checkpoint import Checkpoint, CheckpointError, holds_checkpoint, newest_checkpoint
from headrace.pipeline.run_folder.folder import check_there_is_a_run, unusable
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.pipeline.run_folder.remote_copy import prepare_copy
from headrace.queues.errors import StreamError
from headrace.stages.environments.given import find_given, is_given
from headrace.stages.errors import StageError, blaming
from headrace.stages.evaluation.opponents import check_opponents
from headrace.stages.league.pool import FOLDER, check_members
from headrace.startup_context import absolute


def check_run(config: RunConfig) -> None:
    """Check that a run can start.

    Raises:
        RunError: if it can't; the message says why.
        RunFolderError: if the run to resume or play does not exist.
    """
    if acts(config):
        _check_environment(config)
    _check_resumed(config)
    mistakes = [*_missing(config), *names_of_main(config)]
    if mistakes:
        raise RunError("\n".join(mistakes))


def missing_parts(config: RunConfig) -> Iterator[str]:
    """Yield the files, runs, packages and people that a run needs but does not have, each with a remedy."""
    try:
        if not prepare_copy(config, fetches=False):
            _check_resumed(config)
    except (RunError, RunFolderError) as error:
        yield str(error)
    yield from _missing(config)


def _missing(config: RunConfig) -> Iterator[str]:
    """Yield everything that a run lacks, apart from its environment and the run that it resumes."""
    settings = config.checkpoint_settings
    yield from _missing_streams(config)
    if not settings.inference:
        yield from _missing_demonstrations(config)
    if not (settings.resume or settings.inference):
        yield from _missing_starts(config)
    yield from _missing_packages(config)
    yield from _missing_persons(config)
    actors = len(actor_names(config)) if config.pipeline.hosts.actors.kind == "process" and acts(config) else 0
    names = len(config.behaviors) + SPARE_BEHAVIORS
    needed = 30 + actors * names * FILES_PER_BEHAVIOR
    if (limit := allow_open_files(2 * needed)) < needed:
        where, cure = "pipeline.hosts.actors.replicas", "raise the hard limit (`ulimit -Hn`), or run fewer actors"
        yield f"{where}: {actors} actors need {needed} open files in main, but the system allows {limit:.0f}: {cure}"


def _check_environment(config: RunConfig) -> None:
    lacking = [
        config.in_place(finding.path, f"{dotted(finding.path)}: {finding.message}")
        for finding in lacking_programs(config)
    ]
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
        raise RunError(config.in_place(error.key, str(error))) from error


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
                _check_pool(checkpoint)


def _check_pool(checkpoint: Checkpoint) -> None:
    """Check the files of a league's pool, because they are part of the checkpoint."""
    for home, state in (checkpoint.read(part_name(LEAGUE, MAIN)) or {}).items():
        if isinstance(state, Mapping) and "members" in state:
            folder = checkpoint.folder.parent.parent
            try:
                check_members(behavior_folder(folder, home) / FOLDER, state["members"])
            except StageError as error:
                raise RunError(f"{error} (checkpoint {checkpoint.number} needs it)") from error


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


def _missing_streams(config: RunConfig) -> Iterator[str]:
    if config.replay is None:
        return
    from headrace.stages.replay import recorded_edge

    try:
        recorded_edge(config.replay.streams)
    except (StageError, StreamError, OSError) as error:
        yield str(error)


def _missing_demonstrations(config: RunConfig) -> Iterator[str]:
    """Yield the demonstrations to imitate that do not exist, before any engine is started."""
    for name, settings in config.behaviors.items():
        sources = [settings.hyperparameters, settings.behavioral_cloning, *settings.signals.values()]
        for path in dict.fromkeys(getattr(source, "demo_path", None) for source in sources):
            if path is not None and settings.learns:
                from headrace.stages.trainer.imitation.loading import needs_spec

                try:
                    needs_spec(path, name, config.source_folder)  # raises an error if there are no readable files
                except (StageError, StreamError, OSError) as error:
                    yield str(error)


def _missing_starts(config: RunConfig) -> Iterator[str]:
    """Yield the policies to start from that do not exist or are damaged."""
    for name, settings in config.behaviors.items():
        try:
            if settings.learns and (path := initial_policy(config, name)) is not None:
                check_undamaged(path)
        except (RunError, RunFolderError, OSError, ValueError) as error:
            yield str(error)


def _missing_packages(config: RunConfig) -> Iterator[str]:
    """Yield PyTorch and the host kinds' packages, if the run needs them and they are not installed."""
    learns = any(settings.learns for _, settings in config.blocks()) and not config.checkpoint_settings.inference
    if learns and (lacking := lacks_torch("training")):
        yield lacking
    for which, hosts in config.pipeline.hosts:
        needed = "" if hosts.kind is None else HOST_KINDS[hosts.kind].extra
        if needed and find_spec(needed) is None:
            yield (
                f"pipeline.hosts.{which}.kind: '{hosts.kind}' needs the package {needed}, which is not installed: run "
                f'`pip install "headrace[{needed}]"`, or use a different kind'
            )


def _missing_persons(config: RunConfig) -> Iterator[str]:
    """Yield why people who play can't reach the live page or see the game there."""
    persons = persons_in(config)
    if not persons:
        return
    where = f"{dotted(persons[0][0])}.brain: 'player'"
    if refused := config.environment_kind.not_shown:
        yield f"{where} needs a game that the live page can show: {refused}"
    elif config.monitor is None or not config.monitor.control:
        yield (
            f"{where} stands for a person on the live page: start the run with --monitor-control (or set 'monitor: "
            f"{{control: true}}'), and play at the address that it prints"
        )


# The modules, classes and functions that the configuration names.


def names_of_main(config: RunConfig) -> list[str]:
    """Return error messages about the names that a run may use in the main process; each begins with a location."""
    mistakes: list[StageError] = [*check_writers(config), *load_rules(config)[1]]
    mistakes += [*check_samplers(config), *check_opponents(config)]
    if config.replay is None:  # a recording goes straight to the trainers
        mistakes += [*check_stages(config), *check_brains(config)]
    return [config.in_place(mistake.key, str(mistake)) for mistake in mistakes]


def all_names(config: RunConfig) -> list[str]:
    """Return error messages about all names of modules, classes and functions; each begins with a location."""
    mistakes = []
    for find in (*_of_environment(config), *_of_learners(config)):
        try:
            find()
        except StageError as mistake:
            mistakes.append(config.in_place(mistake.key, str(mistake)))
    return list(dict.fromkeys([*mistakes, *names_of_main(config)]))  # several behaviours may inherit one mistake


def key_of(failure: HostFailed, config: RunConfig) -> KeyPath:
    """Return the YAML key or section that a failure concerns; empty if it concerns the file itself or no key."""
    if failure.key:
        return failure.key
    if config.path is not None and failure.message.startswith(str(config.path)):
        return ()
    named = (("behaviors", name) for name in config.behaviors if failure.message.startswith((f"{name}:", f"{name}?")))
    return next(named, ("environment",) if failure.stage == ACTOR else ())


def _of_environment(config: RunConfig) -> Iterator[Callable[[], Any]]:
    if not acts(config):
        return
    yield from load_entry(config.environment_kind.references)(config)


def _of_learners(config: RunConfig) -> Iterator[Callable[[], Any]]:
    for path, settings in config.blocks():
        if settings.trainer_type not in TRAINERS:
            from headrace.stages.trainer.factory import find_trainer

            yield partial(find_trainer, settings.trainer_type, config.source_folder, path)
        for name, signal in settings.signals.items():
            if isinstance(signal, OwnSignalSettings):
                from headrace.stages.trainer.rewards.signal import (
                    find_signal,  # imports torch, which a signal needs anyway
                )

                yield partial(find_signal, signal, config.source_folder, (*path, "reward_signals", name))
        for key, reference in _networks(settings):
            from headrace.stages.policy.network.custom import find_network  # imports torch, which it needs anyway

            where: KeyPath = (*path, *key, "network")
            description = f"{dotted(where)} {reference!r}"
            yield partial(find_network, reference, config.source_folder, where, description)


def _networks(settings: BehaviorSettings) -> Iterator[tuple[KeyPath, str]]:
    """Yield the custom networks in a behaviour's block, each with the key of its settings."""
    if settings.network_settings.network is not None:
        yield ("network_settings",), settings.network_settings.network
    for name, signal in settings.learned_signals.items():
        if signal.network_settings.network is not None:
            yield ("reward_signals", name, "network_settings"), signal.network_settings.network
