"""The base classes of reward signals, with and without a network, and the factory that makes all signals.

A reward signal is a number per transition, to be maximised in addition to the environment's reward or instead of it.
The environment's reward is also a signal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
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
from headrace.stages.trainer.trajectories import AgentTable, Chains, RewardScale, add_to_episodes

_ROWS = 2048
"""Number of rows per forward pass when computing rewards, to limit memory for a full buffer of images."""


# The trainer computes rewards; in actors, every policy would have to include the signals' networks
# (docs/decisions/042).
class RewardSignal(ABC):
    """One of a behaviour's `reward_signals`. Trainers have one value head per signal.

    Args:
        name: the signal's key in the YAML.
        settings: the signal's block in the YAML.
        context: the trainer's context: behaviour, spec, device, folder.
        seed: seed of all the signal's random draws.

    Attributes:
        name: the signal's key in the YAML, as passed to the constructor.
        gamma: the signal's discount per agent step.
        strength: factor on the reward, applied by the trainer.
        context: the trainer's context, as passed to the constructor.
        where: the beginning of error messages.
        ignores_termination: true if the signal's value continues past the end of an episode, as for novelty, which does
            not depend on the task's rules. The trainer then also bootstraps where an episode terminates.
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
        """Return the reward [B] of each transition, not multiplied by the strength. Gradients are disabled.

        This method must not change any state that is saved in checkpoints.
        """

    def rewards(self, transitions: Transitions) -> NDArray[np.float32]:
        """Return the reward [B] of each transition as a new array, not multiplied by the strength.

        Raises:
            NotFiniteError: if a reward is NaN or infinite.
            StageError: if the number of rewards from `compute` differs from the number of transitions.
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
                        f"{self.where}: compute returned a tensor of shape {list(computed.shape)}; expected "
                        f"{list(piece.rewards.shape)}: one reward for each transition"
                    )
                out[rows] = computed.cpu().numpy()
        finite = np.isfinite(out)
        if not finite.all():
            raise NotFiniteError(
                f"{self.where}: the reward of {int((~finite).sum())} of {total} steps is NaN or infinite; the first "
                f"is {out[~finite][0]}; see {type(self).__name__}.compute, or look for NaN in weights and very large "
                "observations (network_settings.normalize scales them)"
            )
        return out

    def observe(self, vectors: Array) -> None:  # noqa: B027  # a signal may normalise nothing
        """Update the signal's normaliser, if any, with the vector observations [n, V] of new steps.

        Trainers call this once for each step, before they compute that step's reward. Otherwise the normaliser would
        have no data, and rewards would be so large that values never recover from them.
        """

    def learn(self, transitions: Transitions) -> Mapping[str, float]:
        """Take a gradient step for the signal's networks on a minibatch; return losses, keyed by statistic name.

        Raises:
            NotFiniteError: if a loss is NaN or infinite; the weights from before the step are kept.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer, normaliser and random state, as plain values and NumPy arrays."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027  # a signal may have no state
        """Restore the state from `state_dict()`.

        Raises:
            StageError: if the state belongs to different networks; the message names the tensor.
        """


class Extrinsic(RewardSignal):
    """Returns the environment's reward. It has nothing to learn."""

    def compute(self, transitions: Transitions) -> Tensor:
        """Return the environment's reward [B] for each transition."""
        return transitions.rewards


def make_signals(context: TrainerContext) -> list[RewardSignal]:
    """Make a behaviour's reward signals in the order of its settings. Each signal has its own random draws.

    Raises:
        StageError: if demonstrations can't be read or don't fit, or an observation is of a kind that can't be learned
            from.
        LoadError: if a custom class can't be imported, is not a RewardSignal, does not accept its arguments, or raises
            an exception.
    """
    signals: list[RewardSignal] = []
    for name, settings in context.settings.signals.items():
        # A separate seed, so the signal's networks don't start as copies of the trainer's or another signal's.
        seed = int(np.random.SeedSequence([context.seed, crc32(name.encode())]).generate_state(1, np.uint64)[0])
        reference = context.settings.reward_signals.class_of(name)
        if not isinstance(settings, OwnSignalSettings):
            signals.append(load_attribute(reference, None, "reward signal")(name, settings, context, seed))
            continue
        path = ("behaviors", context.behavior, "reward_signals", name)
        made = partial(find_signal(settings, context.folder, path), name, settings, context, seed)
        with blaming(*path):
            signals.append(construct(dotted(path), reference, made, settings.with_))
    return signals


def find_signal(settings: OwnSignalSettings, folder: Path | None, path: KeyPath) -> type[RewardSignal]:
    """Return the class that `use` names, after checking that it accepts the arguments under `with`.

    Args:
        settings: the signal's block in the YAML.
        folder: the YAML's folder, whose modules are importable.
        path: the block's key path.

    Raises:
        LoadError: if the class can't be imported, is not a RewardSignal, or does not accept its arguments.
    """
    where = dotted(path)
    with blaming(*path, "use"):
        signal_class: type[Any] = find_class(where, settings.use, folder)
        if not issubclass(signal_class, RewardSignal):
            raise LoadError(f"{where}: {settings.use} is not derived from headrace.RewardSignal")
    with blaming(*path, "with"):
        made: Callable[..., RewardSignal] = signal_class
        # The arguments that every signal gets come before its own arguments.
        check_arguments(where, settings.use, partial(made, "", settings, None, 0), settings.with_)
    return signal_class


# Reward signals with a network: their design, normaliser, optimizer and state.


class NetworkSignal(RewardSignal, Generic[Module]):
    """A reward signal with one network, which Adam trains at a constant learning rate; arguments as for `RewardSignal`.

    Attributes:
        design: observations and sizes of the network, according to the signal's settings; it has no memory.
        device: the torch device that holds the network.
        random: the generator of the signal's random draws: initial weights, and draws while learning.
        normalizer: the signal's normaliser; None if inputs are not normalised.
        network: the network's parameters; `network.module` is the module that `build` made.
    """

    def __init__(self, name: str, settings: LearnedSignalSettings, context: TrainerContext, seed: int) -> None:
        super().__init__(name, settings, context, seed)
        network = settings.network_settings.model_copy(update={"memory": None})
        key = f"reward_signals.{name}.network_settings"
        self.design = PolicyDesign(context.spec, network, folder=context.folder, key=key)
        self.device = context.device
        self.random = new_random(seed)
        size = ObservationLayout(context.spec).vector_size
        self.normalizer = Normalizer(size) if self.design.settings.normalize and size else None
        self.network = FlatParameters(seeded(self.random, lambda: self.build(settings)), context.device)
        self._adam = Adam(self.network.values, self.network.gradients)
        self._learning_rate = settings.learning_rate

    @property
    def updates(self) -> int:
        """The number of gradient steps taken."""
        return self._adam.steps

    @abstractmethod
    def build(self, settings: Any) -> Module:
        """Make the network to train, following `self.design`."""

    @abstractmethod
    def losses(self, transitions: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the scalar loss to minimise, and the scalars to report, keyed by statistic name."""

    def learn(self, transitions: Transitions) -> Mapping[str, float]:
        """Take a gradient step on a minibatch; return losses, keyed by statistic name.

        Raises:
            NotFiniteError: if a loss or gradient is NaN or infinite; the network is then unchanged.
        """
        loss, reported = self.losses(transitions)
        gradients = self.network.gradients.zero_()
        torch.autograd.backward(loss)
        if not bool(torch.isfinite(loss) & torch.isfinite(gradients).all()):
            losses = ", ".join(f"{name} {float(value.detach()):.4g}" for name, value in reported.items())
            raise NotFiniteError(
                f"{self.where}: a loss or its gradient is NaN or infinite ({losses}); its weights from before the "
                f"update are kept. A lower reward_signals.{self.name}.learning_rate or {self.design.key}.normalize "
                "often helps"
            )
        self._adam.step(self._learning_rate)
        values = torch.stack([value.detach() for value in reported.values()]).tolist()  # a single wait for the device
        return dict(zip(reported, values, strict=True))

    def observe(self, vectors: Array) -> None:
        """Update the normaliser with the vector observations [n, V] of new steps."""
        if self.normalizer is not None:
            self.normalizer.update(vectors)

    def normalized(self, inputs: Inputs) -> Inputs:
        """Return inputs in the form that the network takes; they are unchanged without normalisation."""
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
        """Return network, optimizer, normaliser and random state."""
        return {
            "network": {"weights": self.network.state_dict(), **self._adam.state_dict(self.network.named_views)},
            "normalizer": None if self.normalizer is None else self.normalizer.state_dict(),
            "random": random_state(self.random),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`."""
        if (self.normalizer is None) != (state["normalizer"] is None):
            now, then = ("false", "true") if self.normalizer is None else ("true", "false")
            raise StageError(
                f"{self.where}: {self.design.key}.normalize is {now}, but was {then} when the state was saved"
            )
        with self.context.naming_behavior(f"reward signal {self.name}"):
            self.network.load(state["network"]["weights"])
            self._adam.load_state_dict(self.network.named_views, state["network"])
            if self.normalizer is not None:
                self.normalizer.load_state_dict(state["normalizer"])
        restore_random(self.random, state["random"])


def action_inputs(actions: ActionSpec, continuous: Tensor, choices: Tensor) -> Tensor:
    """Return actions as network inputs [B, C + choices]: continuous actions, followed by a one-hot per branch.

    This is `headrace.stages.policy.sampling.action_features` for tensors.
    """
    hot = [F.one_hot(choices[:, i], size).float() for i, size in enumerate(actions.discrete_branches)]
    return torch.cat([continuous, *hot], dim=1)


class Signals:
    """A behaviour's S reward signals, in the order of its settings.

    Args:
        context: the trainer's context.
        hyperparameters: the trainer's hyperparameters. They are a separate argument because, for a subclass named as
            `module:Class`, the context has them only as plain data.

    Attributes:
        signals: [S] the signals.
        names: [S] the signals' names.
        gammas: [S] the signals' discounts.
        strengths: [S] the factors on the signals' rewards.
        ignore_termination: [S] true if a signal's value continues beyond the end of a terminated episode.
        others: the indices of all signals except the environment's reward.
        sums: for each agent in the middle of an episode, the sums of rewards so far from all signals except the
            environment's; None if there are no other signals.
        scale: scales the environment's rewards; None if they are not scaled.

    Raises:
        StageError: if a signal can't be made.
    """

    def __init__(self, context: TrainerContext, hyperparameters: object) -> None:
        self._context = context
        self.signals = make_signals(context)
        self.names = [signal.name for signal in self.signals]
        self.gammas = np.array([signal.gamma for signal in self.signals])
        self.strengths = np.array([signal.strength for signal in self.signals])
        self.ignore_termination: NDArray[np.bool_] = np.array([signal.ignores_termination for signal in self.signals])
        self.others = [at for at, signal in enumerate(self.signals) if not isinstance(signal, Extrinsic)]
        self.sums = AgentTable(len(self.others), "float64") if self.others else None
        extrinsic = [signal for signal in self.signals if isinstance(signal, Extrinsic)]
        scaled = getattr(hyperparameters, "reward_normalization", False) and extrinsic
        self.scale = RewardScale(float(extrinsic[0].gamma)) if scaled else None

    def observe(self, vectors: Array) -> None:
        """Pass the vector observations [n, V] of new steps to all signals except the environment's reward."""
        for at in self.others:
            self.signals[at].observe(vectors)

    def report_episodes(
        self, lengths: NDArray[np.integer], chains: Chains, rewards: NDArray[np.float64], update: int
    ) -> None:
        """Report the sums of rewards over the episodes that end with some of K trajectories of N rows.

        Args:
            lengths: [K] the number of rows of each trajectory.
            chains: the trajectories.
            rewards: [N, others] the rewards of all signals except the environment's, times the signals' strengths.
            update: the update's number, ascending.
        """
        assert self.sums is not None, "only called if there are other signals"
        amounts = np.add.reduceat(rewards, np.cumsum(lengths) - lengths)
        finished = add_to_episodes(self.sums, chains, amounts, update)
        for column, at in enumerate(self.others):
            if len(finished):
                name, sums = f"Policy/{self.names[at].capitalize()} Reward", finished[:, column].tolist()
                self._context.statistics.extend(self._context.behavior, name, sums, "mean")

    def state_dict(self) -> dict[str, Any]:
        """Return the signals' states, keyed by name, and the running sums."""
        return {
            "signals": {signal.name: signal.state_dict() for signal in self.signals},
            "sums": None if self.sums is None else self.sums.state_dict(),
            "scale": None if self.scale is None else self.scale.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`.

        Raises:
            StageError: if the state belongs to different signals or networks; the message names signals or tensor.
        """
        saved, expected = sorted(state["signals"]), sorted(self.names)
        if saved != expected:
            raise StageError(
                f"reward_signals are {', '.join(expected)}, but the saved state was made with {', '.join(saved)}; a "
                "resumed run needs the same signals"
            )
        for signal in self.signals:
            signal.load_state_dict(state["signals"][signal.name])
        if self.sums is not None:
            self.sums.load_state_dict(state["sums"])
        if self.scale is not None and state["scale"] is not None:
            self.scale.load_state_dict(state["scale"])
