"""IMPALA on one page: V-trace, the losses, and one gradient step on all of an update's unrolls.

Losses are summed over time and batch, as in the paper, or averaged (`loss_reduction`). The cloning losses are computed
only on replayed rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.config import ImpalaHyperparameters
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import NotFiniteError
from headrace.stages.policy.network.layers import Inputs, on_host, split_gaussians
from headrace.stages.policy.network.protocol import ActorCriticNetwork
from headrace.stages.trainer.adam import Adam, GradientParts, NetworkUpdate
from headrace.stages.trainer.impala.gradients import ImpalaAutograd, ImpalaGradients, Limits, Ratios, Unrolls, ratios_of
from headrace.stages.trainer.on_policy.signals import accumulated, next_values
from headrace.stages.trainer.on_policy.update import Coefficients
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas

LOSSES = ("policy_gradient", "baseline", "entropy", "policy_cloning", "value_cloning", "total_loss")
"""The losses' statistics, in order. Only `total_loss`, the weighted sum of the other losses, includes loss weights."""


@dataclass(frozen=True, slots=True)
class Learned:
    """The results of one update."""

    losses: dict[str, float]
    """The summed or averaged losses, keyed by the names in `LOSSES`."""
    grad_norm: float
    """Norm of the full gradient before clipping."""
    entropy: float
    """The joint distribution's entropy, averaged over rows."""
    ratios: Ratios | None
    """Statistics of the probability ratios; None if only the critic has learned."""
    values: NDArray[np.float64]
    """[N, S] the critic's values before the step."""
    targets: NDArray[np.float64]
    """[N, S] V-trace's value targets."""


class ImpalaUpdate(NetworkUpdate):
    """Owns an actor-critic network and its optimizer.

    Args:
        network: the network to train.
        spec: the behaviour's spec, for its actions.
        hyperparameters: loss weights and limits.
        gammas: [S] each reward signal's discount.
        replicas: the replicas that make the same update, each on its part of the trajectories.

    Attributes:
        gradients: computes the gradients, by autograd unless replaced. Pre-training of the critic always uses autograd.
    """

    def __init__(
        self,
        network: ActorCriticNetwork,
        spec: BehaviorSpec,
        hyperparameters: ImpalaHyperparameters,
        gammas: NDArray[np.float64],
        replicas: Replicas = SINGLE_TRAINER,
    ) -> None:
        h = hyperparameters
        betas = (h.adam_beta1, h.adam_beta2)
        super().__init__(network, Adam(network.values, network.gradients, h.adam_epsilon, betas), replicas)
        self._actor_critic = network
        self._autograd = ImpalaAutograd(network, spec.actions.discrete_branches)
        self.gradients: ImpalaGradients = self._autograd
        self._settings = h
        self._gammas = gammas
        self._limits = Limits(h.rho_bar, h.c_bar, h.lambd)
        self._branches = list(spec.actions.discrete_branches)
        self._behavior = spec.name
        self._parts = GradientParts(network.gradients, network.parts, hyperparameters.shared_grad_norm)
        self._of_critic = 1.0 - network.acting

    def heads(self, inputs: Inputs) -> Tensor:
        """Return the actor's head outputs [B, H]."""
        return self._actor_critic.heads(inputs)

    def learn(self, unrolls: Unrolls, coefficients: Coefficients, step: int) -> Learned:
        """Take a gradient step on all losses.

        Args:
            unrolls: the rows.
            coefficients: the current learning rate and entropy weight.
            step: agent steps so far, for the error message.

        Raises:
            NotFiniteError: if a loss or a weight becomes NaN or infinite; weights and optimizer are then restored.
        """
        h = self._settings
        n = len(unrolls)
        heads, both, log_probs, entropy = self.gradients.forward(unrolls)
        values, final_values = both[:n], both[n:]
        log_ratios = on_host(log_probs) - unrolls.acted
        found, of_critic = self._vtrace(unrolls, log_ratios, values, final_values, self._limits)
        weights = found.advantages.sum(axis=1)
        if h.clip_advantage is True:
            weights = np.maximum(weights, 0)
        elif h.clip_advantage:
            weights = np.clip(weights, -h.clip_advantage, h.clip_advantage)
        policy_gradient = -(log_probs @ torch.from_numpy(weights).to(values))
        baseline = self._baseline(values, found)
        cloning = self._cloning(unrolls, heads, values)
        losses = [policy_gradient, baseline, -n * entropy, *cloning]
        costs = [1.0, h.baseline_cost, coefficients.beta, h.policy_cloning_cost, h.value_cloning_cost]
        counts: tuple[int, ...] = (1, 1, 1, 1, 1)
        if h.loss_reduction == "mean":
            everywhere, replayed = unrolls.all_rows, max(1, unrolls.all_rows - unrolls.all_fresh)
            counts = (everywhere, everywhere, everywhere, replayed, replayed)
            losses = [loss / rows for loss, rows in zip(losses, counts, strict=True)]
        each = [cost / rows for cost, rows in zip(costs, counts, strict=True)]
        backward = partial(self.gradients.backward, unrolls, weights, found.targets, each)
        norm, reduced = self._step(losses, costs, backward, coefficients.learning_rate, step, unrolls.here.weight)
        (mean_entropy,) = self._of_all(unrolls, [float(entropy.detach())])
        of_all = partial(self._of_all, unrolls)
        ratios = ratios_of(log_ratios, self._limits, of_all, self.replicas, values.device)
        return Learned(reduced, norm, mean_entropy, ratios, *self._rows_of_all(unrolls, of_critic, found.targets))

    def pretrain_critic(self, unrolls: Unrolls, learning_rate: float, step: int) -> Learned:
        """Take a gradient step on the value loss only, with discounted returns; the acting part does not change.

        Args:
            unrolls: the rows.
            learning_rate: Adam's current learning rate.
            step: agent steps so far, for the error message.

        Raises:
            NotFiniteError: see `learn`.
        """
        n, autograd = len(unrolls), self._autograd
        _, both = autograd.outputs(unrolls)
        values, final_values = both[:n], both[n:]
        # The critic learns the values of the acting policy, so all ratios are 1, and λ is 1.
        found, of_critic = self._vtrace(unrolls, np.zeros(n), values, final_values, Limits())
        baseline = self._baseline(values, found)
        if self._settings.loss_reduction == "mean":
            baseline = baseline / unrolls.all_rows
        norm, reduced = self._step(
            [baseline], [1.0], autograd.descend, learning_rate, step, unrolls.here.weight, only_critic=True
        )
        return Learned(reduced, norm, 0.0, None, *self._rows_of_all(unrolls, of_critic, found.targets))

    def _of_all(self, unrolls: Unrolls, means: list[float]) -> list[float]:
        """Convert means over this replica's rows to means over all replicas' rows."""
        if self.replicas.size == 1:
            return means
        here = unrolls.here
        sums = torch.tensor(means, device=self.network.values.device) * (here.size * here.weight / unrolls.all_rows)
        self.replicas.add_up(sums)
        found: list[float] = sums.tolist()
        return found

    def _rows_of_all(
        self, unrolls: Unrolls, values: NDArray[np.float64], targets: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the values and targets [N, S] of all replicas' rows, given those of this replica's rows."""
        if self.replicas.size == 1:
            return values, targets
        ours = torch.from_numpy(np.concatenate([values, targets], axis=1)).to(self.network.values.device)
        all_values, all_targets = np.split(on_host(self.replicas.gathered(ours, unrolls.here, unrolls.all_rows)), 2, 1)
        return all_values, all_targets

    def _vtrace(
        self, unrolls: Unrolls, log_ratios: NDArray[np.float64], values: Tensor, final_values: Tensor, limits: Limits
    ) -> tuple[VTrace, NDArray[np.float64]]:
        """Return V-trace's results, and the critic's values [N, S] from which they were computed."""
        of_critic = on_host(values)
        after, pieces = on_host(final_values), (unrolls.lengths, unrolls.valueless)
        return vtrace(log_ratios, unrolls.rewards, of_critic, after, *pieces, self._gammas, limits), of_critic

    def _baseline(self, values: Tensor, found: VTrace) -> Tensor:
        """Return half the sum of squared value errors."""
        return 0.5 * (values - torch.from_numpy(found.targets).to(values)).square().sum()

    def _cloning(self, unrolls: Unrolls, heads: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the divergence from the acting policies, and from recorded values, each summed over replayed rows."""
        recorded, zero = unrolls.recorded, values.new_zeros(())
        if recorded is None:
            return zero, zero
        replayed = slice(unrolls.fresh, None)
        of_values = (values[replayed] - recorded.values).square().sum()
        if recorded.heads is None:
            return zero, of_values
        return divergence(heads[replayed], self.network.log_sigma, recorded.heads, self._branches).sum(), of_values

    def _step(
        self,
        losses: list[Tensor],
        costs: list[float],
        backward: Callable[[float, Tensor], None],
        learning_rate: float,
        step: int,
        weight: float,
        only_critic: bool = False,
    ) -> tuple[float, dict[str, float]]:
        """Take the gradient step; return the gradient norm, and the losses keyed by name.

        `backward` takes a factor and the total loss, and sets the gradients of the total loss times that factor.

        Raises:
            NotFiniteError: see `learn`.
        """
        names = ("baseline",) if only_critic else LOSSES[:-1]
        network = self.network
        with self.adam.undone_on_failure():
            stacked = torch.stack(losses)
            factors = torch.tensor(costs, device=stacked.device)
            total = stacked @ factors
            backward(weight, total)
            stacked = stacked.detach() * weight
            self.replicas.add_up(network.gradients, stacked)
            if only_critic:
                network.gradients.mul_(self._of_critic)
            limit = self._settings.max_grad_norm
            norms = self._parts.clip(float("inf") if limit is None else limit)
            self.adam.step(learning_rate)
            results = torch.cat([stacked, (stacked @ factors)[None], norms.square().sum().sqrt()[None]]).tolist()
            if not (np.isfinite(results).all() and bool(torch.isfinite(network.values).all())):
                raise NotFiniteError(self._complaint([*names, "total_loss", "grad_norm"], results, step))
        *found, norm = results
        return norm, dict(zip([*names, "total_loss"], found, strict=True))

    def _complaint(self, names: list[str], results: list[float], step: int) -> str:
        where = f"{self._behavior}: update at step {step}"
        bad = next(((name, value) for name, value in zip(names, results, strict=True) if not np.isfinite(value)), None)
        if bad is None:
            return (
                f"{where}: the gradient step made some weights NaN or infinite; the weights from before the update are "
                "kept"
            )
        return (
            f"{where}: {bad[0]} is {bad[1]}; the weights from before the update are kept. A lower learning_rate, "
            "max_grad_norm, or smaller rewards (strength, reward_clipping) often help"
        )


# IMPALA's losses, as pure functions of tensors: Espeholt et al. (2018), IMPALA, and for cloning Rolnick et al. (2019),
# "Experience Replay for Continual Learning" (CLEAR). Axis letters: R rows, C continuous actions, S reward signals, H
# head outputs.


def divergence(heads: Tensor, log_sigma: Tensor | None, acted: Tensor, branches: Sequence[int]) -> Tensor:
    """Return the divergence KL(μ ‖ π) [R] between acting policy μ and learning policy π, summed over all heads.

    Args:
        heads: [R, H] head outputs of π, with mask penalties added.
        log_sigma: [C] log σ of π; None if log σ follows the means in `heads`.
        acted: [R, H + C] description of μ: means, log σ and logits, with the same penalties added.
        branches: the number of choices in each branch.
    """
    parts, logits = [], heads
    size = (acted.shape[1] - sum(branches)) // 2
    if size:
        mu, log_sigma, logits = split_gaussians(heads, log_sigma, size)
        mean, spread, acted = torch.split(acted, [size, size, acted.shape[1] - 2 * size], dim=1)
        scaled = (torch.exp(2.0 * spread) + (mean - mu).square()) * torch.exp(-2.0 * log_sigma)
        parts.append((log_sigma - spread + 0.5 * scaled - 0.5).sum(dim=1))
    sizes = list(branches)
    for ours, theirs in zip(torch.split(logits, sizes, dim=1), torch.split(acted, sizes, dim=1), strict=True):
        log_mu = torch.log_softmax(theirs, dim=1)
        parts.append((log_mu.exp() * (log_mu - torch.log_softmax(ours, dim=1))).sum(dim=1))
    return reduce(torch.add, parts)


# V-trace over packed trajectories, as a pure function of arrays (IMPALA paper, section 4.1). Axis letters: N rows, K
# trajectories packed end to end, S reward signals.


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class VTrace:
    """The results of V-trace for N rows."""

    targets: Floats
    """[N, S] v_t, the critic's targets."""
    advantages: Floats
    """[N, S] ρ_t (r_t + γ v_{t+1} - V_t), the weights of ∇ log π."""


def vtrace(
    log_ratios: Floats,
    rewards: Floats,
    values_t: Floats,
    final_values: Floats,
    lengths: NDArray[np.integer],
    valueless: NDArray[np.bool_],
    gammas: Floats,
    limits: Limits,
) -> VTrace:
    """Compute targets and advantages for trajectories generated by other policies.

    With ρ_t = min(ρ̄, π/μ) and c_t = λ min(c̄, π/μ):

        v_t = V_t + ρ_t (r_t + γ V_{t+1} - V_t) + γ c_t (v_{t+1} - V_{t+1}),

    where V after the last row is 0 if the episode terminated there; otherwise it is the critic's value of the next
    observation.

    Args:
        log_ratios: [N] log(π/μ) of the joint action, where π is the learning policy and μ the acting policy.
        rewards: [N, S] rewards received after the row's action, scaled and clipped.
        values_t: [N, S] the critic's value V of the row's observation.
        final_values: [K, S] the critic's value of the observation after the last row; ignored where `valueless`.
        lengths: [K] the number of rows of each trajectory, at least 1.
        valueless: [K, S] true if no reward can follow the last row.
        gammas: [S] each signal's discount γ.
        limits: ρ̄, c̄ and λ.
    """
    rho = np.exp(np.minimum(log_ratios, log(limits.rho_bar)))[:, None]
    c = limits.lambd * np.exp(np.minimum(log_ratios, log(limits.c_bar)))[:, None]
    values_tp1 = next_values(values_t, final_values, lengths, valueless)
    targets = values_t + accumulated(rho * (rewards + gammas * values_tp1 - values_t), gammas * c, lengths)
    targets_tp1 = next_values(targets, final_values, lengths, valueless)
    return VTrace(targets, rho * (rewards + gammas * targets_tp1 - values_t))


def clipped_rewards(rewards: Floats, how: str) -> Floats:
    """Clip rewards of any shape as DeepMind's IMPALA learner does.

    Args:
        rewards: scaled rewards.
        how: `none` for no clipping; `abs_one` clips to [-1, 1]; `soft_asymmetric` computes 5·tanh(r/5), times 0.3 where
            r < 0.
    """
    if how == "abs_one":
        return np.clip(rewards, -1.0, 1.0)
    if how == "soft_asymmetric":
        squeezed: Floats = 5.0 * np.tanh(rewards / 5.0)
        return np.where(rewards < 0, 0.3 * squeezed, squeezed)
    return rewards
