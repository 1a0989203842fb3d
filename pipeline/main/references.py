"""Checks that each module, class and function that the YAML names can be found.

Finding a name means importing its module. `--validate` checks all names. Before it starts, a run checks the names that
it uses in the main process; the hosts import the others, and report the same mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from headrace.config import BehaviorSettings, RunConfig
from headrace.config.environment_kinds import load_entry
from headrace.config.errors import KeyPath, dotted
from headrace.config.reward_signals import OwnSignalSettings
from headrace.config.trainers import TRAINERS
from headrace.pipeline.common.graph import ACTOR, acts
from headrace.pipeline.control.messages import HostFailed
from headrace.pipeline.main.self_play import check_samplers
from headrace.pipeline.policies.brains import check_brains
from headrace.pipeline.reporting.writers import check_writers
from headrace.pipeline.roles.stages import check_stages
from headrace.stages.errors import StageError
from headrace.stages.evaluation.opponents import check_opponents


def names_of_main(config: RunConfig) -> list[str]:
    """Return error messages about the names that a run may use in the main process; each begins with a location."""
    mistakes: list[StageError] = [*check_writers(config), *check_samplers(config), *check_opponents(config)]
    if config.replay is None:  # a recording goes straight to the trainers
        mistakes += [*check_stages(config), *check_brains(config)]
    return [in_place(config, mistake.key, str(mistake)) for mistake in mistakes]


def all_names(config: RunConfig) -> list[str]:
    """Return error messages about all names of modules, classes and functions; each begins with a location."""
    found = []
    for find in (*_of_environment(config), *_of_learners(config)):
        try:
            find()
        except StageError as mistake:
            found.append(in_place(config, mistake.key, str(mistake)))
    return list(dict.fromkeys([*found, *names_of_main(config)]))  # several behaviours may inherit one mistake


def in_place(config: RunConfig, key: KeyPath, message: str) -> str:
    """Return a message about a key, preceded by the key's location in the YAML file, if known."""
    place = config.place(key) if key else ""
    return f"{place}: {message}" if place else message


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
