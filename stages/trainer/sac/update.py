"""Soft actor-critic: its networks and optimizers, and one gradient step of all networks on a minibatch.

Haarnoja et al. (2018), "Soft Actor-Critic: Off-Policy Maximum Entropy Deep Reinforcement Learning with a Stochastic
Actor" (with a value network), and "Soft Actor-Critic Algorithms and Applications" (entropy coefficients); for discrete
actions, Christodoulou (2019), "Soft Actor-Critic for Discrete Action Settings". If there are several branches, they are
averaged, as in ML-Agents.

An update is a function of parameters, optimizer states, one minibatch and noise. It reads no tensor's value, so nothing
waits for a device. The caller checks the losses from time to time.

Axis letters: B rows, S reward signals, C continuous actions, K discrete branches with A choices in total (A = 1 if
there are none), G entropy coefficients: one for all continuous actions together, if any, then one per branch. A mask
[B] is 1 for rows and 0 for padding; it is None without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import log
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.config import SACHyperparameters
from headrace.queues.specs import ActionSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.actor import ActorNetwork
from headrace.stages.policy.network.flat_parameters import FlatParameters, seeded
from headrace.stages.policy.network.layers import Inputs, squashed_sample
from headrace.stages.trainer.adam import Adam
from headrace.stages.trainer.gradients import Gradients
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas
from headrace.stages.trainer.sac.minibatch import ReplayMinibatch, UpdateMeasures
from headrace.stages.trainer.sac.networks import (
    Critics,
    EntropyCoefficients,
    Perceptron,
    ValueNetwork,
    coefficient_gradients,
    drawn_for,
    expected_values,
    half_squared_error,
    policy_loss,
    q_target,
    soft_values,
    taken_values,
)

SACGradients = Gradients[[ReplayMinibatch, Tensor, Tensor, Tensor], UpdateMeasures]
SACSteps = Gradients[[ReplayMinibatch, Tensor, Tensor, Tensor, float, float], UpdateMeasures]
"""Functions that compute gradients and take a step; their arguments are those of `SACUpdate.step`."""
DISCRETE_TARGET = 0.2
"""A branch's target entropy, as a fraction of the entropy of a uniform choice. ML-Agents uses the same value."""


class SACUpdate:
    """Owns one behaviour's networks and their optimizers.

    Args:
        design: the policy's design.
        hyperparameters: the behaviour's hyperparameters.
        signals: S, the number of reward signals.
        random: the generator that draws the initial weights.
        device: the device that holds the networks.
        replicas: the replicas that make the same update, each with its part of every minibatch.

    Attributes:
        target_entropies: [G] the target entropies if no choice is masked.
        find_gradients: sets the gradients of all networks; uses autograd unless replaced.
        advance: takes a gradient step; `step` unless replaced.
        use_threads: sets the number of threads for gradient steps; torch's own function unless replaced.
    """

    def __init__(
        self,
        design: PolicyDesign,
        hyperparameters: SACHyperparameters,
        signals: int,
        random: np.random.Generator,
        device: str,
        replicas: Replicas = SINGLE_TRAINER,
    ) -> None:
        actions = design.spec.actions
        self._replicas = replicas
        self.actor = FlatParameters(seeded(random, lambda: drawn_for(actions, ActorNetwork(design, True))), device)
        actor = self.actor.module
        self._plain_actor = Perceptron(design, actor.body, actor.action) if design.perceptron else None
        # With continuous actions, target networks of Q evaluate the next observation if the policy can be evaluated
        # there, because Q is learned sooner (docs/learning.md). As in ML-Agents, a target network of V evaluates it if
        # the policy would need data that is not recorded (choice masks there, or the memory), or if all actions are
        # discrete.
        self._asks_policy = bool(actions.continuous_size) and not actions.masked and design.settings.memory is None
        self.draws = 2 if self._asks_policy else 1
        """Number of rows of noise that `step` needs per row of a minibatch."""
        critics = partial(Critics, design, signals, not self._asks_policy)
        self.critics = FlatParameters(seeded(random, lambda: drawn_for(actions, critics())), device)
        following = partial(Critics, values=False) if self._asks_policy else ValueNetwork
        self.target: FlatParameters[Any] = FlatParameters(seeded(random, lambda: following(design, signals)), device)
        initial = hyperparameters.init_entcoef
        self.coefficients = FlatParameters(EntropyCoefficients(design, initial), device)
        self._followed = self.critics.values[-len(self.target.values) :]
        self.target.values.copy_(self._followed)
        groups: dict[str, FlatParameters[Any]] = {"actor": self.actor, "critics": self.critics}
        groups["coefficients"] = self.coefficients
        self._adams = {
            name: Adam(flat.values, flat.gradients, hyperparameters.adam_epsilon) for name, flat in groups.items()
        }
        self._groups = {**groups, "target": self.target}
        self._actor_parameters = list(self.actor.parameters.values())
        self._critic_parameters = list(self.critics.parameters.values())
        self._tau, self.target_update_interval = hyperparameters.tau, hyperparameters.target_update_interval
        self.learns_coefficients = hyperparameters.entropy_coefficient == "auto"
        self._continuous = actions.continuous_size
        self._gaussian_heads = design.head_size - actions.mask_size
        self._branches = list(actions.discrete_branches)
        terms = _entropy_terms(actions, hyperparameters.target_entropy)
        self._weights, self.target_entropies = (torch.tensor(numbers, device=device) for numbers in terms)
        self.find_gradients: SACGradients = self._gradients_by_autograd
        self.advance: SACSteps = self.step
        self.use_threads: Callable[[int], None] = torch.set_num_threads

    def step(
        self,
        batch: ReplayMinibatch,
        rewards: Tensor,
        discounts: Tensor,
        noise: Tensor,
        learning_rate: float,
        share: float = 1.0,
    ) -> UpdateMeasures:
        """Take one gradient step of all networks.

        Args:
            batch: B rows.
            rewards: [B, S] scaled rewards.
            discounts: [B, S] discounts; see `q_target`.
            noise: [draws B, C] standard normal noise for drawing actions; the part for the next observations comes
                last.
            learning_rate: the learning rate of all optimizers.
            share: weight of the means over these rows, if other replicas have different rows of the same minibatch.
        """
        measures = self.find_gradients(batch, rewards, discounts, noise)
        self._move(measures.losses, share, learning_rate)
        return measures

    def _gradients_by_autograd(
        self, batch: ReplayMinibatch, rewards: Tensor, discounts: Tensor, noise: Tensor
    ) -> UpdateMeasures:
        critics, inputs = self.critics.module, batch.critic_inputs
        self.actor.gradients.zero_()
        self.critics.gradients.zero_()
        # Each loss is propagated back immediately, while the networks' results are still in the processor's cache;
        # weights change once all gradients are computed.
        rows = len(rewards)
        soft, negentropies = self._soft_values(batch, noise[:rows])
        losses = [self._back(policy_loss(soft, batch.mask), self._actor_parameters)]
        targets = q_target(rewards, discounts, self._next_values(batch.target_inputs, noise[rows:]))
        taken = []
        for network in (critics.q1, critics.q2):
            q = taken_values(network(inputs, batch.continuous), batch.choices)
            losses.append(self._back(half_squared_error(q, targets, batch.mask), self._critic_parameters))
            taken.append(q.detach())
        if self._asks_policy:
            values = soft
            losses.append((losses[1] + losses[2]) / 2)
        else:
            values = critics.value(inputs)
            losses.append(self._back(half_squared_error(values, soft.detach(), batch.mask), self._critic_parameters))
        if self.learns_coefficients:
            gradients = coefficient_gradients(negentropies, self._entropy_targets(batch), batch.mask)
            self.coefficients.gradients.copy_(gradients)
        q1, q2 = taken
        return UpdateMeasures(torch.stack(losses), q1, q2, targets, values.detach(), negentropies.detach(), batch.mask)

    def _move(self, means: Tensor, share: float, learning_rate: float) -> None:
        """Combine gradients and mean losses [4] over all replicas, then change all weights by the gradients."""
        if self._replicas.size > 1:
            of_all = [self.actor.gradients, self.critics.gradients, self.coefficients.gradients, means]
            for tensor in of_all:
                tensor.mul_(share)
            self._replicas.add_up(*of_all)
        for adam in self.moving:
            adam.step(learning_rate)
        if self.target_update_interval == 1:
            self.follow()

    def follow(self) -> None:
        """Move the targets by `tau`. Each step does this, unless `target_update_interval` is above 1."""
        self.target.values.lerp_(self._followed, self._tau)

    @property
    def steps(self) -> int:
        """Number of gradient steps taken so far."""
        return self._adams["critics"].steps

    @property
    def moving(self) -> list[Adam]:
        """The optimizers that take steps: those of actor, critics and, unless fixed, entropy coefficients."""
        return [adam for name, adam in self._adams.items() if name != "coefficients" or self.learns_coefficients]

    def gradient_norms(self) -> list[float]:
        """Return the norms of the last gradients of actor and critics."""
        return [float(torch.linalg.vector_norm(flat.gradients)) for flat in (self.actor, self.critics)]

    def snapshot(self) -> dict[str, Any]:
        """Return a copy of weights and optimizers, for use with `restore`."""
        return {
            "values": {name: flat.values.clone() for name, flat in self._groups.items()},
            "adams": {name: adam.snapshot() for name, adam in self._adams.items()},
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Restore weights and optimizers from a snapshot."""
        for name, flat in self._groups.items():
            flat.values.copy_(snapshot["values"][name])
        for name, adam in self._adams.items():
            adam.restore(snapshot["adams"][name])

    def finite(self) -> bool:
        """Return True if all weights are finite."""
        # A sum is finite if all its terms are (weights near float32's limit are useless anyway), and is fast to
        # compute.
        sums = torch.stack([flat.values.sum() for flat in self._groups.values()])
        return bool(torch.isfinite(sums).all())

    def parameter_counts(self) -> dict[str, int]:
        """Return the number of parameters of each network."""

        def size(module: torch.nn.Module) -> int:
            return sum(parameter.numel() for parameter in module.parameters())

        critics = {name: size(critic) for name, critic in self.critics.module.named_children()}
        return {"actor": size(self.actor.module), **critics, "targets": self.target.values.numel()}

    def weights(self) -> dict[str, Any]:
        """Return host copies of all weights, keyed by network and parameter name."""
        return {name: flat.state_dict() for name, flat in self._groups.items()}

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load the weights that `weights()` returned.

        Raises:
            StageError: if a tensor does not fit; the message names it.
        """
        for name, flat in self._groups.items():
            flat.load(weights[name])

    def state_dict(self) -> dict[str, Any]:
        """Return the weights and the optimizers' states."""
        optimizers = {name: adam.state_dict(self._groups[name].named_views) for name, adam in self._adams.items()}
        return {"weights": self.weights(), "optimizers": optimizers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`.

        Raises:
            StageError: if a tensor does not fit; the message names it.
        """
        self.load_weights(state["weights"])
        for name, adam in self._adams.items():
            adam.load_state_dict(self._groups[name].named_views, state["optimizers"][name], f"optimizer {name}")

    @torch.no_grad()
    def _next_values(self, inputs: Inputs, noise: Tensor) -> Tensor:
        """Return the target networks' soft values [B, S] of the next observations."""
        if self._asks_policy:
            actions, probabilities, negentropies = self._draw(self._heads(inputs), noise)
            target = self.target.module
            return self._valued(target.q1(inputs, actions), target.q2(inputs, actions), probabilities, negentropies)
        values: Tensor = self.target.module(inputs)
        if inputs.memories is None:
            return values
        return values.view(-1, inputs.sequence_length, values.shape[1])[:, 1:].flatten(0, 1)

    def _soft_values(self, batch: ReplayMinibatch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the current policy's soft values [B, S], with gradients to the actor, and negentropies [B, G]."""
        actions, probabilities, negentropies = self._draw(self._heads(batch.actor_inputs), noise, batch.penalties)
        critics = self.critics.module
        first, second = (q(batch.critic_inputs, actions, frozen=True) for q in (critics.q1, critics.q2))
        return self._valued(first, second, probabilities, negentropies), negentropies

    def _valued(self, first: Tensor, second: Tensor, probabilities: Tensor | None, negentropies: Tensor) -> Tensor:
        """Return soft values [B, S] of the policy's actions, given both Qs [B, S, A] for its continuous actions.

        The policy maximises the smaller of the two Qs, which V also learns. In ML-Agents, it maximises the first Q.
        """
        smaller = torch.minimum(*(expected_values(q, probabilities, len(self._branches)) for q in (first, second)))
        return soft_values(smaller, negentropies, self.coefficients.module.logs.detach().exp(), self._weights)

    @staticmethod
    def _back(loss: Tensor, parameters: list[Tensor]) -> Tensor:
        """Add the loss's gradients to only these parameters' gradients; return the loss, detached from its graph."""
        torch.autograd.backward(loss, inputs=parameters)
        return loss.detach()

    def _heads(self, inputs: Inputs) -> Tensor:
        if self._plain_actor is not None:
            return self._plain_actor(inputs.vectors)
        heads, _ = self.actor.module(inputs)
        return heads  # type: ignore[no-any-return]  # untyped call

    def _draw(
        self, heads: Tensor, noise: Tensor, penalties: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return continuous actions [B, C], the choices' probabilities [B, A], and negative entropies [B, G]."""
        actions, probabilities, negentropies = heads[:, :0], None, []
        if c := self._continuous:
            actions, log_probs = squashed_sample(heads[:, :c], heads[:, c : 2 * c], noise)
            negentropies.append(log_probs.sum(dim=1, keepdim=True))
        if self._branches:
            logits = heads[:, self._gaussian_heads :]
            if penalties is not None:
                logits = logits + penalties
            parts = [torch.log_softmax(branch, dim=1) for branch in torch.split(logits, self._branches, dim=1)]
            shares = [part.exp() for part in parts]
            probabilities = shares[0] if len(shares) == 1 else torch.cat(shares, dim=1)
            # A forbidden choice has a probability of exactly 0 and a logarithm of about -1e8, so their product is 0.
            negentropies += [(p * part).sum(dim=1, keepdim=True) for p, part in zip(shares, parts, strict=True)]
        return actions, probabilities, negentropies[0] if len(negentropies) == 1 else torch.cat(negentropies, dim=1)

    def _entropy_targets(self, batch: ReplayMinibatch) -> Tensor:
        """Return target entropies [G], or [B, G] if masks leave fewer choices in some states than in others."""
        if batch.allowed is None:
            return self.target_entropies
        discrete = DISCRETE_TARGET * batch.allowed.log()
        if not self._continuous:
            return discrete
        return torch.cat((self.target_entropies[:1].expand(len(discrete), 1), discrete), dim=1)


def _entropy_terms(actions: ActionSpec, target: float | None) -> tuple[list[float], list[float]]:
    """Return weights and target entropies [G]; for continuous actions, `target` defaults to minus their number."""
    branches = actions.discrete_branches
    weights, targets = [1.0 / len(branches) for _ in branches], [DISCRETE_TARGET * log(size) for size in branches]
    if actions.continuous_size:
        weights.insert(0, 1.0)
        targets.insert(0, -float(actions.continuous_size) if target is None else target)
    return weights, targets
