"""The update of an actor and a critic: epochs of minibatches over one rollout, with Adam.

A function of parameters, optimizer state and one rollout: nothing inside looks at a value, so nothing waits
for a device (but for `target_kl`, once an epoch), and the inner step has fixed shapes (on a GPU, PPO's is captured as
one graph: `headrace.stages.trainer.captured_step`). The losses belong to the algorithm: a subclass computes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic

import numpy as np
import torch
from torch import Tensor

from headrace.config import OnPolicyHyperparameters
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import NotFiniteError
from headrace.stages.policy.network.distributions import categorical_log_probs, gaussian_entropy, gaussian_log_probs
from headrace.stages.policy.network.inputs import Inputs
from headrace.stages.policy.network.protocol import TrainedActor
from headrace.stages.trainer.adam import Adam, GradientParts
from headrace.stages.trainer.on_policy.minibatches import AnyMinibatch, Minibatch, MinibatchSource
from headrace.stages.trainer.replicas import SINGLE_TRAINER, Replicas

VALUE_COEFFICIENT = 0.5
"""Weight of the value loss, as in ML-Agents."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The scheduled numbers of one update."""

    learning_rate: float
    beta: float
    """Weight of the entropy bonus."""
    epsilon: float = 0.0
    """Clip range; 0 for an algorithm that clips nothing."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Means over the minibatches of one update."""

    policy: float
    """Mean of absolute policy losses, as ML-Agents reports it."""
    value: float
    entropy: float
    others: Mapping[str, float] = field(default_factory=dict)
    """Further losses, by the names under which they are reported."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """What was only measured, by name."""


@dataclass(slots=True)
class _StepResults:
    """What the gradient steps of one update have shown so far, on the device."""

    losses: list[Tensor] = field(default_factory=list)
    """Of each minibatch all results of `losses`, [k]."""
    shares: list[float] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    """[k] norms of the parts of each gradient of the last epoch that was measured."""
    epochs: list[Tensor] = field(default_factory=list)
    """What was `measured` of each epoch, if at all; of an algorithm without a clip range, of none."""


class NetworkUpdate(ABC):
    """Owns a network, and the optimizer that changes it.

    Args:
        network: the network to train.
        adam: its optimizer.
        replicas: those that make the same update, each from its part of the rows.
    """

    def __init__(self, network: TrainedActor, adam: Adam, replicas: Replicas = SINGLE_TRAINER) -> None:
        self.network = network
        self.adam = adam
        self.replicas = replicas

    def state_dict(self) -> dict[str, Any]:
        """Adam's moments by parameter name, and its step count."""
        return self.adam.state_dict(self.network.named_views)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            StageError: naming the tensor that does not fit.
        """
        self.adam.load_state_dict(self.network.named_views, state)

    @abstractmethod
    def heads(self, inputs: Inputs) -> Tensor:
        """The actor's heads [B, H]."""


class OnPolicyUpdate(NetworkUpdate, Generic[AnyMinibatch]):
    """Makes the gradient steps of one update.

    Args:
        network: the network to train.
        spec: its actions.
        hyperparameters: epochs, batch size and so on.
        replicas: those that make the same update, each from its part of every minibatch.
    """

    names: ClassVar[tuple[str, ...]]
    """The results of `losses`, for messages: first the policy loss, then the value loss, last the entropy."""
    weights: ClassVar[tuple[float, ...]]
    """Weights of all of them but the entropy."""
    measures: ClassVar[tuple[str, ...]] = ()
    """Further results of `losses`, behind the entropy, that are only reported: statistics `Policy/<name>`."""

    def __init__(
        self,
        network: TrainedActor,
        spec: BehaviorSpec,
        hyperparameters: OnPolicyHyperparameters,
        replicas: Replicas = SINGLE_TRAINER,
    ) -> None:
        super().__init__(network, Adam(network.values, network.gradients, hyperparameters.adam_epsilon), replicas)
        self._settings = hyperparameters
        self._continuous = spec.actions.continuous_size
        self._branches = list(spec.actions.discrete_branches)
        self._behavior = spec.name
        self._parts = None
        if hyperparameters.max_grad_norm is not None:
            self._parts = GradientParts(network.gradients, network.parts)
        self._measuring = False
        """True in epochs that are measured: the last one, or with `target_kl` all."""
        self._log_ratios: list[Tensor] = []

    def run(
        self,
        rollout: MinibatchSource[AnyMinibatch],
        coefficients: Coefficients,
        random: np.random.Generator,
        step: int,
        after_each: Callable[[Tensor], None] | None = None,
    ) -> Losses:
        """Learn from a rollout of at least `batch_size` rows.

        Args:
            rollout: the rows.
            coefficients: the scheduled numbers of this update.
            random: shuffles the rows.
            step: agent steps so far, for the error message.
            after_each: called with the rows of each minibatch after its gradient step.

        Raises:
            NotFiniteError: if a loss or a weight became NaN or infinite; weights and optimizer are then as before.
        """
        h, made = self._settings, _StepResults()
        with self.adam.undone_on_failure():
            weights = self.loss_weights(coefficients)
            for epoch, minibatches in enumerate(rollout.epochs(h.num_epoch, h.batch_size, random, self.replicas), 1):
                self._measuring = h.target_kl is not None or epoch == h.num_epoch
                self._learn(minibatches, coefficients, weights, made, after_each)
                if h.target_kl is not None and made.epochs and change_of(made.epochs[-1]).beyond(h.target_kl):
                    break
            results = torch.stack(made.losses)
            if self.replicas.size > 1:
                results *= torch.tensor(made.shares, device=results.device)[:, None]
                self.replicas.add_up(results)
            sound = torch.isfinite(self.network.values).all()
            results = results.cpu()  # at once: a GPU is waited for at each number that is asked of it
            table = results[:, : len(self.names)]
            if not (bool(torch.isfinite(table).all()) and bool(sound)):
                raise NotFiniteError(self._complaint(table.numpy(), step))
        policy, value, entropy = table[:, 0].abs().mean(), table[:, 1].mean(), table[:, -1].mean()
        others = {name.title(): float(table[:, at].mean()) for at, name in enumerate(self.names[2:-1], 2)}
        measures = {name: float(results[:, at].mean()) for at, name in enumerate(self.measures, len(self.names))}
        return Losses(float(policy), float(value), float(entropy), others, measures | self._of_steps(made))

    def _learn(
        self,
        minibatches: Iterable[AnyMinibatch],
        coefficients: Coefficients,
        weights: Tensor,
        made: _StepResults,
        after_each: Callable[[Tensor], None] | None,
    ) -> None:
        """Make the gradient steps of one epoch."""
        self._log_ratios.clear()
        made.norms.clear()
        before = len(made.shares)
        for minibatch in minibatches:
            losses, norms = self.advance(minibatch, coefficients, weights)
            if self._measuring:
                made.norms.append(self.norms() if norms is None else norms)
            made.shares.append(minibatch.share)
            made.losses.append(losses)
            if after_each is not None:
                after_each(minibatch.rows if minibatch.together is None else minibatch.together)
        if self._log_ratios:
            made.epochs.append(measured(self._log_ratios, made.shares[before:], coefficients.epsilon, self.replicas))

    def advance(
        self, minibatch: AnyMinibatch, coefficients: Coefficients, weights: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Make a gradient step.

        Returns:
            The results [k] of `losses`, and what `_descend` gives.
        """
        losses = self.find_gradients(minibatch, coefficients, weights)
        return losses, self._descend(coefficients.learning_rate)

    def norms(self) -> Tensor:
        """The norm [1] of all gradients."""
        norm: Tensor = torch.linalg.vector_norm(self.network.gradients)[None]
        return norm

    def find_gradients(self, minibatch: AnyMinibatch, coefficients: Coefficients, weights: Tensor) -> Tensor:
        """Set the gradients of the weighted losses of a minibatch, or of this replica's share of them.

        Returns:
            The results [k] of `losses`.
        """
        self.network.gradients.zero_()
        # One sum: for gradients that it is given, torch imports sympy: 0.4 s and 34 MB.
        results = torch.stack(self.losses(minibatch, coefficients))
        total = results[: len(weights)] @ weights
        torch.autograd.backward(total if self.replicas.size == 1 else total * minibatch.share)
        return results.detach()

    def _descend(self, learning_rate: float | Tensor) -> Tensor | None:
        """One step down the gradients that were found.

        Returns:
            With `max_grad_norm` the norms [k] of the gradient's parts, before they were limited.
        """
        h, norms = self._settings, None
        if self.replicas.size > 1:
            self.replicas.add_up(self.network.gradients)
        if self._parts is not None and h.max_grad_norm is not None:
            # Apart, as the value loss would take most of a norm that actor and critic share.
            norms = self._parts.clip(h.max_grad_norm)
        self.adam.step(learning_rate)
        return norms

    def keep_ratios(self, log_ratios: Tensor) -> None:
        """Keep log(π / π_old) [R, P] of a minibatch for the statistics; for a `losses` that clips ratios."""
        if self._measuring:
            self._log_ratios.append(log_ratios.detach())

    @abstractmethod
    def losses(self, batch: AnyMinibatch, coefficients: Coefficients) -> tuple[Tensor, ...]:
        """The losses of a minibatch, in the order of `names`, then the `measures`: scalars."""

    def loss_weights(self, coefficients: Coefficients) -> Tensor:
        """Weights of the losses; none for the entropy without a bonus, which saves its backward pass."""
        numbers = [*self.weights, -coefficients.beta] if coefficients.beta else [*self.weights]
        return torch.tensor(numbers, device=self.network.values.device)

    def log_probs_and_entropy(self, heads: Tensor, batch: Minibatch) -> tuple[Tensor, Tensor]:
        """Log-probabilities [R, P] of the rows' actions, given heads [R, H]; the entropy as ML-Agents weighs it."""
        columns, entropies = [], []
        logits = heads
        if self.network.log_sigma is not None:
            mu, logits = heads[:, : self._continuous], heads[:, self._continuous :]
            columns.append(gaussian_log_probs(mu, self.network.log_sigma, batch.continuous))
            entropies.append(gaussian_entropy(self.network.log_sigma))
        if batch.penalties.shape[1]:
            logits = logits + batch.penalties
        for branch, choices in zip(torch.split(logits, self._branches, dim=1), batch.choices, strict=True):
            chosen, entropy = categorical_log_probs(branch, choices)
            columns.append(chosen)
            entropies.append(entropy)
        log_probs = columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)
        if not self._settings.ratio_per_dimension and log_probs.shape[1] > 1:
            log_probs = log_probs.sum(dim=1, keepdim=True)
        return log_probs, entropies[0] if len(entropies) == 1 else torch.stack(entropies).sum()

    def _of_steps(self, made: _StepResults) -> dict[str, float]:
        """What was measured of any algorithm's gradient steps, by the names of the statistics."""
        norms = torch.stack(made.norms).cpu()
        found = {"Gradient Norm": float(norms.square().sum(dim=1).sqrt().mean())}
        if norms.shape[1] > 1:
            actor, critic = norms.mean(dim=0).tolist()
            found |= {"Actor Gradient Norm": actor, "Critic Gradient Norm": critic}
        if made.epochs:
            found |= change_of(made.epochs[-1]).named()
            if self._settings.target_kl is not None:
                found["Epochs"] = float(len(made.epochs))
        return found

    def _complaint(self, losses: np.ndarray[Any, np.dtype[np.float32]], step: int) -> str:
        bad = np.argwhere(~np.isfinite(losses))
        where = f"{self._behavior}: update at step {step}"
        if not len(bad):
            return f"{where}: the last minibatch made weights NaN or infinite; the weights are those before the update"
        row, column = (int(i) for i in bad[0])
        name = self.names[column]
        return (
            f"{where}: the {name} of minibatch {row + 1} of {len(losses)} is {losses[row, column]}; "
            "the weights are those before the update. "
            "A lower learning_rate, max_grad_norm, or smaller rewards often help"
        )


def value_loss(values: Tensor, returns: Tensor) -> Tensor:
    """Mean squared error over rows and signals, [R, S] each: a scalar. Not clipped (docs/differences.md)."""
    return torch.nn.functional.mse_loss(values, returns)


# How far an update has moved the policy: measured from the probability ratios of the minibatches of an epoch. The
# ratios are those of the loss, r = π / π_old, each measured before its minibatch's gradient step. Nothing is computed
# for it minibatch by minibatch: their logarithms are kept, and measured together when an epoch is over.

TOLERANCE = 1.5
"""The epochs of an update end when approximate KL is above this many times `target_kl`, as in Stable-Baselines3."""


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """What the minibatches of one epoch show."""

    approximate_kl: float
    """Mean of r - 1 - log r over actions: Schulman's estimator k3 of KL(π_old, π), never negative."""
    clip_fraction: float
    """Share of the ratios that are further than ε from 1."""
    least_ratio: float
    greatest_ratio: float

    def named(self) -> dict[str, float]:
        """By the names of the statistics."""
        return {
            "Approximate KL": self.approximate_kl,
            "Clip Fraction": self.clip_fraction,
            "Ratio Min": self.least_ratio,
            "Ratio Max": self.greatest_ratio,
        }

    def beyond(self, target_kl: float | None) -> bool:
        """Return True if the epochs should end here."""
        return target_kl is not None and self.approximate_kl > TOLERANCE * target_kl


def measured(log_ratios: Sequence[Tensor], shares: Sequence[float], epsilon: float, replicas: Replicas) -> Tensor:
    """Measure an epoch, on the device: [replicas, 4] in the order of `PolicyChange`, still to be put together.

    Args:
        log_ratios: [R, P] of each minibatch, without gradient; R may differ.
        shares: the weights of the minibatches' means, where other replicas have other rows of the same ones.
        epsilon: the clip range.
        replicas: those that have the other rows.
    """
    rows = torch.cat(list(log_ratios))
    sizes = [len(each) for each in log_ratios]
    each_row = np.asarray(shares) / (len(sizes) * np.asarray(sizes))
    weights = torch.from_numpy(np.repeat(each_row, sizes).astype(np.float32)).to(rows)
    beyond = torch.expm1(rows)
    joint, beyond_joint = rows, beyond
    if rows.shape[1] > 1:
        joint = rows.sum(dim=1, keepdim=True)
        beyond_joint = torch.expm1(joint)
    kl = weights @ (beyond_joint - joint)[:, 0]
    clipped = weights @ (beyond.abs() > epsilon).to(rows).mean(dim=1)
    return replicas.of_each(torch.stack([kl, clipped, *(1.0 + end for end in torch.aminmax(beyond))]))


def change_of(found: Tensor) -> PolicyChange:
    """Put what was `measured` by each replica together."""
    kl, clipped, least, greatest = found.cpu().numpy().astype(np.float64).T
    return PolicyChange(float(kl.sum()), float(clipped.sum()), float(least.min()), float(greatest.max()))
