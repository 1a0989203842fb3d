"""What all reward signals with a network have in common: its design, its normaliser, its guard, its state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from config import CuriositySettings, GAILSettings, RNDSettings
from queues.specs import ActionSpec
from stages.errors import NotFiniteError, StageError
from stages.policy.design import PolicyDesign
from stages.policy.network.flat import seeded
from stages.policy.network.inputs import Inputs
from stages.policy.normalizer import NORMALIZED_LIMIT, Normalizer
from stages.policy.observations import ObservationLayout
from stages.trainer.protocol import TrainerContext
from stages.trainer.randomness import new_random, random_state, restore_random
from stages.trainer.rewards.protocol import RewardSignal
from stages.trainer.rewards.trained import TrainedNetwork
from stages.trainer.transitions import Transitions

NetworkSignalSettings: TypeAlias = CuriositySettings | GAILSettings | RNDSettings

_ROWS = 2048
"""Rows per forward pass when rewards are computed: bounds memory where a whole buffer of images is asked about."""


class NetworkSignal(RewardSignal):
    """A reward signal with one trained network.

    Args:
        name: its key in the YAML.
        settings: its block there.
        context: the trainer's: behaviour, spec, device, folder.
        seed: the source of its chance: initial weights, and what learning draws.
    """

    def __init__(self, name: str, settings: NetworkSignalSettings, context: TrainerContext, seed: int) -> None:
        super().__init__(name, settings.gamma, settings.strength)
        self.design = design_of_signal(name, settings, context)
        self.where = f"{context.behavior}: reward signal {name}"
        """The beginning of error messages."""
        self.device = context.device
        self.random = new_random(seed)
        size = ObservationLayout(context.spec).vector_size
        self.normalizer = Normalizer(size) if self.design.settings.normalize and size else None
        """Of its own; None where nothing is normalised."""
        module = seeded(self.random, lambda: self.build(settings))
        self.network = TrainedNetwork(module, settings.learning_rate, context.device)

    @abstractmethod
    def build(self, settings: Any) -> nn.Module:
        """Make the network that is trained, from `self.design`."""

    @abstractmethod
    def compute(self, transitions: Transitions) -> Tensor:
        """The reward [B] of each transition; called without gradients."""

    @abstractmethod
    def losses(self, transitions: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to descend, and scalars to report by the names of their statistics."""

    def rewards(self, transitions: Transitions) -> NDArray[np.float32]:
        """The reward [B] of each transition, without strength.

        Raises:
            NotFiniteError: if one is NaN or infinite.
        """
        total = len(transitions.rewards)
        out = np.empty(total, np.float32)
        with torch.no_grad():
            for start in range(0, total, _ROWS):
                rows = slice(start, start + _ROWS)
                piece = transitions if total <= _ROWS else select(transitions, rows)
                out[rows] = self.compute(piece).cpu().numpy()
        finite = np.isfinite(out)
        if not finite.all():
            raise NotFiniteError(
                f"{self.where}: the reward of {int((~finite).sum())} of {total} steps is NaN or infinite, the first is "
                f"{out[~finite][0]}; are its weights sound, and are all observations of moderate size "
                f"({self.design.key}.normalize)?"
            )
        return out

    def learn(self, transitions: Transitions) -> Mapping[str, float]:
        """One gradient step on a minibatch; losses by the names of their statistics.

        Raises:
            NotFiniteError: if a loss or gradient is NaN or infinite; the network is then as before.
        """
        loss, reported = self.losses(transitions)
        if not self.network.descend(loss):
            said = ", ".join(f"{name} {float(value.detach()):.4g}" for name, value in reported.items())
            raise NotFiniteError(
                f"{self.where}: a loss or its gradient is NaN or infinite ({said}); its weights are those before the "
                f"update. A lower reward_signals.{self.name}.learning_rate or {self.design.key}.normalize often helps"
            )
        values = torch.stack([value.detach() for value in reported.values()]).tolist()  # one wait for the device
        return dict(zip(reported, values, strict=True))

    def see(self, vectors: NDArray[np.float32]) -> None:
        """Let the normaliser count the vector observations [n, V] of steps that have newly come."""
        if self.normalizer is not None:
            self.normalizer.update(vectors)

    def normalized(self, inputs: Inputs) -> Inputs:
        """Inputs as the network gets them; the same where nothing is normalised."""
        if self.normalizer is None:
            return inputs
        mean, inverse_std = (torch.from_numpy(tensor).to(self.device) for tensor in self.normalizer.tensors())
        vectors = ((inputs.vectors - mean) * inverse_std).clamp(-NORMALIZED_LIMIT, NORMALIZED_LIMIT)
        return inputs._replace(vectors=vectors)

    def state_dict(self) -> dict[str, Any]:
        """Network, optimizer, normaliser, randomness."""
        return {
            "network": self.network.state_dict(),
            "normalizer": None if self.normalizer is None else self.normalizer.state_dict(),
            "random": random_state(self.random),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            StageError: if the state belongs to other networks; the message names the tensor.
        """
        if (self.normalizer is None) != (state["normalizer"] is None):
            now, then = ("false", "true") if self.normalizer is None else ("true", "false")
            raise StageError(
                f"{self.where}: {self.design.key}.normalize is {now}, but was {then} when the state was saved"
            )
        try:
            self.network.load_state_dict(state["network"])
            if self.normalizer is not None:
                self.normalizer.load_state_dict(state["normalizer"])
        except StageError as error:
            raise StageError(f"{self.where}: {error}") from error
        restore_random(self.random, state["random"])


def design_of_signal(name: str, settings: NetworkSignalSettings, context: TrainerContext) -> PolicyDesign:
    """The design of a signal's network: as its settings say, without memory.

    `encoding_size` stands for `hidden_units` where `network_settings` were not given, as in old ML-Agents files.
    """
    network = settings.network_settings.model_copy(update={"memory": None})
    if settings.encoding_size is not None and "network_settings" not in settings.model_fields_set:
        network = network.model_copy(update={"hidden_units": settings.encoding_size})
    key = f"reward_signals.{name}.network_settings"
    return PolicyDesign(context.spec, network, folder=context.folder, key=key)


def action_inputs(actions: ActionSpec, continuous: Tensor, choices: Tensor) -> Tensor:
    """Actions as networks take them in, [B, C + choices]: continuous ones, then a one-hot per branch.

    The same as `stages.policy.actions.action_features`, of tensors.
    """
    hot = [F.one_hot(choices[:, i], size).float() for i, size in enumerate(actions.discrete_branches)]
    return torch.cat([continuous, *hot], dim=1)


def select(transitions: Transitions, rows: Tensor | slice) -> Transitions:
    """Some of the transitions."""
    return replace(
        transitions,
        inputs=transitions.inputs.rows(rows),
        next_inputs=transitions.next_inputs.rows(rows),
        continuous=transitions.continuous[rows],
        choices=transitions.choices[rows],
        rewards=transitions.rewards[rows],
        terminated=transitions.terminated[rows],
    )
