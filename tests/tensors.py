"""What of torch's tools for tests is slow to import: a comparison imports SymPy, an optimizer torch's compiler.

Each is a second of every worker's time.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam

_TOLERANCES = {
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
}
"""Relative and absolute, as `torch.testing.assert_close` has them; other types have to be equal."""


def assert_close(
    found: Tensor,
    expected: Tensor,
    rtol: float | None = None,
    atol: float | None = None,
    msg: str = "",
    equal_nan: bool = False,
) -> None:
    """Two tensors have the same shape, type and, within the tolerances, numbers."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), msg
    relative, absolute = _TOLERANCES.get(found.dtype, (0.0, 0.0))
    one, other = (tensor.detach().cpu().double().numpy() for tensor in (found, expected))
    np.testing.assert_allclose(
        one,
        other,
        rtol=relative if rtol is None else rtol,
        atol=absolute if atol is None else atol,
        equal_nan=equal_nan,
        err_msg=msg,
    )


class TorchAdam:
    """torch's Adam, as `torch.optim.Adam` calls it, for parameters with gradients."""

    def __init__(self, parameters: list[Tensor], rate: float, epsilon: float = 1e-8) -> None:
        self._parameters = parameters
        self._rate = rate
        self._epsilon = epsilon
        self._first, self._second = ([torch.zeros_like(each) for each in parameters] for _ in range(2))
        self._steps = [torch.zeros(()) for _ in parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Take a step along the gradients."""
        gradients = [each.grad for each in self._parameters if each.grad is not None]
        adam(
            self._parameters,
            gradients,
            self._first,
            self._second,
            [],
            self._steps,
            amsgrad=False,
            foreach=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._rate,
            weight_decay=0.0,
            eps=self._epsilon,
            maximize=False,
        )
