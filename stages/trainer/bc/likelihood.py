"""Imitation by maximum likelihood: gradient steps on an expert's steps, and a measure of a policy's predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.stages.errors import NotFiniteError
from headrace.stages.policy.actions import ACTION_LIMIT
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.actor import ActorNetwork
from headrace.stages.policy.network.flat_parameters import FlatParameters
from headrace.stages.policy.normalizer import Normalizer
from headrace.stages.trainer.adam import Adam
from headrace.stages.trainer.imitation.examples import Examples, ImitationBatch
from headrace.stages.trainer.imitation.losses import log_likelihood, split_logits

LOG_SIGMA_FLOOR = -5.0
"""σ is held at e⁻⁵ (0.2 % of what an action can do) at least: that of an expert without any noise would fall without
end, and likelihoods rise, until one surprise made the loss infinite."""

_ROWS = 4096
"""Rows per forward pass of an evaluation: bounds memory, and stays in the processor's cache."""


@dataclass(frozen=True, slots=True)
class PredictionQuality:
    """The quality of a policy's predictions of an expert's actions: means over steps."""

    log_likelihood: float
    """In nats, of a step's joint action as the policy draws it (densities of continuous actions)."""
    accuracy: float | None
    """Share of the branches in which the most likely choice is the expert's; None without branches."""
    error: float | None
    """Squared error of the mean continuous actions as the environment gets them; None without continuous actions."""


class MaximumLikelihood:
    """Owns the optimizer of an actor.

    Args:
        design: the actor's; not squashed.
        actor: the network that learns.
    """

    def __init__(self, design: PolicyDesign, actor: FlatParameters[ActorNetwork]) -> None:
        self._design = design
        self._actor = actor
        self._adam = Adam(actor.values, actor.gradients)
        c = design.spec.actions.continuous_size
        limits = torch.full((c,), ACTION_LIMIT)
        limits[list(design.spec.actions.unbounded)] = torch.inf
        self._limits = limits.to(actor.values.device)
        """[C] bounds that actions are clipped to, and divided by where they are finite, for the environment."""

    def learn(
        self,
        examples: Examples,
        normalizer: Normalizer | None,
        epochs: int,
        batch_size: int,
        learning_rate: float,
        random: np.random.Generator,
    ) -> tuple[float, float]:
        """Pass over the examples, in a new random order each time.

        Returns:
            The mean loss, nats per step, and the norm of the last gradient.

        Raises:
            NotFiniteError: if a loss or a weight became NaN or infinite; weights and optimizer are then as before.
        """
        actor = self._actor
        at_a_time = max(1, batch_size // examples.rows.shape[1])
        losses = []
        with self._adam.undone_on_failure():
            for _ in range(epochs):
                order = random.permutation(len(examples))
                for which in np.array_split(order, ceil(len(order) / at_a_time)):
                    batch = examples.batch(which, normalizer, actor.values.device)
                    loss = -batch.mean(self._log_likelihood(batch)[1])
                    actor.gradients.zero_()
                    torch.autograd.backward(loss)
                    self._adam.step(learning_rate)
                    if actor.module.log_sigma is not None:
                        actor.module.log_sigma.detach().clamp_(min=LOG_SIGMA_FLOOR)
                    losses.append(loss.detach())
            history = torch.stack(losses)
            if not bool(torch.isfinite(history).all() & torch.isfinite(actor.values).all()):
                raise NotFiniteError(
                    f"{self._design.spec.name}: a loss or a weight became NaN or infinite; the weights are those "
                    "before the update. A lower learning_rate often helps"
                )
        return float(history.mean()), float(torch.linalg.vector_norm(actor.gradients))

    @torch.no_grad()
    def evaluate(self, examples: Examples, normalizer: Normalizer | None) -> PredictionQuality:
        """Evaluate the policy's predictions of at least one example."""
        at_a_time = max(1, _ROWS // examples.rows.shape[1])
        sums, steps = torch.zeros(3, dtype=torch.float64), 0
        for start in range(0, len(examples), at_a_time):
            which = slice(start, start + at_a_time)
            batch = examples.batch(which, normalizer, self._actor.values.device)
            heads, likelihood = self._log_likelihood(batch)
            per_step = (likelihood, self._hits(heads, batch), self._error(heads, batch))
            count = int(examples.real[which].sum())
            sums += torch.stack([batch.mean(each) for each in per_step]).cpu().double() * count
            steps += count
        log_likelihood, accuracy, error = (sums / steps).tolist()
        actions = self._design.spec.actions
        return PredictionQuality(
            log_likelihood,
            accuracy if actions.discrete_branches else None,
            error if actions.continuous_size else None,
        )

    def state_dict(self) -> dict[str, Any]:
        """Adam's moments by parameter name, and its step count."""
        return self._adam.state_dict(self._actor.named_views)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            StageError: naming the tensor that does not fit.
        """
        self._adam.load_state_dict(self._actor.named_views, state)

    def _log_likelihood(self, batch: ImitationBatch) -> tuple[Tensor, Tensor]:
        """Heads [B, H] and log-probabilities [B]."""
        heads, _ = self._actor.module(batch.inputs)
        return heads, log_likelihood(heads, self._actor.module.log_sigma, batch, self._design)

    def _hits(self, heads: Tensor, batch: ImitationBatch) -> Tensor:
        """[B] share of the branches in which the most likely choice is the expert's."""
        branches = split_logits(heads, batch, self._design)
        if not branches:
            return torch.zeros(len(heads), device=heads.device)
        best = torch.stack([logits.argmax(dim=1) for logits in branches], dim=1)
        return (best == batch.choices).float().mean(dim=1)

    def _error(self, heads: Tensor, batch: ImitationBatch) -> Tensor:
        """[B] squared error of the actions that the environment gets, the mean over dimensions."""
        if not len(self._limits):
            return torch.zeros(len(heads), device=heads.device)
        scale = torch.where(torch.isinf(self._limits), 1.0, self._limits)
        given = [
            torch.clamp(actions, -self._limits, self._limits) / scale
            for actions in (heads[:, : len(self._limits)], batch.continuous)
        ]
        return (given[0] - given[1]).square().mean(dim=1)
