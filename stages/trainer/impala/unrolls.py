"""Unrolls as the network and the losses take them: concatenated rows, the fresh ones first.

Trajectories follow each other, none longer than an unroll. Without memory the network computes the rows, followed by
the observations after each trajectory, in one pass. With memory a trajectory is a sequence: from the actor's memory at
its start to the observation after its last row, padded to the longest.

Axis letters: N rows, of which F are fresh; K trajectories; C continuous actions, S reward signals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.stages.policy.network.layers import Inputs, to_device
from headrace.stages.trainer.on_policy.minibatches import InputRows
from headrace.stages.trainer.protocol import Part, Replicas


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recorded data of the N - F replayed rows, from when they were made or first learned from."""

    heads: Tensor | None
    """[N - F, …] the action heads of the policy that acted, masks as penalties; None if none are cloned."""
    values: Tensor
    """[N - F, S] the critic's values."""


# Unrolls are cut from pieces of any length, so flow control may close a trajectory anywhere (docs/decisions/038).
@dataclass(frozen=True, slots=True)
class Unrolls:
    """The rows of one update."""

    inputs: Inputs
    """Rows and final observations."""
    places: Tensor | None
    """[N + K] indices of the rows and of the final observations in the network's outputs; None if in order."""
    continuous: Tensor
    """[N, C] raw continuous actions."""
    choices: tuple[Tensor, ...]
    """Per branch [N, 1] int64."""
    penalties: Tensor | None
    """[N, H] added to heads: `MASK_PENALTY` for choices that were forbidden, else 0; None without masks."""
    acted: NDArray[np.float32]
    """[N] log-probabilities of the joint actions under the policies that acted."""
    rewards: NDArray[np.float64]
    """[N, S] scaled and clipped."""
    lengths: NDArray[np.int64]
    """[K] rows of each trajectory."""
    valueless: NDArray[np.bool_]
    """[K, S] true where no reward can follow."""
    fresh: int
    """F"""
    recorded: Recorded | None
    """None if all rows are fresh."""
    all_rows: int
    """The number of rows of all replicas' parts."""
    all_fresh: int
    """The number of fresh rows among them."""
    here: Part
    """The place of these rows among all of them."""

    def __len__(self) -> int:
        return len(self.acted)


def pieces_of(lengths: NDArray[np.int64], replicas: Replicas) -> tuple[slice, Part]:
    """A replica's part of K trajectories: their slice, and the place of their rows."""
    part, ends = replicas.part(len(lengths)), np.cumsum(lengths)
    first = int(ends[part.rows.start - 1]) if part.rows.start else 0
    return part.rows, Part(slice(first, int(ends[part.rows.stop - 1])), part.weight)


def joined_inputs(rows: InputRows, finals: InputRows) -> Inputs:
    """N rows, followed by K final observations, without memory."""
    pairs = zip(rows.others, finals.others, strict=True)
    others = tuple(to_device(torch.cat(pair), rows.device) for pair in pairs)
    return Inputs(torch.cat([rows.vectors, finals.vectors]), others)


def sequence_inputs(
    rows: InputRows, finals: InputRows, lengths: NDArray[np.int64], memories: Tensor
) -> tuple[Inputs, Tensor]:
    """K sequences, each followed by its final observation, and the indices of rows and finals in the outputs.

    Args:
        rows: N rows, with previous actions.
        finals: K final observations, with previous actions.
        lengths: [K]
        memories: [K, m] before the first row of each sequence.

    Returns:
        The inputs, and the places [N + K].
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


# How far the learning policy is from the policies that acted, by the probability ratios of an update.


@dataclass(frozen=True, slots=True)
class Limits:
    """The constants of V-trace."""

    rho_bar: float = 1.0
    """ρ̄: a larger one moves the targets' fixed point towards the value of the learning policy."""
    c_bar: float = 1.0
    """c̄: a smaller one passes on less of later rewards if policies differ, for less variance."""
    lambd: float = 1.0
    """λ, the factor on each c."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """Statistics of the ratios π/μ of all rows, with π the learning policy and μ the one that acted."""

    rho: float
    """Mean of ρ = min(ρ̄, π/μ), the weight of a row's own reward."""
    clipped: float
    """Share of ratios above ρ̄."""
    trace: float
    """Mean of c = λ min(c̄, π/μ), the weight of later rewards."""
    approximate_kl: float
    """Mean of π/μ - 1 - log π/μ: Schulman's estimator k3 of KL(μ, π)."""
    least: float
    greatest: float

    def named(self) -> dict[str, float]:
        """The statistics, by name."""
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
    """Measure log(π/μ) [N].

    Args:
        log_ratios: of this replica's rows.
        limits: ρ̄, c̄ and λ.
        means_of_all: turns means over these rows into means over the rows of all replicas.
        replicas: hold the other rows.
        device: the device on which replicas exchange numbers.
    """
    with np.errstate(over="ignore"):  # an infinite ratio is a number that the statistics leave out with a warning
        beyond = np.expm1(log_ratios)
        ends = torch.tensor([1.0 + beyond.min(), 1.0 + beyond.max()], dtype=torch.float64, device=device)
    rho = np.exp(np.minimum(log_ratios, log(limits.rho_bar)))
    trace = limits.lambd * np.exp(np.minimum(log_ratios, log(limits.c_bar)))
    clipped = log_ratios > log(limits.rho_bar)
    columns = rho, clipped, trace, beyond - log_ratios
    of_rho, above, of_trace, kl = means_of_all([float(column.mean()) for column in columns])
    of_each = replicas.of_each(ends)
    return Ratios(of_rho, above, of_trace, kl, float(of_each[:, 0].min()), float(of_each[:, 1].max()))
