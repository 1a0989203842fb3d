"""Hidden layers whose gradients are derived by hand: by NumPy where they are small, by torch where they are large.

The equations are in `by_hand`, and so are the axis letters: R rows, T towers, V inputs, U units.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.stages.policy.network.layers import write_tanh
from headrace.stages.policy.network.products import HiddenProducts

FEWEST_OF_TORCH = 128
"""Units of the widest layer from which on torch computes the layers: below, its calls take longer than NumPy's."""
LEAST_OF_TORCH = 2**15
"""Results of the widest layer, in units times rows, from which on it does, too."""


class HandLayer(ABC):
    """One hidden layer of all towers, by NumPy or by torch.

    Attributes:
        outputs: y [T, R, U] of the last forward pass.
        deltas: [T, R, U] ∂L/∂y, which the backward pass makes δ.
    """

    outputs: NDArray[Any]
    deltas: NDArray[Any]

    @abstractmethod
    def make_room(self, rows: int) -> None:
        """Make the buffers."""

    @abstractmethod
    def forward(self, inputs: Tensor, before: Any) -> None:
        """Compute `outputs` of those of the layer `before`, or of the first layer's inputs [R, V]."""

    @abstractmethod
    def backward(self, inputs: Tensor, before: Any) -> None:
        """Write ∂L/∂W and ∂L/∂b, and the `deltas` of the layer `before`."""


class _NarrowLayer(HandLayer):
    """By NumPy, whose calls cost less."""

    def __init__(self, activation: str, products: HiddenProducts, *parameters: Tensor) -> None:
        self._weight, self._bias, self._of_weight, self._of_bias = (each.numpy() for each in parameters)
        self._activate, self._slope, self._keeps_z = _OF_NUMPY[activation]

    def make_room(self, rows: int) -> None:
        shape, dtype = (len(self._weight), rows, self._weight.shape[2]), torch.from_numpy(self._weight).dtype
        self.y, self.delta = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)
        self.z = torch.empty(shape, dtype=dtype) if self._keeps_z else self.y
        self.outputs, self.deltas, self._inputs = self.y.numpy(), self.delta.numpy(), self.z.numpy()
        self._ones = np.ones(rows, self._weight.dtype)

    def forward(self, inputs: Tensor, before: _NarrowLayer | None) -> None:
        np.matmul(inputs.numpy() if before is None else before.outputs, self._weight, out=self._inputs)
        self._inputs += self._bias
        self._activate(self)

    def backward(self, inputs: Tensor, before: _NarrowLayer | None) -> None:
        x = inputs.numpy() if before is None else before.outputs
        self._slope(self)
        np.matmul(x.swapaxes(-1, -2), self.deltas, out=self._of_weight)
        np.matmul(self._ones, self.deltas, out=self._of_bias[:, 0])
        if before is not None:
            np.matmul(self.deltas, self._weight.swapaxes(-1, -2), out=before.deltas)


class _WideLayer(HandLayer):
    """By torch, whose products are faster and include the bias, and whose slopes are one pass."""

    def __init__(self, activation: str, products: HiddenProducts, *parameters: Tensor) -> None:
        self._weight, self._bias, self._of_weight, self._of_bias = parameters
        self._rounded = products.product if products.rounds(self._weight) else None
        self._activate, self._slope, self._keeps_z = _OF_TORCH[activation]

    def make_room(self, rows: int) -> None:
        towers, _, units = self._weight.shape
        self.y, self.delta = (torch.empty((towers, rows, units), dtype=self._weight.dtype) for _ in range(2))
        self.z = torch.empty_like(self.y) if self._keeps_z else self.y
        self.outputs, self.deltas = self.y.numpy(), self.delta.numpy()
        self._ones = torch.ones((towers, 1, rows), dtype=self._weight.dtype)

    def forward(self, inputs: Tensor, before: _WideLayer | None) -> None:
        x = inputs.expand(len(self.y), *inputs.shape) if before is None else before.y
        if self._rounded is None:
            torch.baddbmm(self._bias, x, self._weight, out=self.z)
        else:
            self._rounded(x, self._weight, self.z)
            self.z.add_(self._bias)
        self._activate(self.z, out=self.y)

    def backward(self, inputs: Tensor, before: _WideLayer | None) -> None:
        x = inputs.expand(len(self.y), *inputs.shape) if before is None else before.y
        self._slope(self)
        multiply = self._rounded or _multiply
        multiply(x.transpose(1, 2), self.delta, self._of_weight)
        torch.bmm(self._ones, self.delta, out=self._of_bias)
        if before is not None:
            multiply(self.delta, self._weight.transpose(1, 2), before.delta)


def _multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.bmm(a, b, out=out)


def make_layers(
    activation: str,
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    count: int,
    products: HiddenProducts,
    rows: int,
) -> Sequence[HandLayer]:
    """Make the layers of a body, from the first to the last, for parameters and gradients by their names.

    They are made for minibatches of `rows`, and do for others.
    """
    of_layer = [
        [of[f"body.{i}.{what}"] for of in (weights, gradients) for what in ("weight", "bias")] for i in range(count)
    ]
    units = max(weight.shape[2] for weight, *_ in of_layer)
    kind = _WideLayer if units >= FEWEST_OF_TORCH or units * rows >= LEAST_OF_TORCH else _NarrowLayer
    return [kind(activation, products, *parameters) for parameters in of_layer]


# Activations by NumPy: z in `outputs` becomes y; then ∂L/∂y in `deltas` becomes δ, and `outputs` are spent. -----------


def _tanh(layer: _NarrowLayer) -> None:
    np.tanh(layer.outputs, out=layer.outputs)


def _tanh_backward(layer: _NarrowLayer) -> None:
    """f′ = 1 - y²."""
    np.multiply(layer.outputs, layer.outputs, out=layer.outputs)
    np.subtract(1.0, layer.outputs, out=layer.outputs)
    layer.deltas *= layer.outputs


# Activations by torch: y of `z`; then ∂L/∂y in `delta` becomes δ, by the operators that autograd calls. ---------------

_ATEN = torch.ops.aten


def _tanh_of_torch(layer: _WideLayer) -> None:
    """f′ = 1 - y²."""
    _ATEN.tanh_backward.grad_input(layer.delta, layer.y, grad_input=layer.delta)


def _relu_of_torch(layer: _NarrowLayer | _WideLayer) -> None:
    """f′ = 1 where y > 0, else 0."""
    _ATEN.threshold_backward.grad_input(layer.delta, layer.y, 0, grad_input=layer.delta)


def _swish_of_torch(layer: _NarrowLayer | _WideLayer) -> None:
    """f′ = σ(z)·(1 + z·(1 - σ(z)))."""
    _ATEN.silu_backward.grad_input(layer.delta, layer.z, grad_input=layer.delta)


def _elu_of_torch(layer: _NarrowLayer | _WideLayer) -> None:
    """f′ = 1 where y > 0, else y + 1."""
    _ATEN.elu_backward.grad_input(layer.delta, 1.0, 1.0, 1.0, True, layer.y, grad_input=layer.delta)


_OF_TORCH: dict[str, tuple[Callable[..., Any], Callable[[_WideLayer], None], bool]] = {
    "tanh": (write_tanh, _tanh_of_torch, False),
    "relu": (_ATEN.relu.out, _relu_of_torch, False),
    "swish": (_ATEN.silu.out, _swish_of_torch, True),
    "elu": (_ATEN.elu.out, _elu_of_torch, False),
}
"""f, its backward pass, and whether that needs z; y takes z's place where not, as memory is what large layers wait for.
"""

_OF_NUMPY: dict[str, tuple[Callable[[_NarrowLayer], object], Callable[[_NarrowLayer], None], bool]] = {
    "tanh": (_tanh, _tanh_backward, False),
    # NumPy would take two to five passes for each.
    "relu": (lambda layer: _ATEN.relu.out(layer.z, out=layer.y), _relu_of_torch, False),
    "swish": (lambda layer: _ATEN.silu.out(layer.z, out=layer.y), _swish_of_torch, True),
    "elu": (lambda layer: _ATEN.elu.out(layer.z, out=layer.y), _elu_of_torch, False),
}
"""Both passes of narrow layers, and whether the second needs z."""
