"""How far the policy that learns is from those that acted: what the probability ratios of an update show.

V-trace's own limits are in `vtrace`. Axis letter: N rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.stages.trainer.impala.vtrace import Limits
from headrace.stages.trainer.replicas import Replicas


@dataclass(frozen=True, slots=True)
class Ratios:
    """Of the ratios π/μ of all rows, π the policy that learns and μ the one that acted."""

    rho: float
    """Mean of ρ = min(ρ̄, π/μ), by which a row's own reward counts."""
    clipped: float
    """Share that is above ρ̄."""
    trace: float
    """Mean of c = λ min(c̄, π/μ), by which later rewards are passed back."""
    approximate_kl: float
    """Mean of π/μ - 1 - log π/μ: Schulman's estimator k3 of KL(μ, π)."""
    least: float
    greatest: float

    def named(self) -> dict[str, float]:
        """By the names of the statistics."""
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
        means_of_all: makes means over these rows those over the rows of all replicas.
        replicas: which have the others.
        device: on which they exchange numbers.
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
