"""IMPALA's rows, in the form that the network and the losses expect, and the loss gradients, by autograd or by hand.

Axis letters: N rows, of which the first F are fresh and the others replayed; K trajectories; C continuous actions; H
head outputs; S signals.

For the gradients by hand, let w and G be V-trace's advantages and targets (constants), m and v' the head outputs and
values recorded for replayed rows, and c the loss weights, here divided by the number of rows. The loss is

    L = -c₀ Σ w·log π + c₁ Σ (v - G)²/2 - c₂·N·entropy + c₃ Σ_replayed KL(m ‖ π) + c₄ Σ_replayed (v - v')²

so that g = ∂L/∂log π = -c₀·w and ∂L/∂v = c₁·(v - G) + 2·c₄·(v - v'). The entropy is that of the joint distribution; for
the Gaussian, the sum over dimensions. For the divergence, with means μ and m, log standard deviations log σ and s, and
logits l and q,

    ∂KL/∂μ = (μ - m)/σ²     ∂KL/∂log σ = 1 - (e^(2s) + (m - μ)²)/σ²     ∂KL/∂l = softmax l - softmax q.

The values of final observations don't contribute to the loss, so their gradients are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import e, log, pi
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.queues.specs import ActionSpec
from headrace.stages.policy.network.layers import Inputs, categorical_log_probs, gaussian_scores, to_device
from headrace.stages.policy.network.protocol import ActorCriticNetwork, Perceptrons
from headrace.stages.trainer.intake import InputRows
from headrace.stages.trainer.on_policy.by_hand import ActionLikelihood, Numbers, PerceptronsByHand
from headrace.stages.trainer.protocol import Part, Replicas

_HALF_LOG_TWO_PI_E = 0.5 * log(2.0 * pi * e)

# Unrolls are concatenated rows, with fresh ones first. Trajectories are consecutive, and none is longer than an unroll.
# Without memory, the network evaluates the rows, followed by the final observations, in one pass. With memory, each
# trajectory is a sequence, from the actor's memory at its start to the observation after its last row, and is padded to
# the longest one.


@dataclass(frozen=True, slots=True)
class Recorded:
    """Data about the N - F replayed rows, recorded when the rows were created or first learned from."""

    heads: Tensor | None
    """[N - F, …] the acting policies' head outputs, including mask penalties; None without policy cloning."""
    values: Tensor
    """[N - F, S] the critic's values when the rows were first learned from."""


# Unrolls are cut from pieces of any length, so flow control may close a trajectory at any row (docs/decisions/038).
@dataclass(frozen=True, slots=True)
class Unrolls:
    """The rows of one update, fresh and replayed."""

    inputs: Inputs
    """The network's inputs: rows and final observations."""
    places: Tensor | None
    """[N + K] indices, in the network's outputs, of rows and then final observations; None if that is their order."""
    continuous: Tensor
    """[N, C] raw continuous actions."""
    choices: tuple[Tensor, ...]
    """For each branch, the choices [N, 1] int64."""
    penalties: Tensor | None
    """[N, H] penalties added to head outputs: `MASK_PENALTY` for forbidden choices, else 0; None without masks."""
    acted: NDArray[np.float32]
    """[N] the joint actions' log-probabilities under the policies that acted."""
    rewards: NDArray[np.float64]
    """[N, S] rewards, scaled and clipped."""
    lengths: NDArray[np.int64]
    """[K] the number of rows of each trajectory."""
    valueless: NDArray[np.bool_]
    """[K, S] true if no reward can follow the trajectory's last row."""
    fresh: int
    """The number of fresh rows, F."""
    recorded: Recorded | None
    """Data about the replayed rows; None if all rows are fresh."""
    all_rows: int
    """The total number of rows over all replicas."""
    all_fresh: int
    """The total number of fresh rows over all replicas."""
    here: Part
    """The position of this replica's rows among the rows of all replicas."""

    def __len__(self) -> int:
        return len(self.acted)


def pieces_of(lengths: NDArray[np.int64], replicas: Replicas) -> tuple[slice, Part]:
    """Return a replica's part of K trajectories: their slice, and the position of their rows."""
    part, ends = replicas.part(len(lengths)), np.cumsum(lengths)
    first = int(ends[part.rows.start - 1]) if part.rows.start else 0
    return part.rows, Part(slice(first, int(ends[part.rows.stop - 1])), part.weight)


def joined_inputs(rows: InputRows, finals: InputRows) -> Inputs:
    """Return network inputs without memory: N rows, followed by K final observations."""
    pairs = zip(rows.others, finals.others, strict=True)
    others = tuple(to_device(torch.cat(pair), rows.device) for pair in pairs)
    return Inputs(torch.cat([rows.vectors, finals.vectors]), others)


def sequence_inputs(
    rows: InputRows, finals: InputRows, lengths: NDArray[np.int64], memories: Tensor
) -> tuple[Inputs, Tensor]:
    """Return network inputs for K sequences, each followed by its final observation, and the positions of the outputs.

    Args:
        rows: N rows, with previous actions.
        finals: K final observations, with previous actions.
        lengths: [K] the number of rows of each sequence.
        memories: [K, m] the memory before each sequence's first row.

    Returns:
        The inputs, and the indices [N + K] of the rows and final observations in the network's outputs.
    """
    assert rows.previous_actions is not None, "a policy with memory takes in its last action"
    assert finals.previous_actions is not None, "as it does after the last row"
    table = InputRows(
        torch.cat([rows.vectors, finals.vectors]),
        tuple(torch.cat(pair) for pair in zip(rows.others, finals.others, strict=True)),
        torch.cat([rows.previous_actions, finals.previous_actions]),
    )
    starts, width = np.cumsum(lengths) - lengths, int(lengths.max()) + 1
    steps, final = np.arange(width), len(rows) + np.arange(len(lengths))
    within = steps < lengths[:, None]
    index = np.where(within, starts[:, None] + steps, final[:, None])
    flat = np.arange(index.size).reshape(index.shape)
    places = np.concatenate([flat[within], flat[np.arange(len(lengths)), lengths]])
    return table.sequences(index, memories), to_device(torch.from_numpy(places), rows.device)


# How far the learning policy is from the acting policies, measured by the probability ratios in an update.


@dataclass(frozen=True, slots=True)
class Limits:
    """The constants of V-trace."""

    rho_bar: float = 1.0
    """ρ̄, the bound on ρ: a larger bound moves the targets' fixed point towards the learning policy's value."""
    c_bar: float = 1.0
    """c̄, the bound on c: a smaller bound reduces variance, because off-policy rows pass back less of later rewards."""
    lambd: float = 1.0
    """λ, a factor on each c."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """Statistics of the ratios π/μ over all rows, where π is the learning policy and μ the acting policy."""

    rho: float
    """Mean of ρ = min(ρ̄, π/μ), the weight of a row's own reward."""
    clipped: float
    """Fraction of the ratios that are above ρ̄."""
    trace: float
    """Mean of c = λ min(c̄, π/μ), the weight of later rewards."""
    approximate_kl: float
    """Mean of π/μ - 1 - log π/μ: Schulman's estimator k3 of KL(μ, π)."""
    least: float
    greatest: float

    def named(self) -> dict[str, float]:
        """Return the statistics, keyed by name."""
        return {
            "Policy/Importance Ratio": self.rho,
            "Policy/Clipped Ratios": self.clipped,
            "Policy/Trace Coefficient": self.trace,
            "Policy/Approximate KL": self.approximate_kl,
            "Policy/Ratio Min": self.least,
            "Policy/Ratio Max": self.greatest,
        }


def ratios_of(
    log_ratios: NDArray[np.float64],
    limits: Limits,
    means_of_all: Callable[[list[float]], list[float]],
    replicas: Replicas,
    device: torch.device | str = "cpu",
) -> Ratios:
    """Compute the statistics of the ratios from their logarithms [N].

    Args:
        log_ratios: log(π/μ) of this replica's rows.
        limits: ρ̄, c̄ and λ.
        means_of_all: converts means over these rows to means over all replicas' rows.
        replicas: the replicas that have the other rows.
        device: the device used to exchange numbers between replicas.
    """
    with np.errstate(over="ignore"):  # statistics drop infinite ratios, with a warning
        beyond = np.expm1(log_ratios)
        ends = torch.tensor([1.0 + beyond.min(), 1.0 + beyond.max()], dtype=torch.float64, device=device)
    rho = np.exp(np.minimum(log_ratios, log(limits.rho_bar)))
    trace = limits.lambd * np.exp(np.minimum(log_ratios, log(limits.c_bar)))
    clipped = log_ratios > log(limits.rho_bar)
    columns = rho, clipped, trace, beyond - log_ratios
    of_rho, above, of_trace, kl = means_of_all([float(column.mean()) for column in columns])
    of_each = replicas.of_each(ends)
    return Ratios(of_rho, above, of_trace, kl, float(of_each[:, 0].min()), float(of_each[:, 1].max()))


# The gradients. The network and actions by hand are in `on_policy/by_hand.py`.


class ImpalaGradients(Protocol):
    """Computes the gradients of `ImpalaUpdate`'s losses in two passes, because V-trace needs results of the first."""

    def forward(self, unrolls: Unrolls) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return head outputs [N, H] with mask penalties added, values [N + K, S], log π [N] and the entropy."""
        ...

    def backward(
        self,
        unrolls: Unrolls,
        advantages: NDArray[np.float64],
        targets: NDArray[np.float64],
        weights: Sequence[float],
        share: float,
        total: Tensor,
    ) -> None:
        """Set the gradients of `share` times the weighted losses, for the rows last passed to `forward`.

        Args:
            unrolls: the same unrolls as in `forward`.
            advantages: [N] the weights of log π.
            targets: [N, S] the value targets.
            weights: the weight of each loss except the total, divided by the loss's number of rows.
            share: a factor on the gradients.
            total: the sum of the weighted losses.
        """
        ...


class ImpalaAutograd:
    """Computes the gradients of any network by autograd.

    Args:
        network: the network that is evaluated, and whose gradients are set.
        branches: the number of choices of each discrete action.
    """

    def __init__(self, network: ActorCriticNetwork, branches: Sequence[int]) -> None:
        self._network, self._branches = network, branches

    def outputs(self, unrolls: Unrolls) -> tuple[Tensor, Tensor]:
        """Return head outputs [N, H] with mask penalties added, and values [N + K, S]."""
        heads, values = self._network(unrolls.inputs)
        n = len(unrolls)
        if unrolls.places is None:
            heads = heads[:n]
        else:
            heads, values = heads.index_select(0, unrolls.places[:n]), values.index_select(0, unrolls.places)
        return (heads if unrolls.penalties is None else heads + unrolls.penalties), values

    def forward(self, unrolls: Unrolls) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See `ImpalaGradients`."""
        heads, values = self.outputs(unrolls)
        of_actions = unrolls.continuous, unrolls.choices, self._branches, self._network.squashed
        return heads, values, *log_probs_and_entropy(heads, self._network.log_sigma, *of_actions)

    def backward(self, unrolls: Unrolls, *of_losses: Any) -> None:
        """See `ImpalaGradients`; only `share` and `total` are used, because `total` has the autograd graph."""
        *_, share, total = of_losses
        self.descend(share, total)

    def descend(self, share: float, total: Tensor) -> None:
        """Set the gradients of `share * total`."""
        self._network.gradients.zero_()
        torch.autograd.backward(total if share == 1.0 else total * share)


def log_probs_and_entropy(
    heads: Tensor,
    log_sigma: Tensor | None,
    continuous: Tensor,
    choices: Sequence[Tensor],
    branches: Sequence[int],
    squashed: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return joint actions' log-probabilities [R], and the joint distribution's entropy averaged over rows, a scalar.

    Args:
        heads: [R, H] means, followed by each branch's logits with mask penalties added.
        log_sigma: [C] the Gaussian's log σ; None if log σ follows the means in `heads`.
        continuous: [R, C] raw actions.
        choices: for each branch, the choices [R, 1].
        branches: the number of choices in each branch.
        squashed: whether continuous actions are the tanh of the Gaussian.
    """
    parts, entropies, logits = [], [], heads
    if size := continuous.shape[1]:
        log_probs, entropy, logits = gaussian_scores(heads, log_sigma, continuous, squashed)
        parts.append(log_probs.sum(dim=1))
        entropies.append(entropy * size)
    for branch, chosen in zip(torch.split(logits, list(branches), dim=1), choices, strict=True):
        log_probs, entropy = categorical_log_probs(branch, chosen)
        parts.append(log_probs.squeeze(1))
        entropies.append(entropy)
    return reduce(torch.add, parts), reduce(torch.add, entropies)


class ImpalaByHand:
    """Computes the network's outputs and the loss gradients by hand, as the `gradients` of an `ImpalaUpdate`.

    Args:
        network: two perceptrons, or one with both heads, on the CPU.
        actions: the behaviour's actions.
        rows: the usual batch size in rows.
    """

    def __init__(self, network: Perceptrons, actions: ActionSpec, rows: int) -> None:
        self._perceptron = PerceptronsByHand(network, rows)
        self._likelihood = ActionLikelihood(network, actions)
        self._continuous = actions.continuous_size
        self._branches = list(actions.discrete_branches)
        self._heads = np.empty((0, 0), np.float32)
        """[H, N] head outputs, with mask penalties added."""
        self._log_sigma = self._of_log_sigma = None
        if "log_sigma" in network.parameters:
            self._log_sigma = network.parameters["log_sigma"].detach().numpy()
            self._of_log_sigma = network.named_views(network.gradients)["log_sigma"].numpy()

    def forward(self, unrolls: Unrolls) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See `ImpalaGradients`; the results have no autograd graph."""
        network, n = self._perceptron, len(unrolls)
        with np.errstate(all="ignore"):  # the update detects non-finite values in the losses
            network.forward(unrolls.inputs.vectors)
            self._heads = np.ascontiguousarray(network.heads[:, :n])
            if unrolls.penalties is not None:
                self._heads += unrolls.penalties.numpy().T
            log_probs, entropy = self._likelihood.forward(
                self._heads,
                unrolls.continuous.numpy().T,
                [choices.numpy()[:, 0] for choices in unrolls.choices],
                self._heads[:0],
            )
        if self._log_sigma is not None:
            entropy += (self._continuous - 1) * (float(self._log_sigma.mean()) + _HALF_LOG_TWO_PI_E)
        found = self._heads.T, network.values.T, np.add.reduce(log_probs, axis=0), np.array(entropy, log_probs.dtype)
        heads, values, joint, of_all = (torch.from_numpy(each) for each in found)
        return heads, values, joint, of_all

    def backward(
        self,
        unrolls: Unrolls,
        advantages: NDArray[np.float64],
        targets: NDArray[np.float64],
        weights: Sequence[float],
        share: float,
        total: Tensor,
    ) -> None:
        """Write the gradients; see `ImpalaGradients`. In the module's equations, advantages are w and targets are G."""
        network, n, kind = self._perceptron, len(unrolls), self._heads.dtype
        policy, baseline, of_entropy, policy_cloning, value_cloning = (share * weight for weight in weights)
        of_heads, errors = np.empty_like(self._heads), network.values[:, :n] - targets.T
        with np.errstate(all="ignore"):
            of_log_probs = (-policy * advantages).astype(kind)[None]
            self._likelihood.backward(of_log_probs, -of_entropy * n, of_heads)
            if self._of_log_sigma is not None:  # `ActionLikelihood` takes the mean over dimensions
                self._of_log_sigma -= of_entropy * n * (1.0 - 1.0 / self._continuous)
            errors *= baseline
            if (recorded := unrolls.recorded) is not None:
                replayed = slice(unrolls.fresh, n)
                difference = network.values[:, replayed] - recorded.values.numpy().T
                errors[:, replayed] += 2.0 * value_cloning * difference
                self._clone(recorded, of_heads[:, replayed], self._heads[:, replayed], policy_cloning)
            network.of_heads[:, :n], network.of_heads[:, n:] = of_heads, 0.0
            network.of_values[:, :n], network.of_values[:, n:] = errors, 0.0
            network.backward()

    def _clone(self, recorded: Recorded, of_heads: Numbers, heads: Numbers, weight: float) -> None:
        if recorded.heads is None:
            return
        acted, size = recorded.heads.numpy().T, self._continuous
        if self._log_sigma is not None and self._of_log_sigma is not None:
            mean, spread, acted = acted[:size], acted[size : 2 * size], acted[2 * size :]
            precision = np.exp(-2.0 * self._log_sigma)[:, None]
            away = heads[:size] - mean
            of_heads[:size] += weight * away * precision
            self._of_log_sigma += weight * np.add.reduce(1.0 - (np.exp(2.0 * spread) + away * away) * precision, axis=1)
        first = 0
        for width in self._branches:
            ours, theirs = heads[size + first : size + first + width], acted[first : first + width]
            of_heads[size + first : size + first + width] += weight * (_softmax(ours) - _softmax(theirs))
            first += width


def _softmax(logits: Numbers) -> Numbers:
    """Return the softmax over H of each column of logits [H, N]."""
    p: Numbers = np.exp(logits - np.maximum.reduce(logits, axis=0))
    p /= np.add.reduce(p, axis=0)
    return p
