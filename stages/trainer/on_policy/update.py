"""PPO on one page: epochs of minibatches over one rollout, each minibatch's clipped loss, and a step of Adam.

Schulman et al. (2017), "Proximal Policy Optimization Algorithms". `OnPolicyUpdate` has the loop in lines 6 and 7 of
algorithm 1, for any losses. `PPOUpdate` has PPO's losses, eq. 7 and 9. The advantages of eq. 11 are in `signals`, and
the weights of rows that arrive late are in `values`.

An update is a function of parameters, optimizer state and one rollout: it reads no tensor's value, so nothing waits for
a device (except for `target_kl`, once per epoch), and the inner step has fixed shapes. A step's gradients can therefore
be computed in several ways (`headrace.stages.trainer.gradients`); see `find_gradients` and `advance`.

Axis letters: R rows of a minibatch, P columns of log-probabilities (one for the joint action, or one per action
dimension and branch), S reward signals, H head outputs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import mse_loss

from headrace.config import OnPolicyHyperparameters
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import NotFiniteError
from headrace.stages.policy.network.layers import Inputs, categorical_log_probs, gaussian_scores
from headrace.stages.policy.network.protocol import ActorCriticNetwork, TrainedActor
from headrace.stages.trainer.adam import Adam, GradientParts, NetworkUpdate, not_finite
from headrace.stages.trainer.gradients import Gradients
from headrace.stages.trainer.on_policy.anchor import Anchor
from headrace.stages.trainer.on_policy.by_hand import Numbers, mean_of
from headrace.stages.trainer.on_policy.minibatches import AnyMinibatch, Minibatch, MinibatchSource
from headrace.stages.trainer.on_policy.values import change_of, measured
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The hyperparameters with schedules, at their values in one update."""

    learning_rate: float
    beta: float
    """Weight of the entropy bonus, c₂ in eq. 9."""
    epsilon: float = 0.0
    """Clip range; 0 for an algorithm without clipping."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses averaged over one update's minibatches."""

    policy: float
    """Mean of the absolute policy losses, as ML-Agents reports it."""
    value: float
    entropy: float
    others: Mapping[str, float] = field(default_factory=dict)
    """Other losses, keyed by the names of their statistics."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """Results that are only reported and not minimised, keyed by name."""

    def named(self, coefficients: Coefficients) -> dict[str, float]:
        """Return the statistics, keyed by name, including the update's scheduled hyperparameters."""
        found = {"Losses/Policy Loss": self.policy, "Losses/Value Loss": self.value}
        found |= {f"Losses/{name}": loss for name, loss in self.others.items()}
        found |= {f"Policy/{name}": measure for name, measure in self.measures.items()}
        found |= {"Policy/Entropy": self.entropy, "Policy/Learning Rate": coefficients.learning_rate}
        if coefficients.epsilon:
            found["Policy/Epsilon"] = coefficients.epsilon
        return found | {"Policy/Beta": coefficients.beta}


@dataclass(slots=True)
class _StepResults:
    """The results of an update's gradient steps so far, on the device."""

    losses: list[Tensor] = field(default_factory=list)
    """For each minibatch, all results [k] of `losses`."""
    shares: list[float] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    """For each minibatch of the last epoch measured, the norms [k] of the gradient's parts."""
    epochs: list[Tensor] = field(default_factory=list)
    """The result of `measured` for each epoch measured; empty for algorithms without a clip range."""


class OnPolicyUpdate(NetworkUpdate, Generic[AnyMinibatch]):
    """Runs an update's gradient steps.

    Args:
        network: the network to train.
        spec: the behaviour's spec, for its actions.
        hyperparameters: epochs, batch size and so on.
        replicas: the replicas that make the same update, each with its part of every minibatch.

    Attributes:
        find_gradients: sets the gradients of a minibatch's weighted losses (for this replica's part of the rows), and
            returns the results [k] of `losses`; uses autograd unless replaced.
        advance: takes a gradient step; returns the same results, and those of `_descend`.
        ratios: log(π / π_old) [R, P] of the latest minibatch, for the statistics; None without clipping.
        measuring: true in epochs that are measured: all epochs with `target_kl`, otherwise the last one.
    """

    names: ClassVar[tuple[str, ...]]
    """Names, for messages, of the results of `losses`: first the policy loss, then the value loss, and last the
    entropy."""
    of_value: ClassVar[tuple[float, ...]] = (1.0,)
    """Weights of the losses after the policy loss, except for the entropy, as factors on `value_coefficient`."""
    measures: tuple[str, ...] = ()
    """Names of additional results of `losses`, after the entropy, that are only reported, as `Policy/<name>`."""
    anchor: Anchor | None = None
    """The anchor of a regularised policy; None for other policies."""

    def __init__(
        self,
        network: TrainedActor,
        spec: BehaviorSpec,
        hyperparameters: OnPolicyHyperparameters,
        replicas: Replicas = SINGLE_TRAINER,
    ) -> None:
        super().__init__(network, Adam(network.values, network.gradients, hyperparameters.adam_epsilon), replicas)
        self.settings = hyperparameters
        self._continuous = spec.actions.continuous_size
        self._branches = list(spec.actions.discrete_branches)
        self._behavior = spec.name
        self._batch_rows = hyperparameters.batch_rows
        self._parts = None
        if hyperparameters.max_grad_norm is not None:
            self._parts = GradientParts(network.gradients, network.parts, hyperparameters.shared_grad_norm)
        self.find_gradients: Gradients[[AnyMinibatch, Coefficients, Tensor], Tensor] = self.by_autograd
        self.advance: Gradients[[AnyMinibatch, Coefficients, Tensor], tuple[Tensor, Tensor | None]] = self.step
        self.ratios: Tensor | None = None
        self.measuring = False

    def run(
        self,
        rollout: MinibatchSource[AnyMinibatch],
        coefficients: Coefficients,
        random: np.random.Generator,
        step: int,
        after_each: Callable[[Tensor], None] | None = None,
    ) -> Losses:
        """Learn from a rollout of at least `batch_rows` rows.

        Args:
            rollout: the rows to learn from.
            coefficients: the scheduled hyperparameters of this update.
            random: the generator that shuffles the rows.
            step: agent steps so far, for the error message.
            after_each: called with the rows of each minibatch after its gradient step.

        Raises:
            NotFiniteError: if a loss or a weight becomes NaN or infinite; weights and optimizer are then restored.
        """
        h, steps = self.settings, _StepResults()
        with self.adam.undone_on_failure():
            weights = self.loss_weights(coefficients)
            epochs = rollout.epochs(h.num_epoch, self._batch_rows, random, self.replicas)
            for epoch, minibatches in enumerate(epochs, 1):
                self.measuring = h.target_kl is not None or epoch == h.num_epoch
                self._learn(minibatches, coefficients, weights, steps, after_each)
                if h.target_kl is not None and steps.epochs and change_of(steps.epochs[-1]).beyond(h.target_kl):
                    break
            results = torch.stack(steps.losses)
            if self.replicas.size > 1:
                results *= torch.tensor(steps.shares, device=results.device)[:, None]
                self.replicas.add_up(results)
            sound = torch.isfinite(self.network.values).all()
            results = results.cpu()  # a single copy, because each separate read from a GPU waits for the GPU
            table = results[:, : len(self.names)]
            if not (bool(torch.isfinite(table).all()) and bool(sound)):
                words = not_finite(self.names, table.numpy(), "learning_rate, max_grad_norm,")
                raise NotFiniteError(f"{self._behavior}: update at step {step}: {words}")
        policy, value, entropy = table[:, 0].abs().mean(), table[:, 1].mean(), table[:, -1].mean()
        others = {name.title(): float(table[:, at].mean()) for at, name in enumerate(self.names[2:-1], 2)}
        measures = {name: float(results[:, at].mean()) for at, name in enumerate(self.measures, len(self.names))}
        return Losses(float(policy), float(value), float(entropy), others, measures | self._of_steps(steps))

    def _learn(
        self,
        minibatches: Iterable[AnyMinibatch],
        coefficients: Coefficients,
        weights: Tensor,
        steps: _StepResults,
        after_each: Callable[[Tensor], None] | None,
    ) -> None:
        steps.norms.clear()
        before, log_ratios = len(steps.shares), []
        for minibatch in minibatches:
            losses, norms = self.advance(minibatch, coefficients, weights)
            if self.measuring:
                steps.norms.append(self.norms() if norms is None else norms)
                if self.ratios is not None:
                    log_ratios.append(self.ratios)
            steps.shares.append(minibatch.share)
            steps.losses.append(losses)
            if after_each is not None:
                after_each(minibatch.rows if minibatch.together is None else minibatch.together)
        if log_ratios:
            steps.epochs.append(measured(log_ratios, steps.shares[before:], coefficients.epsilon, self.replicas))

    def step(
        self, minibatch: AnyMinibatch, coefficients: Coefficients, weights: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Take a gradient step directly; see `advance`."""
        losses = self.find_gradients(minibatch, coefficients, weights)
        return losses, self._descend(coefficients.learning_rate)

    def by_autograd(self, minibatch: AnyMinibatch, coefficients: Coefficients, weights: Tensor) -> Tensor:
        """Compute the gradients by autograd; see `find_gradients`."""
        self.network.gradients.zero_()
        # A single sum: for gradients passed to backward, torch imports sympy, which costs 0.4 s and 34 MB.
        results = torch.stack(self.losses(minibatch, coefficients))
        total = results[: len(weights)] @ weights
        torch.autograd.backward(total if minibatch.share == 1.0 else total * minibatch.share)
        return results.detach()

    def _descend(self, learning_rate: float | Tensor) -> Tensor | None:
        """Take one step along the computed gradients.

        Returns:
            The norms [k] of the gradient's parts before clipping; None without `max_grad_norm`.
        """
        h, norms = self.settings, None
        self.replicas.add_up(self.network.gradients)
        if self._parts is not None and h.max_grad_norm is not None:
            # Separately by default, because the value loss would dominate a norm shared by actor and critic.
            norms = self._parts.clip(h.max_grad_norm)
        self.adam.step(learning_rate)
        return norms

    def norms(self) -> Tensor:
        """Return the norm [1] of the full gradient."""
        norm: Tensor = torch.linalg.vector_norm(self.network.gradients)[None]
        return norm

    @abstractmethod
    def losses(self, batch: AnyMinibatch, coefficients: Coefficients) -> tuple[Tensor, ...]:
        """Return a minibatch's losses in the order of `names`, followed by the `measures`, all of them scalars."""

    def loss_weights(self, coefficients: Coefficients) -> Tensor:
        """Return the losses' weights. Without a bonus, the entropy has no weight, which saves its backward pass."""
        numbers = [1.0, *(self.settings.value_coefficient * each for each in self.of_value)]
        numbers += [-coefficients.beta] if coefficients.beta else []
        return torch.tensor(numbers, device=self.network.values.device)

    def log_probs_and_entropy(self, heads: Tensor, batch: Minibatch) -> tuple[Tensor, Tensor]:
        """Return log-probabilities [R, P] given head outputs [R, H], and the entropy as ML-Agents weights it."""
        columns, entropies = [], []
        logits = heads
        if self._continuous:
            found = gaussian_scores(heads, self.network.log_sigma, batch.continuous, self.network.squashed)
            of_continuous, entropy, logits = found
            columns.append(of_continuous)
            entropies.append(entropy)
        if batch.penalties.shape[1]:
            logits = logits + batch.penalties
        for branch, choices in zip(torch.split(logits, self._branches, dim=1), batch.choices, strict=True):
            chosen, entropy = categorical_log_probs(branch, choices)
            columns.append(chosen)
            entropies.append(entropy)
        log_probs = columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)
        if not self.settings.ratio_per_dimension and log_probs.shape[1] > 1:
            log_probs = log_probs.sum(dim=1, keepdim=True)
        return log_probs, entropies[0] if len(entropies) == 1 else torch.stack(entropies).sum()

    @torch.no_grad()
    def log_probs(self, heads: Tensor, rows: Minibatch) -> NDArray[np.float32]:
        """Return the log-probabilities [N, P] of N rows' actions, given the actor's head outputs [N, H]."""
        found: NDArray[np.float32] = self.log_probs_and_entropy(heads, rows)[0].cpu().numpy()
        return found

    @torch.no_grad()
    def current_log_probs(self, minibatches: Iterable[Minibatch]) -> NDArray[np.float32]:
        """Return the log-probabilities [N, P] of the minibatches' actions under the current policy.

        Each replica computes some of the minibatches.
        """
        found, replicas = [], self.replicas
        for number, batch in enumerate(minibatches):
            if number % replicas.size != replicas.rank:
                found.append(torch.zeros_like(batch.old_log_probs))
                continue
            heads = self.heads(batch.inputs)
            if batch.real is not None:
                heads = heads.index_select(0, batch.real)
            found.append(self.log_probs_and_entropy(heads, batch)[0])
        of_all = torch.cat(found)
        replicas.add_up(of_all)
        log_probs: NDArray[np.float32] = of_all.cpu().numpy()
        return log_probs

    def _of_steps(self, steps: _StepResults) -> dict[str, float]:
        """Return the statistics of the gradient steps that all algorithms have, keyed by name."""
        norms = torch.stack(steps.norms).cpu()
        found = {"Gradient Norm": float(norms.square().sum(dim=1).sqrt().mean())}
        if norms.shape[1] > 1:
            actor, critic = norms.mean(dim=0).tolist()
            found |= {"Actor Gradient Norm": actor, "Critic Gradient Norm": critic}
        if steps.epochs:
            found |= change_of(steps.epochs[-1]).named()
            if self.settings.target_kl is not None:
                found["Epochs"] = float(len(steps.epochs))
        return found


class PPOUpdate(OnPolicyUpdate[Minibatch]):
    """Trains an actor and a critic for single agents; takes the arguments of `OnPolicyUpdate`, and the anchor."""

    names = ("policy loss", "value loss", "entropy")
    network: ActorCriticNetwork

    def __init__(self, *arguments: Any, anchor: Anchor | None = None) -> None:
        super().__init__(*arguments)
        self.anchor = anchor
        self.measures = () if anchor is None else ("Anchor KL",)

    def heads(self, inputs: Inputs) -> Tensor:
        """Return the actor's head outputs [B, H]."""
        return self.network.heads(inputs)

    def losses(self, batch: Minibatch, coefficients: Coefficients) -> tuple[Tensor, ...]:
        """Return policy loss, value loss and entropy (the terms of eq. 9), and the divergence if there is an anchor."""
        heads, values = self.network(batch.inputs, batch.critic_memories)
        if batch.real is not None:  # drop padding, so plain means are masked means
            heads, values = heads.index_select(0, batch.real), values.index_select(0, batch.real)
        log_probs, entropy = self.log_probs_and_entropy(heads, batch)
        log_ratios = log_probs - batch.old_log_probs
        self.ratios = log_ratios.detach()
        policy = clipped_policy_loss(log_ratios, batch.advantages, coefficients.epsilon)
        value = value_loss(values, batch.returns)
        if self.anchor is None:
            return policy, value, entropy
        kl = self.anchor.divergence(heads, batch)
        return policy + self.anchor.coefficient * kl, value, entropy, kl


def clipped_policy_loss(log_ratios: Tensor, advantages: Tensor, epsilon: float) -> Tensor:
    """Return the clipped surrogate, eq. 7, with its sign reversed to make it a loss.

    Args:
        log_ratios: [R, P] the actions' log-probabilities under the trained policy, minus those under the policy before
            the update; if not decoupled, minus those under the policy that acted.
        advantages: [R, 1] normalised advantages; [R, P] if they are weighted.
        epsilon: how far a ratio may move from 1 before its gradient becomes 0.

    Returns:
        The mean over rows and columns: a scalar.
    """
    ratio = torch.exp(log_ratios)
    cost = -advantages
    return torch.maximum(ratio * cost, clip(ratio, epsilon) * cost).mean()


def clipped_by_hand(log_ratios: Numbers, advantages: Numbers, epsilon: float) -> tuple[float, Numbers]:
    """Return `clipped_policy_loss` for arrays [P, R], and its gradient w.r.t. the log-ratios (0 where clipped)."""
    ratios = np.exp(log_ratios)
    clipped = clip(ratios, epsilon)
    ratios *= advantages
    clipped *= advantages
    loss = -mean_of(np.minimum(ratios, clipped))
    ratios *= ratios <= clipped
    ratios *= -1.0 / ratios.size
    return loss, ratios


_Ratios = TypeVar("_Ratios", Tensor, Numbers)


def clip(ratios: _Ratios, epsilon: float) -> _Ratios:
    """Clip the ratios in eq. 7 to 1 ± ε."""
    low, high = 1.0 - epsilon, 1.0 + epsilon
    if isinstance(ratios, Tensor):
        return ratios.clamp(low, high)
    number = ratios.dtype.type
    return np.minimum(np.maximum(ratios, number(low)), number(high))  # `np.clip` takes twice as long for a minibatch


def value_loss(values: Tensor, returns: Tensor) -> Tensor:
    """Return the mean squared error between values and returns [R, S], a scalar, not clipped (docs/differences.md)."""
    return mse_loss(values, returns)


def value_loss_by_hand(values: Numbers, returns: Numbers, weight: float, of_values: Numbers) -> float:
    """Return `value_loss` for arrays [S, R]; write its gradient w.r.t. the values, times `weight`, to `of_values`."""
    np.subtract(values, returns, out=of_values)
    loss = float(np.vdot(of_values, of_values)) / of_values.size
    of_values *= 2.0 * weight / of_values.size
    return loss
