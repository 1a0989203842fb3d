"""Warnings about one behaviour: what is valid there, but hardly does what was meant."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.config.behaviors import BehaviorSettings
from headrace.config.errors import Finding
from headrace.config.fields import changed
from headrace.config.hyperparameters import Hyperparameters
from headrace.config.trainers import declared_kind

_SHAPE = ("num_layers", "vis_encode_type", "goal_conditioning_type")
"""Keys that a network of the user's own receives and may ignore; the others have an effect beside it too."""

_FEW_STEPS = 8
"""An off-policy trainer's pieces may be this long, so `time_horizon` up to it needs no warning."""


def behavior_warnings(settings: BehaviorSettings) -> Iterator[Finding]:
    """Find what is valid in a behaviour's block and should be known to its writer; paths start at the block."""
    yield from _about_relics(settings)
    yield from _about_self_play(settings)
    yield from _about_signals(settings)
    yield from _about_network(settings)
    yield from _about_sequences(settings)
    yield from _about_trainer(settings)


def _about(keys: str, message: str) -> Finding:
    """Make a finding about a dotted key, none of whose parts is a name of the user's choice, which may have dots."""
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
    if declared_kind(settings.trainer_type).off_policy:
        yield _about(
            "self_play",
            f"opponents change, while {settings.trainer_type} goes on learning from steps against former ones, which "
            "may mislead it; ppo suits self-play better",
        )


def _about_signals(settings: BehaviorSettings) -> Iterator[Finding]:
    if "reward_signals" in declared_kind(settings.trainer_type).without_effect:
        return
    extrinsic = settings.reward_signals.extrinsic
    if extrinsic is not None and extrinsic.network_settings is not None:
        yield _about("reward_signals.extrinsic.network_settings", "has no meaning; this reward has no network")
    for name, signal in settings.learned_signals.items():
        if signal.encoding_size is not None:
            taken = signal.encoding_size == signal.network_settings.hidden_units
            instead = "it is read as network_settings.hidden_units" if taken else "network_settings take precedence"
            yield _about(f"reward_signals.{name}.encoding_size", f"is deprecated; {instead}")
        if signal.network_settings.memory is not None:
            yield _about(
                f"reward_signals.{name}.network_settings.memory",
                "has no effect; the signal's network looks at single steps, without a memory",
            )


def _about_network(settings: BehaviorSettings) -> Iterator[Finding]:
    network = settings.network_settings
    if network.network is None:
        return
    for key in changed(network):
        if key in _SHAPE and getattr(network, key) is not None:
            yield _about(f"network_settings.{key}", f"is only passed to {network.network}, which may ignore it")


def _about_sequences(settings: BehaviorSettings) -> Iterator[Finding]:
    memory = settings.network_settings.memory
    if memory is None or not isinstance(settings.hyperparameters, Hyperparameters):
        return
    path, length = "network_settings.memory.sequence_length", memory.sequence_length
    unroll = settings.hyperparameters.longest_piece
    if length > settings.time_horizon and "time_horizon" not in declared_kind(settings.trainer_type).without_effect:
        yield _about(
            path,
            f"{length} is longer than time_horizon ({settings.time_horizon}), at which trajectories are cut: "
            f"sequences have {settings.time_horizon} steps at most, and the rest of each is padding",
        )
    sizes: dict[str, int] = {}
    if unroll is not None:
        if "sequence_length" in changed(memory) and length != unroll and settings.behavioral_cloning is None:
            yield _about(path, f"has no effect: sequences are unrolls (hyperparameters.unroll_length: {unroll})")
    elif (batch_size := getattr(settings.hyperparameters, "batch_size", None)) is not None:
        sizes["hyperparameters.batch_size"] = batch_size
    if settings.behavioral_cloning is not None and settings.behavioral_cloning.batch_size is not None:
        sizes["behavioral_cloning.batch_size"] = settings.behavioral_cloning.batch_size
    for key, size in sizes.items():
        if size % length:
            count = max(1, size // length)
            whole = "1 whole sequence" if count == 1 else f"{count} whole sequences"
            yield _about(path, f"{length} does not divide {key} ({size}): a batch is {whole}, {count * length} steps")


def _about_trainer(settings: BehaviorSettings) -> Iterator[Finding]:
    kind = declared_kind(settings.trainer_type)
    for key in changed(settings):
        if key in kind.without_effect:
            yield _about(key, f"has no effect, because {kind.without_effect[key]}")
    if isinstance(settings.hyperparameters, Hyperparameters):
        yield from settings.hyperparameters.warnings(settings)
        size = settings.hyperparameters.rows_per_update or 0
        if size > settings.max_steps:
            key = "buffer_size" if hasattr(settings.hyperparameters, "buffer_size") else "batch_size"
            yield _about(
                f"hyperparameters.{key}",
                f"{size} steps are more than max_steps ({settings.max_steps}): training ends before the first update, "
                "and nothing is learned",
            )
    if kind.off_policy:
        yield from _about_horizon(settings)


def _about_horizon(settings: BehaviorSettings) -> Iterator[Finding]:
    memory = settings.network_settings.memory
    longest = max(_FEW_STEPS, memory.sequence_length if memory else 0)
    if "time_horizon" in changed(settings) and settings.time_horizon > longest:
        length, unit = ("sequence_length", "sequences") if memory else ("a few", "single steps")
        yield _about(
            "time_horizon",
            f"has no effect, because {settings.trainer_type} learns from {unit}: trajectories go to it in pieces of "
            f"{length} steps",
        )
