"""V-trace over packed trajectories, as a pure function of arrays.

Espeholt et al. (2018), "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
section 4.1. Axis letters: N rows, K trajectories packed end to end, S reward signals.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from headrace.stages.trainer.on_policy.advantages import accumulated, next_values

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limits:
    """The constants of V-trace."""

    rho_bar: float = 1.0
    """ρ̄: a larger one brings the targets' fixed point nearer to the value of the policy that learns."""
    c_bar: float = 1.0
    """c̄: a smaller one lets less of later rewards through where policies differ, for less variance."""
    lambd: float = 1.0
    """λ, by which each c is multiplied."""


@dataclass(frozen=True, slots=True)
class VTrace:
    """What V-trace makes of N rows."""

    targets: Floats
    """[N, S] v_t: what the critic should say."""
    advantages: Floats
    """[N, S] ρ_t (r_t + γ v_{t+1} - V_t): the weights of ∇ log π."""


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
    """Targets and advantages of trajectories that other policies made.

    With ρ_t = min(ρ̄, π/μ) and c_t = λ min(c̄, π/μ):

        v_t = V_t + ρ_t (r_t + γ V_{t+1} - V_t) + γ c_t (v_{t+1} - V_{t+1}),

    where V after the last row is 0 if the episode terminated there, else the critic's value of what was observed next.

    Args:
        log_ratios: [N] log(π/μ) of the joint action, π the policy that learns and μ the one that acted.
        rewards: [N, S] received after the action of the row, scaled and clipped.
        values_t: [N, S] critic's value V of the row's observation.
        final_values: [K, S] critic's value of the observation after the last row; ignored where it is valueless.
        lengths: [K] rows of each trajectory, at least 1.
        valueless: [K, S] true where no reward can follow the last row.
        gammas: [S] discount γ of each signal.
        limits: ρ̄, c̄ and λ.
    """
    rho = np.exp(np.minimum(log_ratios, log(limits.rho_bar)))[:, None]
    c = limits.lambd * np.exp(np.minimum(log_ratios, log(limits.c_bar)))[:, None]
    values_tp1 = next_values(values_t, final_values, lengths, valueless)
    targets = values_t + accumulated(rho * (rewards + gammas * values_tp1 - values_t), gammas * c, lengths)
    targets_tp1 = next_values(targets, final_values, lengths, valueless)
    return VTrace(targets, rho * (rewards + gammas * targets_tp1 - values_t))


def clipped_rewards(rewards: Floats, how: str) -> Floats:
    """Rewards of any shape, clipped as DeepMind's learner of IMPALA does.

    Args:
        rewards: scaled.
        how: `none`; `abs_one`, to [-1, 1]; `soft_asymmetric`, 5·tanh(r/5), and 0.3 times that where r < 0.
    """
    if how == "abs_one":
        return np.clip(rewards, -1.0, 1.0)
    if how == "soft_asymmetric":
        squeezed: Floats = 5.0 * np.tanh(rewards / 5.0)
        return np.where(rewards < 0, 0.3 * squeezed, squeezed)
    return rewards
