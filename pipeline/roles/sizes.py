"""Sizes that actors and learners both derive from the configuration: numbers of agents, and rows per message."""

from __future__ import annotations

from headrace.config import RunConfig, TrainerKind
from headrace.stages.trainer.protocol import USUAL_BUFFER_SIZE, rows_per_update
from headrace.stages.trainer_lookup import squashes, trainer_kind


def kind_of_trainer(config: RunConfig, behavior: str) -> TrainerKind:
    """Return the static properties of a behaviour's trainer.

    Raises:
        LoadError: if a custom trainer can't be imported.
    """
    return trainer_kind(config.behavior_settings(behavior).trainer_type, config.source_folder, ("behaviors", behavior))


def squashes_actions(config: RunConfig, behavior: str) -> bool:
    """Return True if a behaviour's policies sample continuous actions as the tanh of a Gaussian.

    Raises:
        LoadError: if a custom trainer can't be imported.
    """
    return squashes(config.behavior_settings(behavior), config.source_folder, ("behaviors", behavior))


def agents_of(config: RunConfig) -> int:
    """Return the number of agents that act simultaneously, as far as the configuration shows: environments × actors."""
    environments = config.environment.num_envs if config.environment is not None else config.env_settings.num_envs
    return environments * config.pipeline.hosts.actors.replicas


def rows_per_batch(config: RunConfig) -> int:
    """Return how many rows an agent processor collects before emitting: a quarter of its actor's part of an update.

    With fewer rows, actors would send too many messages. With more, the trainer would wait longer for the last rows.
    """
    agents = agents_of(config)
    sizes = [
        rows_per_update(settings, agents, kind_of_trainer(config, name).off_policy)
        for name, settings in config.behaviors.items()
        if settings.learns
    ] or [USUAL_BUFFER_SIZE]
    return max(1, min(sizes) // (4 * config.pipeline.hosts.actors.replicas))
