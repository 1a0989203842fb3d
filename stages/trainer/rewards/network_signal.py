"""The base of reward signals with a network: design, normaliser, optimizer, state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from headrace.config import LearnedSignalSettings
from headrace.queues.specs import ActionSpec
from headrace.stages.errors import NotFiniteError, StageError
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.flat_parameters import FlatParameters, Module, seeded
from headrace.stages.policy.network.transfers import Inputs
from headrace.stages.policy.observations import NORMALIZED_LIMIT, Normalizer, ObservationLayout
from headrace.stages.trainer.adam import Adam
from headrace.stages.trainer.intake import Transitions
from headrace.stages.trainer.protocol import TrainerContext, new_random, random_state, restore_random
from headrace.stages.trainer.rewards.signal import RewardSignal


class TrainedNetwork(Generic[Module]):
    """A module's parameters and their Adam.

    Args:
        module: the module that is trained.
        learning_rate: Adam's step size, constant.
        device: where the parameters lie.
    """

    def __init__(self, module: Module, learning_rate: float, device: str) -> None:
        self._flat = FlatParameters(module, device)
        self._adam = Adam(self._flat.values, self._flat.gradients)
        self._learning_rate = learning_rate

    @property
    def module(self) -> Module:
        """The module itself."""
        return self._flat.module

    @property
    def updates(self) -> int:
        """Gradient steps made."""
        return self._adam.steps

    def descend(self, loss: Tensor) -> bool:
        """One gradient step down a scalar loss; false, with nothing changed, if loss or gradients are not finite."""
        self._flat.gradients.zero_()
        torch.autograd.backward(loss)
        if not bool(torch.isfinite(loss) & torch.isfinite(self._flat.gradients).all()):
            return False
        self._adam.step(self._learning_rate)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Weights, and Adam's steps and moments, by parameter name; copies, on the host."""
        return {"weights": self._flat.state_dict(), **self._adam.state_dict(self._flat.named_views)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            StageError: naming the tensor that does not fit.
        """
        self._flat.load(state["weights"])
        self._adam.load_state_dict(self._flat.named_views, state)


class NetworkSignal(RewardSignal):
    """A reward signal with one trained network.

    Args:
        name: its key in the YAML.
        settings: its block there.
        context: the trainer's: behaviour, spec, device, folder.
        seed: the source of its chance: initial weights, and what learning draws.
    """

    def __init__(self, name: str, settings: LearnedSignalSettings, context: TrainerContext, seed: int) -> None:
        super().__init__(name, settings, context, seed)
        self.design = design_of_signal(name, settings, context)
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
    def losses(self, transitions: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to descend, and scalars to report by the names of their statistics."""

    @property
    def remedy(self) -> str:
        """The end of the message about rewards that are not finite."""
        return f"; are its weights sound, and are all observations of moderate size ({self.design.key}.normalize)?"

    def learn(self, transitions: Transitions) -> Mapping[str, float]:
        """One gradient step on a minibatch; losses by the names of their statistics.

        Raises:
            NotFiniteError: if a loss or gradient is NaN or infinite; the network is then as before.
        """
        loss, reported = self.losses(transitions)
        if not self.network.descend(loss):
            losses = ", ".join(f"{name} {float(value.detach()):.4g}" for name, value in reported.items())
            raise NotFiniteError(
                f"{self.where}: a loss or its gradient is NaN or infinite ({losses}); its weights are those before the "
                f"update. A lower reward_signals.{self.name}.learning_rate or {self.design.key}.normalize often helps"
            )
        values = torch.stack([value.detach() for value in reported.values()]).tolist()  # one wait for the device
        return dict(zip(reported, values, strict=True))

    def observe(self, vectors: NDArray[np.float32]) -> None:
        """Count the vector observations [n, V] of new steps in the normaliser."""
        if self.normalizer is not None:
            self.normalizer.update(vectors)

    def normalized(self, inputs: Inputs) -> Inputs:
        """Inputs as the network receives them; the same where nothing is normalised."""
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
        """Continue from `state_dict()`."""
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


def design_of_signal(name: str, settings: LearnedSignalSettings, context: TrainerContext) -> PolicyDesign:
    """Return the design of a signal's network: by its settings, without memory.

    `encoding_size` stands for `hidden_units` where `network_settings` were not given, as in old ML-Agents files.
    """
    network = settings.network_settings.model_copy(update={"memory": None})
    if settings.encoding_size is not None and "network_settings" not in settings.model_fields_set:
        network = network.model_copy(update={"hidden_units": settings.encoding_size})
    key = f"reward_signals.{name}.network_settings"
    return PolicyDesign(context.spec, network, folder=context.folder, key=key)


def action_inputs(actions: ActionSpec, continuous: Tensor, choices: Tensor) -> Tensor:
    """Actions as inputs of networks, [B, C + choices]: continuous ones, then a one-hot per branch.

    The same as `headrace.stages.policy.sampling.action_features`, of tensors.
    """
    hot = [F.one_hot(choices[:, i], size).float() for i, size in enumerate(actions.discrete_branches)]
    return torch.cat([continuous, *hot], dim=1)
