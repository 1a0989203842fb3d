"""A reward signal: a number per transition, which an agent is to maximise beside or instead of the environment's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stages.trainer.transitions import Transitions


class RewardSignal(ABC):
    """One of a behaviour's `reward_signals`; trainers hold one value head for each.

    Attributes:
        name: its key in the YAML.
        gamma: its discount per agent step.
        strength: factor on the reward, applied by the trainer.
        ignores_termination: whether its value goes on where an episode terminates (what is new or known does not
            depend on the task's rules); the trainer then bootstraps there as well.
    """

    ignores_termination: ClassVar[bool] = False

    def __init__(self, name: str, gamma: float, strength: float) -> None:
        self.name = name
        self.gamma = gamma
        self.strength = strength

    def see(self, vectors: NDArray[np.float32]) -> None:  # noqa: B027  # a signal may normalise nothing
        """Count the vector observations [n, V] of steps that have newly come, for a normaliser.

        Trainers call it once for each step, before that step's reward is asked for: at first a normaliser knows
        nothing, and rewards of what is not normalised can be so large that values never recover from them.
        """

    @abstractmethod
    def rewards(self, transitions: Transitions) -> NDArray[np.float32]:
        """The reward [B] of each transition, without strength. Changes nothing that a checkpoint would have to hold.

        Raises:
            NotFiniteError: if one is NaN or infinite.
        """

    def learn(self, transitions: Transitions) -> Mapping[str, float]:
        """One gradient step of its own networks on a minibatch; losses by the names of their statistics.

        Raises:
            NotFiniteError: if a loss is NaN or infinite; the weights are then those before the step.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, normaliser, randomness: plain values and NumPy arrays."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027  # a signal may have no state
        """Continue from `state_dict()`.

        Raises:
            StageError: if the state belongs to other networks; the message names the tensor.
        """
