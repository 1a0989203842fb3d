"""The functions in `kernels.c`, if a compiler was present when the package was built.

They are optional: each caller also implements the computation in NumPy, and uses that if `kernels` is None. Tests
compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from headrace.queues.specs import ActionSpec

try:
    kernels: Any = import_module("headrace.stages.policy.network.kernels._kernels")
except ImportError:
    kernels = None

ACTIVATIONS = {"tanh": 1, "relu": 2, "swish": 3}
"""The activations that are compiled, with their numbers in `kernels.c`."""
UNITS = 16
"""The number of units in a compiled layer must be a multiple of this."""


def compiles(activation: str, sizes: Sequence[int], dtype: torch.dtype) -> bool:
    """Return True if compiled layers exist for this activation, these sizes and this dtype."""
    possible = kernels is not None and activation in ACTIVATIONS and dtype == torch.float32
    return possible and not any(units % UNITS for units in sizes)


def scores(actions: ActionSpec, dtype: torch.dtype) -> bool:
    """Return True if the clipped loss is compiled for these actions and this dtype."""
    few = actions.continuous_size <= 24 and len(actions.discrete_branches) <= 8
    return kernels is not None and few and dtype == torch.float32
