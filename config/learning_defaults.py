"""Defaults of behaviours in environments whose users do not come from ML-Agents: the one table, and how it is applied.

ML-Agents' defaults suit many agents that Unity steps in parallel. With the one instance that a new Gymnasium user
starts, they make ten updates in 100,000 steps. Kinds of environments with `EnvironmentKind.learning_defaults` take the
values of this table for keys that the file does not set. docs/defaults.md has the measurements behind each value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.config.behaviors import BehaviorSettings
from headrace.config.sections import Sections

_ON_POLICY = {
    "hyperparameters": {
        "buffer_size": 2048,
        "batch_size": 64,
        "num_epoch": 10,
        "learning_rate": 3e-4,
        "learning_rate_schedule": "constant",
        "beta": 0.0,
        "max_grad_norm": 0.5,
        "reward_normalization": True,
    },
    "network_settings": {"normalize": True, "hidden_units": 64, "activation": "tanh"},
    "time_horizon": 2048,
}
LEARNING_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "ppo": _ON_POLICY,
    "poca": _ON_POLICY,
    "bc": {"network_settings": _ON_POLICY["network_settings"]},  # so that PPO can start from its policies
    "sac": {
        "hyperparameters": {
            "batch_size": 256,
            "buffer_size": 1_000_000,
            "learning_rate": 1e-3,
            "buffer_init_steps": 100,
            "random_steps": 100,
        },
        "network_settings": {"hidden_units": 256, "activation": "relu"},
    },
}
"""Values of a behaviour's keys, by trainer; trainers that are not listed keep their defaults."""
STEPS_OF_EACH = 128
"""Minimum number of an update's steps from each instance: with hundreds of instances, 2,048 steps would cut their
trajectories into pieces of a few steps. `batch_size` grows in proportion."""


def with_learning_defaults(block: BehaviorSettings, instances: int) -> BehaviorSettings:
    """Return a behaviour's settings with the table's values for all keys that are not set.

    Args:
        block: the settings.
        instances: number of environment instances that act at the same time.
    """
    return block.with_defaults(_values(block, instances))


def describe_learning_defaults(config: Sections) -> str:
    """Return one line that names the values which behaviours took from the table; empty if there are none."""
    if not config.environment_kind.learning_defaults:
        return ""
    taken: dict[str, list[str]] = {}
    for path, block in config.blocks():
        unset = [
            f"{name} {value}"
            for key, values in _values(block, instances_of(config)).items()
            for name, value in _unset(block, key, values)
        ]
        if unset:
            taken.setdefault(", ".join(unset), []).append(str(path[-1]))
    kind = "open_protocol" if config.environment is None else config.environment.kind
    return "; ".join(
        f"Defaults of environment kind {kind} for {', '.join(names)}, unlike ML-Agents': {values}"
        for values, names in taken.items()
    )


def instances_of(config: Sections) -> int:
    """Return the number of instances that all actors step together, as far as the configuration shows."""
    count = config.env_settings.num_envs if config.environment is None else config.environment.num_envs
    return count * config.pipeline.hosts.actors.replicas


def _values(block: BehaviorSettings, instances: int) -> Mapping[str, Any]:
    values = LEARNING_DEFAULTS.get(block.trainer_type, {}) if block.learns else {}
    if "time_horizon" not in values:
        return values
    hyperparameters = dict(values["hyperparameters"])
    scale = max(1, instances * STEPS_OF_EACH // hyperparameters["buffer_size"])
    hyperparameters["buffer_size"] *= scale
    hyperparameters["batch_size"] *= scale
    return {**values, "hyperparameters": hyperparameters}


def _unset(block: BehaviorSettings, key: str, values: Any) -> Iterator[tuple[str, Any]]:
    section = getattr(block, key)
    if not isinstance(values, Mapping):
        yield from () if key in block.model_fields_set else [(key, values)]
        return
    yield from ((name, value) for name, value in values.items() if name not in section.model_fields_set)
