"""The PPO update: epochs of minibatches over one rollout, with Adam.

What does not depend on the critic is `PolicyUpdate`, which other critics build upon.

A function of parameters, optimizer state and one rollout: nothing inside looks at a value, so nothing waits
for a device, and the inner step has fixed shapes (it could be compiled or captured as one graph).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic

import numpy as np
import torch
from torch import Tensor

from config import OnPolicyHyperparameters
from queues.specs import BehaviorSpec
from stages.errors import NotFiniteError
from stages.policy.network.distributions import categorical_log_probs, gaussian_entropy, gaussian_log_probs
from stages.policy.network.protocol import ActorCriticNetwork, TrainedActor
from stages.trainer.adam import Adam, clip_norm
from stages.trainer.on_policy.loss import policy_loss, value_loss
from stages.trainer.on_policy.minibatch import Epochs, Minibatch, OneMinibatch

VALUE_COEFFICIENT = 0.5
"""Weight of the value loss, as in ML-Agents."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """What schedules say for one update."""

    learning_rate: float
    epsilon: float
    beta: float


@dataclass(frozen=True, slots=True)
class Losses:
    """Means over the minibatches of one update."""

    policy: float
    """Mean of absolute policy losses, as ML-Agents reports it."""
    value: float
    entropy: float
    others: Mapping[str, float] = field(default_factory=dict)
    """Further ones, by the names under which they are reported."""


class PolicyUpdate(ABC, Generic[OneMinibatch]):
    """Owns the optimizer of one network; knows the actor's losses, but not the critic's.

    Args:
        network: what is trained.
        spec: its actions.
        hyperparameters: epochs, batch size and so on.
    """

    names: ClassVar[tuple[str, ...]]
    """What `losses` gives, for messages: first the policy loss, then the value loss, last the entropy."""
    weights: ClassVar[tuple[float, ...]]
    """Of all of them but the entropy."""

    def __init__(self, network: TrainedActor, spec: BehaviorSpec, hyperparameters: OnPolicyHyperparameters) -> None:
        self._network = network
        self._settings = hyperparameters
        self._continuous = spec.actions.continuous_size
        self._branches = list(spec.actions.discrete_branches)
        self._behavior = spec.name
        self._adam = Adam(network.values, network.gradients, hyperparameters.adam_epsilon)

    def run(
        self,
        rollout: Epochs[OneMinibatch],
        coefficients: Coefficients,
        random: np.random.Generator,
        step: int,
        beside: Callable[[Tensor], None] | None = None,
    ) -> Losses:
        """Learn from a rollout of at least `batch_size` rows.

        Args:
            rollout: the rows.
            coefficients: learning rate, clip range and entropy bonus of this update.
            random: shuffles the rows.
            step: agent steps so far, for the error message.
            beside: called with the rows of each minibatch after the step that was made with it.

        Raises:
            NotFiniteError: if a loss or a weight became NaN or infinite; weights and optimizer are then as
            before.
        """
        with self.undone_on_failure():
            return self._run(rollout, coefficients, random, step, beside)

    @contextmanager
    def undone_on_failure(self) -> Iterator[None]:
        """Put weights and optimizer back to what they are now, if what is done within raises `NotFiniteError`."""
        values_before, adam_before = self._network.values.clone(), self._adam.snapshot()
        try:
            yield
        except NotFiniteError:
            self._network.values.copy_(values_before)
            self._adam.restore(adam_before)
            raise

    def state_dict(self) -> dict[str, Any]:
        """Adam's moments by parameter name, and its step count."""
        return self._adam.state_dict(self._network.named_views)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            StageError: naming the tensor that does not fit.
        """
        self._adam.load_state_dict(self._network.named_views, state)

    def _run(
        self,
        rollout: Epochs[OneMinibatch],
        coefficients: Coefficients,
        random: np.random.Generator,
        step: int,
        beside: Callable[[Tensor], None] | None,
    ) -> Losses:
        weights = self._loss_weights(coefficients)
        history: list[Tensor] = []
        for minibatches in rollout.epochs(self._settings.num_epoch, self._settings.batch_size, random):
            for minibatch in minibatches:
                losses = self.losses(minibatch, coefficients)
                self._network.gradients.zero_()
                # The weighted sum of the losses, without the operations of summing them.
                torch.autograd.backward(losses[: len(weights)], weights)
                if self._settings.max_grad_norm is not None:
                    clip_norm(self._network.gradients, self._settings.max_grad_norm)
                self._adam.step(coefficients.learning_rate)
                history.extend(loss.detach() for loss in losses)
                if beside is not None:
                    beside(minibatch.rows)
        table = torch.stack(history).view(-1, len(self.names))
        if not bool(torch.isfinite(table).all() & torch.isfinite(self._network.values).all()):
            raise NotFiniteError(self._complaint(table.cpu().numpy(), step))
        policy, value, entropy = table[:, 0].abs().mean(), table[:, 1].mean(), table[:, -1].mean()
        others = {name.title(): float(table[:, at].mean()) for at, name in enumerate(self.names[2:-1], 2)}
        return Losses(float(policy), float(value), float(entropy), others)

    @abstractmethod
    def losses(self, batch: OneMinibatch, coefficients: Coefficients) -> tuple[Tensor, ...]:
        """The losses of a minibatch, in the order of `names`: scalars."""

    def _actor_losses(self, heads: Tensor, batch: Minibatch, coefficients: Coefficients) -> tuple[Tensor, Tensor]:
        """Policy loss and entropy of the rows' action heads [R, H]."""
        log_probs, entropy = self._evaluate(heads, batch)
        return policy_loss(log_probs, batch.old_log_probs, batch.advantages, coefficients.epsilon), entropy

    def _loss_weights(self, coefficients: Coefficients) -> list[Tensor]:
        """Weights of the losses; none for the entropy without a bonus, which saves its backward pass."""
        numbers = [*self.weights, -coefficients.beta] if coefficients.beta else [*self.weights]
        return list(torch.tensor(numbers, device=self._network.values.device).unbind())

    def _evaluate(self, heads: Tensor, batch: Minibatch) -> tuple[Tensor, Tensor]:
        """Log-probabilities [B, P] of the batch's actions; the entropy as ML-Agents weighs it (a scalar)."""
        columns, entropies = [], []
        logits = heads
        if self._network.log_sigma is not None:
            mu, logits = heads[:, : self._continuous], heads[:, self._continuous :]
            columns.append(gaussian_log_probs(mu, self._network.log_sigma, batch.continuous))
            entropies.append(gaussian_entropy(self._network.log_sigma))
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


class PPOUpdate(PolicyUpdate[Minibatch]):
    """Trains an actor and a critic that judges single agents."""

    names = ("policy loss", "value loss", "entropy")
    weights = (1.0, VALUE_COEFFICIENT)

    def __init__(
        self, network: ActorCriticNetwork, spec: BehaviorSpec, hyperparameters: OnPolicyHyperparameters
    ) -> None:
        super().__init__(network, spec, hyperparameters)
        self._actor_critic = network

    def losses(self, batch: Minibatch, coefficients: Coefficients) -> tuple[Tensor, Tensor, Tensor]:
        """Policy loss, value loss and entropy."""
        heads, values = self._actor_critic(batch.inputs, batch.critic_memories)
        if batch.real is not None:  # padding leaves here: means over the rest are the masked means
            heads, values = heads.index_select(0, batch.real), values.index_select(0, batch.real)
        policy, entropy = self._actor_losses(heads, batch, coefficients)
        return policy, value_loss(values, batch.returns), entropy
