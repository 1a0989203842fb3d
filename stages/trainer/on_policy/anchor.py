"""Regularises a policy: an anchor follows the policy, and the divergence from the anchor is a loss (imports torch).

Magnetic mirror descent (Sokota et al. 2023, "A Unified Approach to Reinforcement Learning, Quantal Response Equilibria,
and Two-Player Zero-Sum Games") adds α·KL(π, ρ) to the loss of a policy π, where ρ is the magnet, which is called the
anchor here. If all players of a zero-sum game are regularised in this way, their latest policies converge instead of
cycling around the equilibrium. If the anchors follow the policies, the policies converge to the equilibrium of the
original game (Perolat et al. 2021, "From Poincaré Recurrence to Convergence in Imperfect Information Games: Finding
Equilibrium via Regularization"). PPO's clip is the proximal term.

What remains of the cycles cancels out in an average of the weights. In the average, the network's weights after t agent
steps have the factor t^(1/s - 1), where s is `averaged_share` (Shamir and Zhang 2013, "Stochastic Gradient Descent for
Non-smooth Optimization: Convergence Results and Optimal Averaging Schemes": polynomial-decay averaging).

Axis letters: R rows; C continuous actions; H head outputs; D = 2 C + choices, the columns that describe a row's action
distribution: means, log σ, and each branch's masked log-probabilities.

**Divergence** of π = (μ, σ, p) from (m, s, q), summed over independent actions:

    Gaussian      log s - log σ + (σ² + (μ - m)²) / 2 s² - ½
    categorical   Σ p·(log p - log q)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import exp
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.config import RegularizationSettings
from headrace.queues.specs import ActionSpec
from headrace.stages.policy.network.actor_critic import TrainedActor
from headrace.stages.policy.network.flat_parameters import write_named
from headrace.stages.policy.network.layers import Inputs, host_copies, split_gaussians
from headrace.stages.policy.sampling import LOG_SIGMA_LIMITS
from headrace.stages.trainer.on_policy.rollout import Minibatch


class Anchor:
    """An exponential moving average of a network's weights over agent steps, and the average to export.

    Args:
        network: the network to follow. The anchor starts from the network's weights when it is first needed.
        settings: how fast the anchor follows, and the span of the average.
        actions: the behaviour's actions.
    """

    def __init__(self, network: TrainedActor, settings: RegularizationSettings, actions: ActionSpec) -> None:
        self.coefficient: float = settings.coefficient
        self._network, self._steps, self._actions = network, settings.anchor_steps, actions
        self._share = settings.averaged_share
        self._values: Tensor | None = None
        self._average: Tensor | None = None

    def columns(self, heads: Callable[[Inputs], Tensor], minibatches: Iterable[Minibatch]) -> NDArray[np.float32]:
        """Return columns [N, D] that describe the anchor's action distributions for the minibatches' rows.

        Args:
            heads: computes the network's head outputs, using its weights at the time of the call.
            minibatches: N rows in total. Each replica computes the columns of all rows.
        """
        described_rows = list[Tensor]()
        if self._values is None:
            self._values = self._network.values.clone()
        with self._in_place(self._values), torch.no_grad():
            for minibatch in minibatches:
                of_inputs = heads(minibatch.inputs)
                of_rows = of_inputs if minibatch.real is None else of_inputs.index_select(0, minibatch.real)
                described_rows.append(self._described(of_rows, minibatch))
        columns: NDArray[np.float32] = torch.cat(described_rows).cpu().numpy()
        return columns

    def divergence(self, heads: Tensor, batch: Minibatch) -> Tensor:
        """Return KL(π, anchor), averaged over a minibatch's rows, for its head outputs [R, H]: a scalar."""
        assert batch.anchor is not None, "its rollout has the columns"
        return divergence(self._described(heads, batch), batch.anchor, self._actions.continuous_size).mean()

    def follow(self, steps: float) -> None:
        """Move the anchor towards the network; `steps` is a number of agent steps, scaled with the learning rate.

        An anchor that follows a slowly learning policy too closely would let the policy resume cycling.
        """
        assert self._values is not None, "an update needed it"
        self._values.lerp_(self._network.values, 1.0 - exp(-steps / self._steps))

    def average(self, steps: int, of_run: int) -> None:
        """Add the network's weights to the average, for the last `steps` of the run's `of_run` agent steps so far."""
        if not self._share:
            return
        if self._average is None:
            self._average = self._network.values.clone()
        self._average.lerp_(self._network.values, min(1.0, steps / (self._share * of_run)))

    def averaged(self) -> AbstractContextManager[None]:
        """Return a context in which the network has the averaged weights, if there is an average."""
        return self._in_place(self._network.values if self._average is None else self._average)

    def state_dict(self) -> dict[str, Any]:
        """Return host copies of the weights, keyed by name; None for weights that have not been needed yet."""
        weights = {"anchor": self._values, "average": self._average}
        views = self._network.named_views
        return {name: None if values is None else host_copies(views(values)) for name, values in weights.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`; weights missing from it start as the network's.

        Raises:
            StageError: if a tensor does not fit; the message names it.
        """
        self._values = self._restored(state.get("anchor"), "anchor")
        self._average = self._restored(state.get("average"), "average") if self._share else None

    def _restored(self, named: Mapping[str, Any] | None, what: str) -> Tensor | None:
        if named is None:
            return None
        values = self._network.values.clone()
        write_named(self._network.named_views(values), named, what)
        return values

    @contextmanager
    def _in_place(self, values: Tensor) -> Iterator[None]:
        before = self._network.values.clone()
        self._network.values.copy_(values)
        try:
            yield
        finally:
            self._network.values.copy_(before)

    def _described(self, heads: Tensor, batch: Minibatch) -> Tensor:
        network, actions = self._network, self._actions
        sizes = actions.continuous_size, actions.discrete_branches
        return described(heads, network.log_sigma, *sizes, batch.penalties, network.squashed)


def described(
    heads: Tensor,
    log_sigma: Tensor | None,
    continuous: int,
    branches: Sequence[int],
    penalties: Tensor | None = None,
    squashed: bool = False,
) -> Tensor:
    """Return columns [R, D] that describe action distributions.

    Args:
        heads: [R, H] head outputs.
        log_sigma: [C] the Gaussian's log σ; None if log σ follows the means in `heads`.
        continuous: C.
        branches: the number of choices in each branch.
        penalties: [R, choices] or [R, 0] mask penalties that `heads` does not include.
        squashed: whether continuous actions are the tanh of the Gaussian, which limits its log σ.
    """
    parts, logits = [], heads
    if continuous:
        mu, log_sigma, logits = split_gaussians(heads, log_sigma, continuous)
        parts = [mu, (log_sigma.clamp(*LOG_SIGMA_LIMITS) if squashed else log_sigma).expand_as(mu)]
    if penalties is not None and penalties.shape[1]:
        logits = logits + penalties
    of_branches = torch.split(logits, list(branches), dim=1)
    return torch.cat([*parts, *(torch.log_softmax(branch, dim=1) for branch in of_branches)], dim=1)


def divergence(p: Tensor, q: Tensor, continuous: int) -> Tensor:
    """Return KL(p, q) [R], given the columns [R, D] that describe both; `continuous` is C."""
    log_p, log_q = p[:, 2 * continuous :], q[:, 2 * continuous :]
    rows = (log_p.exp() * (log_p - log_q)).sum(dim=1)
    if continuous:
        (mu, log_sigma), (m, log_s) = (torch.split(side[:, : 2 * continuous], continuous, 1) for side in (p, q))
        gaps = ((2.0 * log_sigma).exp() + (mu - m).square()) * (-2.0 * log_s).exp()
        rows = rows + (log_s - log_sigma + 0.5 * gaps - 0.5).sum(dim=1)
    return rows
