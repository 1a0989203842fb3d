"""Numbers below the normal range count as 0 while a trainer learns.

Adam's moments of weights whose gradients stay 0 (units of ReLU that are off, images without a pattern) fall by a tenth
each step until they are denormal, below 1.2e-38, where processors compute a hundred times as slowly; a step of Adam in
soft actor-critic took eight times as long. No learning depends on such numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_DENORMAL = np.float32(1e-40)
_ONE = np.float32(1.0)
for _kind in (np.float32, np.float64):
    np.finfo(_kind)  # NumPy works them out at the first use, and would warn then that denormal numbers are 0


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Let this thread take denormal numbers for 0, where its processor can; also a decorator."""
    before = bool(_DENORMAL * _ONE == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
