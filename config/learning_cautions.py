"""Warnings about one behaviour: what is accepted there, but hardly does what was meant; see `cautions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from config.errors import Finding
from config.fields import changed
from config.hyperparameters import (
    BCHyperparameters,
    OnPolicyHyperparameters,
    POCAHyperparameters,
    SACHyperparameters,
)
from config.reward_signals import LearnedSignalSettings

if TYPE_CHECKING:
    from config.behaviors import BehaviorSettings

_SHAPE = ("num_layers", "vis_encode_type", "goal_conditioning_type")
"""What a network of the user's own gets told and may do as it likes about; the other keys are of use beside it too."""

_FEW_STEPS = 8
"""`time_horizon` up to here need not be talked about with SAC: its pieces may well be as short."""


def learning_cautions(settings: BehaviorSettings) -> Iterator[Finding]:
    """Give a warning, at its path below the behaviour, for each thing that its writer should know."""
    yield from _about_relics(settings)
    yield from _about_self_play(settings)
    yield from _about_signals(settings)
    yield from _about_network(settings)
    yield from _about_sequences(settings)
    if isinstance(settings.hyperparameters, SACHyperparameters):
        yield from _about_sac(settings, settings.hyperparameters)
    if isinstance(settings.hyperparameters, BCHyperparameters):
        yield from _about_bc(settings, settings.hyperparameters)
    if isinstance(settings.hyperparameters, POCAHyperparameters):
        yield from _about_poca(settings)
    if isinstance(settings.hyperparameters, OnPolicyHyperparameters | BCHyperparameters):
        size = settings.hyperparameters.buffer_size
        if size > settings.max_steps:
            yield _about(
                "hyperparameters.buffer_size",
                f"{size} steps are more than max_steps ({settings.max_steps}): training "
                "ends before the first update, and nothing is learned",
            )


def _about(keys: str, message: str) -> Finding:
    """A caution about a key; none of those on the way to it is a name of the user's choice, which might have dots."""
    return Finding(tuple(keys.split(".")), message)


def _about_relics(settings: BehaviorSettings) -> Iterator[Finding]:
    if settings.threaded:
        yield _about("threaded", "has no meaning here, because the learner always runs apart")
    if settings.framework is not None:
        yield _about("framework", "has no meaning; training is by torch")


def _about_self_play(settings: BehaviorSettings) -> Iterator[Finding]:
    if settings.self_play is None:
        return
    if settings.self_play.team_change > settings.max_steps:
        yield _about(
            "self_play.team_change",
            f"{settings.self_play.team_change} steps are more than max_steps "
            f"({settings.max_steps}), so one team learns all the time, to the end",
        )
    if settings.trainer_type == "sac":
        yield _about(
            "self_play",
            "opponents change, while sac goes on learning from steps against former ones, which may "
            "mislead it; ppo suits self-play better",
        )


def _about_signals(settings: BehaviorSettings) -> Iterator[Finding]:
    if settings.trainer_type == "bc" and "reward_signals" in changed(settings):
        yield _about("reward_signals", "have no effect, because bc imitates and learns from no reward")
        return
    extrinsic = settings.reward_signals.extrinsic
    if extrinsic is not None and extrinsic.network_settings is not None:
        yield _about("reward_signals.extrinsic.network_settings", "has no meaning; this reward has no network")
    for name, signal in _learned(settings).items():
        if signal.encoding_size is not None:
            taken = signal.encoding_size == signal.network_settings.hidden_units
            instead = "it was taken for network_settings.hidden_units" if taken else "network_settings go before it"
            yield _about(f"reward_signals.{name}.encoding_size", f"is deprecated; {instead}")
        if signal.network_settings.memory is not None:
            yield _about(
                f"reward_signals.{name}.network_settings.memory",
                "has no effect; the signal's network looks at single steps, without a memory",
            )


def _learned(settings: BehaviorSettings) -> dict[str, LearnedSignalSettings]:
    return {name: each for name, each in settings.signals.items() if isinstance(each, LearnedSignalSettings)}


def _about_network(settings: BehaviorSettings) -> Iterator[Finding]:
    network = settings.network_settings
    if network.network is None:
        return
    for key in changed(network):
        if key in _SHAPE:
            yield _about(
                f"network_settings.{key}", f"is only handed to {network.network}, which may do as it likes about it"
            )


def _about_sequences(settings: BehaviorSettings) -> Iterator[Finding]:
    memory, hyperparameters = settings.network_settings.memory, settings.hyperparameters
    if memory is None or isinstance(hyperparameters, dict):
        return
    path, length = "network_settings.memory.sequence_length", memory.sequence_length
    if length > settings.time_horizon and settings.trainer_type != "bc":
        yield _about(
            path,
            f"{length} is longer than time_horizon ({settings.time_horizon}), at which trajectories are cut: "
            f"sequences have {settings.time_horizon} steps at most, and the rest of each is padding",
        )
    sizes = {"hyperparameters.batch_size": hyperparameters.batch_size}
    if settings.behavioral_cloning is not None and settings.behavioral_cloning.batch_size is not None:
        sizes["behavioral_cloning.batch_size"] = settings.behavioral_cloning.batch_size
    for key, size in sizes.items():
        if size % length:
            count = max(1, size // length)
            whole = "1 whole sequence" if count == 1 else f"{count} whole sequences"
            yield _about(path, f"{length} does not divide {key} ({size}): a batch is {whole}, {count * length} steps")


def _about_poca(settings: BehaviorSettings) -> Iterator[Finding]:
    for name in _learned(settings):
        yield _about(
            f"reward_signals.{name}",
            "rewards each agent for itself, while poca's critic judges its whole group: that "
            "may mislead it; the extrinsic reward alone suits poca",
        )


def _about_bc(settings: BehaviorSettings, bc: BCHyperparameters) -> Iterator[Finding]:
    if "time_horizon" in changed(settings):
        whose = "demonstrations" if bc.teacher is None else "its teacher's trajectories"
        yield _about("time_horizon", f"has no effect, because bc takes {whose} as they come")


def _about_sac(settings: BehaviorSettings, sac: SACHyperparameters) -> Iterator[Finding]:
    memory = settings.network_settings.memory
    if "time_horizon" in changed(settings) and settings.time_horizon > max(
        _FEW_STEPS, memory.sequence_length if memory else 0
    ):
        piece = "sequence_length" if memory else "a few"
        yield _about(
            "time_horizon",
            f"has no effect, because sac learns from {'sequences' if memory else 'single steps'}: "
            f"trajectories go to it in pieces of {piece} steps",
        )
    if sac.reward_signal_steps_per_update != sac.steps_per_update and not _learned(settings):
        yield _about(
            "hyperparameters.reward_signal_steps_per_update", "has no effect, because none of the reward signals learns"
        )
    if sac.buffer_init_steps > sac.buffer_size:
        yield _about(
            "hyperparameters.buffer_init_steps",
            f"{sac.buffer_init_steps} are more than buffer_size "
            f"({sac.buffer_size}): the oldest of them are forgotten before anything was learned from them",
        )
    first = max(1 if memory else sac.batch_size, sac.buffer_init_steps + 1)
    if first > settings.max_steps:
        yield _about(
            "max_steps",
            f"{settings.max_steps} steps end before the first update, which comes after {first} "
            "(buffer_init_steps and batch_size): nothing is learned",
        )
