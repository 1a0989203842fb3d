"""The table of trainers: each `trainer_type`, with the properties that are needed without loading its class.

To add a trainer, add an entry here, and write a settings model derived from `Hyperparameters` and the class that the
entry names. A `trainer_type` of the form `module:Class` needs no entry; `stages/trainer_lookup.py` reads the class's
properties.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.config.hyperparameters import (
    BCHyperparameters,
    Hyperparameters,
    ImpalaHyperparameters,
    POCAHyperparameters,
    PPOHyperparameters,
    SACHyperparameters,
)
from headrace.config.tables import Table


@dataclass(frozen=True, slots=True)
class TrainerKind:
    """One kind of trainer. Fields from `squashed` to `extra_columns` must equal the trainer's class attributes."""

    implementation: str
    """`module:Class` derived from `headrace.Trainer`. Only a process that creates the trainer imports
    it."""
    hyperparameters: type[Hyperparameters] | None
    """Settings model for `hyperparameters`, including the defaults; None if any map is accepted."""
    squashed: bool = False
    """True if the trainer's policies draw continuous actions as the tanh of a Gaussian with a state-dependent σ."""
    off_policy: bool = False
    """True if the trainer is off-policy: it learns from steps of any age, which it receives a few at a time."""
    imitates: bool = False
    """True if the trainer learns from other policies' trajectories, without rewards."""
    extra_columns: tuple[str, ...] = ()
    """Names of decision columns that the trainer always needs in addition to actions, log_probs and action_masks;
    `Hyperparameters.extra_columns` returns those that depend on its settings."""
    network_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `network_settings` that have different defaults with this trainer."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Keys of the behaviour's block that conflict with this trainer, with the reason."""


DEFAULT_TRAINER = "ppo"
"""Default value of `trainer_type`, as in ML-Agents."""

TRAINERS: Table[TrainerKind] = Table(
    ppo=TrainerKind("headrace.stages.trainer.ppo:PPOTrainer", PPOHyperparameters),
    poca=TrainerKind("headrace.stages.trainer.poca:POCATrainer", POCAHyperparameters),
    sac=TrainerKind("headrace.stages.trainer.sac:SACTrainer", SACHyperparameters, squashed=True, off_policy=True),
    bc=TrainerKind(
        "headrace.stages.trainer.bc:BCTrainer",
        BCHyperparameters,
        imitates=True,
        excluded={
            "self_play": "it would imitate its opponents",
            "behavioral_cloning": "imitation is all that bc does; its demo_path goes under hyperparameters",
        },
    ),
    impala=TrainerKind(
        "headrace.stages.trainer.impala:ImpalaTrainer",
        ImpalaHyperparameters,
        network_defaults={"normalize": True, "activation": "tanh"},  # docs/learning.md shows why
    ),
)
"""The built-in trainers, keyed by the value of `trainer_type`."""


def declared_kind(trainer_type: object) -> TrainerKind:
    """Return a trainer's entry; for other names, such as `module:Class`, return an entry without properties."""
    return TRAINERS.get(str(trainer_type)) or TrainerKind(str(trainer_type), None)
