"""Generalised advantage estimation over packed trajectories, as a pure function of arrays.

Axis letters: N rows, K trajectories packed end to end, S reward signals.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def advantages(
    rewards: Floats,
    values_t: Floats,
    final_values: Floats,
    lengths: NDArray[np.integer],
    valueless: NDArray[np.bool_],
    gammas: Floats,
    lambd: float,
) -> Floats:
    """GAE(γ, λ) of Schulman et al. (2015), "High-Dimensional Continuous Control Using GAE", eq. 16.

    δ_t = r_t + γ V_{t+1} - V_t and A_t = Σ_k (γλ)^k δ_{t+k} within a trajectory. V after the last row is 0
    where the episode terminated there, and the value of the final next observation where it was truncated or
    just cut, or where the signal goes on beyond termination.

    Args:
        rewards: [N, S] received after the action of the row, scaled by the signal's strength.
        values_t: [N, S] critic's value of the row's observation.
        final_values: [K, S] critic's value of the observation after the last row; ignored where it is valueless.
        lengths: [K] rows of each trajectory, at least 1.
        valueless: [K, S] true where no reward can follow the last step: the episode terminated, and the signal ends
            with it.
        gammas: [S] discount of each signal.
        lambd: λ.

    Returns:
        [N, S] advantages; the returns (value targets) are advantages + values_t.
    """
    values_tp1 = next_values(values_t, final_values, lengths, valueless)
    return accumulated(rewards + gammas * values_tp1 - values_t, gammas * lambd, lengths)


def next_values(
    values_t: Floats, final_values: Floats, lengths: NDArray[np.integer], valueless: NDArray[np.bool_]
) -> Floats:
    """The value [N, S] after each row: that of the next row, or the final one; 0 where it is valueless."""
    values_tp1 = np.empty_like(values_t)
    values_tp1[:-1] = values_t[1:]
    values_tp1[np.cumsum(lengths) - 1] = np.where(valueless, 0.0, final_values)
    return values_tp1


def accumulated(terms: Floats, decay: Floats, lengths: NDArray[np.integer]) -> Floats:
    """Sums x_t = term_t + decay_t x_{t+1} [N, S] within each trajectory, of terms [N, S] and decays [N, S] or [S]."""
    order, active = _backward_order(lengths, np.cumsum(lengths) - 1)
    # Rows in the order: all last rows, all rows one before the last, …; longest trajectories first. Then the
    # rows at one distance from the end are one slice, and those of the longer trajectories one distance on
    # are a prefix of it.
    sums = terms[order]
    decays = np.broadcast_to(decay, terms.shape) if decay.ndim == 1 else decay[order]
    start = 0
    for distance in range(1, len(active)):
        here = start + active[distance - 1]
        n = active[distance]
        sums[here : here + n] += decays[here : here + n] * sums[start : start + n]
        start = here
    result = np.empty_like(sums)
    result[order] = sums
    return result


def normalized(values: Floats) -> Floats:
    """Values [N] less their mean, over their standard deviation (over a whole buffer, as in ML-Agents)."""
    centred: Floats = values - values.mean()
    deviation = float(values.std())
    return centred / (deviation + 1e-10)


def explained_variances(values: Floats, targets: Floats) -> Floats:
    """1 - Var(target - value) / Var(target) [S], of values and targets [N, S]; NaN where targets do not vary.

    1 is a perfect critic, 0 one that knows no more than the mean, and less than 0 one that is worse than that.
    """
    spread = targets.var(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(spread > 0, 1.0 - (targets - values).var(axis=0) / spread, np.nan)


def _backward_order(lengths: NDArray[np.integer], last: NDArray[np.integer]) -> tuple[NDArray[np.intp], list[int]]:
    """Row indices by distance from their trajectory's end, and the number of trajectories that reach each distance."""
    ranks = np.argsort(-lengths, kind="stable")
    counts = np.bincount(lengths)[::-1].cumsum()[::-1][1:]  # [longest] trajectories with at least 1, 2, … rows
    distances = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(distances)) - np.repeat(np.cumsum(counts) - counts, counts)
    return last[ranks][within] - distances, counts.tolist()
