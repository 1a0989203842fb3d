"""The base of reward signals: a number per transition, to be maximised beside or instead of the environment's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.config import RewardSignalSettings
from headrace.stages.errors import NotFiniteError, StageError
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.transitions import Transitions

_ROWS = 2048
"""Rows per forward pass when rewards are computed: bounds memory where a whole buffer of images is asked about."""


class RewardSignal(ABC):
    """One of a behaviour's `reward_signals`; trainers hold one value head for each.

    Args:
        name: its key in the YAML.
        settings: its block there.
        context: the trainer's: behaviour, spec, device, folder.
        seed: the source of all its chance.

    Attributes:
        name: see above.
        gamma: its discount per agent step.
        strength: factor on the reward, applied by the trainer.
        where: the beginning of error messages.
        ignores_termination: true if its value continues where an episode terminates (novelty does not depend on the
            task's rules); the trainer then bootstraps there as well.
    """

    ignores_termination: ClassVar[bool] = False

    def __init__(self, name: str, settings: RewardSignalSettings, context: TrainerContext, seed: int) -> None:
        self.name = name
        self.gamma = settings.gamma
        self.strength = settings.strength
        self.where = f"{context.behavior}: reward signal {name}"

    @abstractmethod
    def compute(self, transitions: Transitions) -> Tensor:
        """The reward [B] of each transition, without strength; called without gradients.

        Changes nothing that a checkpoint would have to hold.
        """

    def rewards(self, transitions: Transitions) -> NDArray[np.float32]:
        """The reward [B] of each transition, without strength; a new array.

        Raises:
            NotFiniteError: if one is NaN or infinite.
            StageError: if `compute` gives another number of rewards than there are transitions.
        """
        total = len(transitions.rewards)
        out = np.empty(total, np.float32)
        with torch.no_grad():
            for start in range(0, total, _ROWS):
                rows = slice(start, start + _ROWS)
                piece = transitions if total <= _ROWS else transitions.rows(rows)
                computed = self.compute(piece)
                if computed.shape != piece.rewards.shape:
                    raise StageError(
                        f"{self.where}: compute gave a tensor of shape {list(computed.shape)}, expected "
                        f"{list(piece.rewards.shape)}: one reward for each transition"
                    )
                out[rows] = computed.cpu().numpy()
        finite = np.isfinite(out)
        if not finite.all():
            raise NotFiniteError(
                f"{self.where}: the reward of {int((~finite).sum())} of {total} steps is NaN or infinite, the first is "
                f"{out[~finite][0]}{self.remedy}"
            )
        return out

    @property
    def remedy(self) -> str:
        """The end of the message about rewards that are not finite."""
        return f"; see {type(self).__name__}.compute"

    def observe(self, vectors: NDArray[np.float32]) -> None:  # noqa: B027  # a signal may normalise nothing
        """Count the vector observations [n, V] of new steps, for a normaliser.

        Trainers call it once for each step, before that step's reward is computed: a normaliser without data would
        leave rewards so large that values never recover from them.
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
