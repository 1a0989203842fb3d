"""Sizes that hosts derive from the configuration: numbers of agents and of cores, and rows per message."""

from __future__ import annotations

from headrace.config import RunConfig, TrainerKind
from headrace.config.host_kinds import HOST_KINDS
from headrace.pipeline.common.graph import actor_names
from headrace.pipeline.common.process import usable_cores
from headrace.pipeline.hosts.early_children import learners_of, most_learner_processes
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


def cores_left_for(config: RunConfig, shared: bool = False) -> int:
    """Return the number of cores that remain for a learner after those for actors and other learners.

    With `shared`, the learner may also try a second core that an actor uses, because actors mostly wait for an
    off-policy trainer.
    """
    learners = _learner_processes(config)
    least = min(2, usable_cores() // learners) if shared else 1
    return max(1, least, (usable_cores() - _actor_processes(config)) // learners)


def outnumber_cores(config: RunConfig) -> bool:
    """Return True if there are fewer cores than processes of actors and learners together."""
    return _actor_processes(config) + _learner_processes(config) > usable_cores()


def _actor_processes(config: RunConfig) -> int:
    return 0 if HOST_KINDS[config.pipeline.hosts.actors.kind].on_ray else len(actor_names(config))


def _learner_processes(config: RunConfig) -> int:
    return min(len(learners_of(config)) or 1, most_learner_processes(config))
