"""The bases of reward signals, with and without a network, the environment's reward, and the factory of all signals.

A reward signal is a number per transition, to be maximised in addition to the environment's reward or instead of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from headrace.config import LearnedSignalSettings, OwnSignalSettings, RewardSignalSettings
from headrace.config.errors import KeyPath, dotted
from headrace.queues.messages import Array
from headrace.queues.specs import ActionSpec
from headrace.stages.errors import LoadError, NotFiniteError, StageError, blaming
from headrace.stages.loading import check_arguments, construct, find_class, load_attribute
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.flat_parameters import FlatParameters, Module, seeded
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.policy.observations import NORMALIZED_LIMIT, Normalizer, ObservationLayout
from headrace.stages.trainer.adam import Adam
from headrace.stages.trainer.intake import Transitions
from headrace.stages.trainer.protocol import TrainerContext, new_random, random_state, restore_random
from headrace.stages.trainer.trajectories import RewardScale

_ROWS = 2048
"""Rows per forward pass when rewards are computed: bounds memory for a whole buffer of images."""


# The trainer computes rewards: an actor would need the signals' networks with every policy (docs/decisions/042).
class RewardSignal(ABC):
    """One of a behaviour's `reward_signals`; trainers hold one value head for each.

    Args:
        name: the signal's key in the YAML.
        settings: the signal's block in the YAML.
        context: the trainer's: behaviour, spec, device, folder.
        seed: the only source of its randomness.

    Attributes:
        name: see above.
        gamma: the signal's discount per agent step.
        strength: factor on the reward, applied by the trainer.
        context: the trainer's context, as passed to the constructor.
        where: the beginning of error messages.
        ignores_termination: true if the signal's value continues past the end of an episode (novelty does not depend on
            the task's rules); the trainer then bootstraps there as well.
    """

    ignores_termination: ClassVar[bool] = False

    def __init__(self, name: str, settings: RewardSignalSettings, context: TrainerContext, seed: int) -> None:
        self.name = name
        self.gamma = settings.gamma
        self.strength = settings.strength
        self.context = context
        self.where = f"{context.behavior}: reward signal {name}"

    @abstractmethod
    def compute(self, transitions: Transitions) -> Tensor:
        """The reward [B] of each transition, without strength; called without gradients.

        Leaves everything that a checkpoint holds unchanged.
        """

    def rewards(self, transitions: Transitions) -> NDArray[np.float32]:
        """The reward [B] of each transition, without strength; a new array.

        Raises:
            NotFiniteError: if a reward is NaN or infinite.
            StageError: if `compute` returns another number of rewards than there are transitions.
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
                        f"{self.where}: compute returned a tensor of shape {list(computed.shape)}, expected "
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

    def observe(self, vectors: Array) -> None:  # noqa: B027  # a signal may normalise nothing
        """Count the vector observations [n, V] of new steps, for a normaliser.

        Trainers call it once for each step, before they compute that step's reward: a normaliser without data would
        give rewards so large that values never recover from them.
        """

    def learn(self, transitions: Transitions) -> Mapping[str, float]:
        """One gradient step of the signal's networks on a minibatch; losses by the names of their statistics.

        Raises:
            NotFiniteError: if a loss is NaN or infinite; then the weights are those before the step.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, normaliser, random state: plain values and NumPy arrays."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027  # a signal may have no state
        """Continue from `state_dict()`.

        Raises:
            StageError: if the state belongs to other networks; the message names the tensor.
        """


class Extrinsic(RewardSignal):
    """Returns the environment's reward; learns nothing."""

    def compute(self, transitions: Transitions) -> Tensor:
        """The environment's reward [B] of each transition."""
        return transitions.rewards


def make_signals(context: TrainerContext) -> list[RewardSignal]:
    """Make the reward signals of a behaviour's settings, in their order. A signal's draws do not depend on the others.

    Raises:
        StageError: if demonstrations can't be read or don't fit, or an observation can't be learned from.
        LoadError: if a custom class can't be imported, is not a RewardSignal, does not take its arguments or raises.
    """
    return [_make_signal(name, context, _seed(context.seed, name)) for name in context.settings.signals]


def find_signal(settings: OwnSignalSettings, folder: Path | None, path: KeyPath) -> type[RewardSignal]:
    """The class that `use` names, which takes the arguments under `with`.

    Args:
        settings: the signal's block in the YAML.
        folder: the YAML's folder, whose modules are importable.
        path: the path of the block.

    Raises:
        LoadError: if the class can't be imported, is not a RewardSignal, or does not take its arguments.
    """
    where = dotted(path)
    with blaming(*path, "use"):
        found: type[Any] = find_class(where, settings.use, folder)
        if not issubclass(found, RewardSignal):
            raise LoadError(f"{where}: {settings.use} is not derived from headrace.RewardSignal")
    with blaming(*path, "with"):
        made: Callable[..., RewardSignal] = found
        # The arguments that every signal gets precede its own.
        check_arguments(where, settings.use, partial(made, "", settings, None, 0), settings.with_)
    return found


def _make_signal(name: str, context: TrainerContext, seed: int) -> RewardSignal:
    settings, reference = context.settings.signals[name], context.settings.reward_signals.class_of(name)
    if not isinstance(settings, OwnSignalSettings):
        built_in: RewardSignal = load_attribute(reference, None, "reward signal")(name, settings, context, seed)
        return built_in
    path = ("behaviors", context.behavior, "reward_signals", name)
    found = find_signal(settings, context.folder, path)
    with blaming(*path):
        made = partial(found, name, settings, context, seed)
        signal: RewardSignal = construct(dotted(path), reference, made, settings.with_)
    return signal


def _seed(base: int, name: str) -> int:
    """A separate seed, so that the signal's networks don't start as copies of the trainer's or another signal's."""
    return int(np.random.SeedSequence([base, crc32(name.encode())]).generate_state(1, np.uint64)[0])


# Reward signals with a network: design, normaliser, optimizer, state.


class TrainedNetwork(Generic[Module]):
    """A module's parameters and their Adam.

    Args:
        module: the module to train.
        learning_rate: Adam's step size, constant.
        device: the device that holds the parameters.
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
        """The number of gradient steps taken."""
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
        """Weights, and Adam's steps and moments, by parameter name, copied to the host."""
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
        name: the signal's key in the YAML.
        settings: the signal's block in the YAML.
        context: the trainer's: behaviour, spec, device, folder.
        seed: the source of its randomness: initial weights, and draws while learning.
    """

    def __init__(self, name: str, settings: LearnedSignalSettings, context: TrainerContext, seed: int) -> None:
        super().__init__(name, settings, context, seed)
        self.design = design_of_signal(name, settings, context)
        self.device = context.device
        self.random = new_random(seed)
        size = ObservationLayout(context.spec).vector_size
        self.normalizer = Normalizer(size) if self.design.settings.normalize and size else None
        """The signal's own normaliser; None without normalisation."""
        module = seeded(self.random, lambda: self.build(settings))
        self.network = TrainedNetwork(module, settings.learning_rate, context.device)

    @abstractmethod
    def build(self, settings: Any) -> nn.Module:
        """Make the network to train, from `self.design`."""

    @abstractmethod
    def losses(self, transitions: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar to descend, and scalars to report by the names of their statistics."""

    @property
    def remedy(self) -> str:
        """The end of the message about rewards that are not finite."""
        return (
            f"; look for NaN in its weights and for very large observations ({self.design.key}.normalize scales them)"
        )

    def learn(self, transitions: Transitions) -> Mapping[str, float]:
        """One gradient step on a minibatch; losses by the names of their statistics.

        Raises:
            NotFiniteError: if a loss or gradient is NaN or infinite; then the network is as before.
        """
        loss, reported = self.losses(transitions)
        if not self.network.descend(loss):
            losses = ", ".join(f"{name} {float(value.detach()):.4g}" for name, value in reported.items())
            raise NotFiniteError(
                f"{self.where}: a loss or its gradient is NaN or infinite ({losses}); its weights from before the "
                f"update are kept. A lower reward_signals.{self.name}.learning_rate or {self.design.key}.normalize "
                "often helps"
            )
        values = torch.stack([value.detach() for value in reported.values()]).tolist()  # one wait for the device
        return dict(zip(reported, values, strict=True))

    def observe(self, vectors: Array) -> None:
        """Count the vector observations [n, V] of new steps in the normaliser."""
        if self.normalizer is not None:
            self.normalizer.update(vectors)

    def normalized(self, inputs: Inputs) -> Inputs:
        """Inputs in the form that the network takes; unchanged without normalisation."""
        if self.normalizer is None:
            return inputs
        tensors = (*self.normalizer.tensors(), self.normalizer.mean_rest)
        mean, inverse_std, rest = (torch.from_numpy(tensor).to(self.device) for tensor in tensors)
        centred = inputs.vectors - mean
        if inputs.vectors_rest is not None:
            centred += inputs.vectors_rest - rest
        vectors = (centred * inverse_std).clamp(-NORMALIZED_LIMIT, NORMALIZED_LIMIT)
        return inputs._replace(vectors=vectors, vectors_rest=None)

    def state_dict(self) -> dict[str, Any]:
        """Network, optimizer, normaliser, random state."""
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
    """Return the design of a signal's network, from its settings, without memory.

    `encoding_size` stands for `hidden_units` if `network_settings` were not given, as in old ML-Agents files.
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


def reward_scale(signals: Sequence[RewardSignal], hyperparameters: object) -> RewardScale | None:
    """Return the scale of the environment's rewards; None if they are not scaled."""
    own = [signal for signal in signals if isinstance(signal, Extrinsic)]
    scaled = getattr(hyperparameters, "reward_normalization", False) and own
    return RewardScale(float(own[0].gamma)) if scaled else None
