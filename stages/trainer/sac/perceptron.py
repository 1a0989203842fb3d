"""A whole perceptron as one step of autograd: the same numbers as those of `NetworkBody` and a head, sooner.

Off-policy learning makes an update for each step or so, and seven passes through networks for each update. For plain
designs that is matrix products and their overhead: graphs of small operations, copies of biases, fresh memory for each
result. Here a pass keeps its results in buffers of its own, gradients of weights are added in place to the vector of
`FlatParameters`, and products with the few columns of an observation are transposed where that is quicker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.body import NetworkBody
from headrace.stages.policy.network.layers import write_tanh
from headrace.stages.policy.network.products import HiddenProducts

_aten: Any = torch.ops.aten

FORWARD: dict[str, Callable[[Tensor, Tensor], object]] = {
    "relu": lambda given, result: torch.clamp_min(given, 0, out=result),
    "tanh": write_tanh,
    "elu": lambda given, result: _aten.elu.out(given, out=result),
    "swish": lambda given, result: _aten.silu.out(given, out=result),
}
BACKWARD: dict[str, Callable[[Tensor, Tensor], object]] = {
    "relu": lambda gradient, kept: _aten.threshold_backward.grad_input(gradient, kept, 0, grad_input=gradient),
    "tanh": lambda gradient, kept: _aten.tanh_backward.grad_input(gradient, kept, grad_input=gradient),
    "elu": lambda gradient, kept: _aten.elu_backward.grad_input(
        gradient, 1.0, 1.0, 1.0, True, kept, grad_input=gradient
    ),
    "swish": lambda gradient, kept: _aten.silu_backward.grad_input(gradient, kept, grad_input=gradient),
}
"""Multiply a gradient [B, hidden] by the slope of the activation, at its output; of swish, at its input."""
FEW = 32
"""Columns up to which the transposed product is quicker: five times at 4, and never slower."""


class Perceptron:
    """The hidden layers of a body, and a head, whose parameters a `FlatParameters` has taken over.

    One pass of each kind, frozen or not, can be under way at a time: the next one overwrites the buffers that its
    backward pass reads.

    Args:
        design: a plain design.
        body: the body of that design.
        head: the layer after the body.
    """

    def __init__(self, design: PolicyDesign, body: NetworkBody, head: nn.Linear) -> None:
        layers = [*(layer for layer in body.layers if isinstance(layer, nn.Linear)), head]
        self._parameters = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
        activation = design.settings.activation
        products = HiddenProducts(design.bf16)
        self._learning = _Pass(self._parameters, activation, products, frozen=False)
        self._frozen = _Pass(self._parameters, activation, products, frozen=True)

    def __call__(self, x: Tensor, frozen: bool = False) -> Tensor:
        """Outputs [B, out] of inputs [B, in]; with `frozen`, gradients go to the inputs only."""
        if frozen:
            result: Tensor = _Node.apply(self._frozen, x)  # type: ignore[no-untyped-call]
        else:
            result = _Node.apply(self._learning, x, *self._parameters)  # type: ignore[no-untyped-call]
        return result


class _Pass:
    """A pass through alternating weights [out, in] and biases [out], forward and backward."""

    def __init__(self, parameters: list[Tensor], activation: str, products: HiddenProducts, frozen: bool) -> None:
        self._weights, self._biases = parameters[0::2], parameters[1::2]
        self._forward, self._backward = FORWARD[activation], BACKWARD[activation]
        self._products = products
        self._keeps_given = activation == "swish"
        self._learns = not frozen
        self._x = torch.empty(0)
        self._given: list[Tensor] = []
        self._results: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, out], a new tensor."""
        if not self._results or len(self._results[0]) != len(x):
            self._make_buffers(x)
        self._x = x
        for weight, bias, given, result in zip(
            self._weights[:-1], self._biases[:-1], self._given, self._results, strict=True
        ):
            self._products.layer(bias, x, weight, given)
            self._forward(given, result)
            x = result
        return torch.addmm(self._biases[-1], x, self._weights[-1].t())

    def backward(self, gradient: Tensor, to_inputs: bool) -> Tensor | None:
        """Add up the gradients of the parameters; returns the gradient of the inputs if asked for."""
        if not self._learns:
            return self._to_inputs(gradient) if to_inputs else None
        for layer in reversed(range(len(self._weights))):
            below = self._results[layer - 1] if layer else self._x
            weight, bias = self._weights[layer].grad, self._biases[layer].grad
            assert weight is not None, "`FlatParameters` sets it"
            assert bias is not None
            bias.add_(gradient.sum(dim=0))
            if below.shape[1] <= FEW:
                weight.add_((below.t() @ gradient).t())
            else:
                self._products.add_gradient(weight, gradient, below)
            if layer:
                kept = self._given[layer - 1] if self._keeps_given else below
                gradient = self._below(gradient, layer, kept)
        return self._first(gradient) if to_inputs else None

    def _to_inputs(self, gradient: Tensor) -> Tensor:
        """The gradient of the inputs alone."""
        rows = _some_rows(gradient) if gradient.device.type == "cpu" else None
        if rows is not None:
            gradient = gradient[rows]
        for layer in reversed(range(1, len(self._weights))):
            kept = (self._given if self._keeps_given else self._results)[layer - 1]
            gradient = self._below(gradient, layer, kept if rows is None else kept[rows])
        found = self._first(gradient)
        return found if rows is None else torch.zeros_like(self._x).index_copy_(0, rows, found)

    def _below(self, gradient: Tensor, layer: int, kept: Tensor) -> Tensor:
        """The gradient [n, hidden] of the input of the activation below a layer; a new tensor."""
        below = self._products.below(gradient, self._weights[layer])
        self._backward(below, kept)
        return below

    def _first(self, gradient: Tensor) -> Tensor:
        """The gradient of the inputs, made of that of the first layer's outputs."""
        return (self._weights[0].t() @ gradient.t()).t()

    def _make_buffers(self, x: Tensor) -> None:
        shapes = [(len(x), weight.shape[0]) for weight in self._weights[:-1]]

        def buffers() -> list[Tensor]:
            return [torch.empty(shape, dtype=x.dtype, device=x.device) for shape in shapes]

        self._results = buffers()
        # Only swish needs its input in the backward pass; the others may overwrite it.
        self._given = buffers() if self._keeps_given else self._results


def _some_rows(gradient: Tensor) -> Tensor | None:
    """The rows of a gradient that are not all 0; None if all of them.

    Where the smaller output of two networks counts, each has gradients for some of the rows alone: on a CPU only these
    are computed, as looking at the gradient costs no wait there.
    """
    rows = gradient.count_nonzero(dim=1).nonzero().squeeze(1)
    return None if len(rows) == len(gradient) else rows


class _Node(torch.autograd.Function):
    """A pass as autograd sees it. Parameters are among its inputs because they require gradients."""

    @staticmethod
    def forward(ctx: Any, way: _Pass, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.way, ctx.count = way, len(parameters)
        return way.forward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        below = ctx.way.backward(gradients[0], ctx.needs_input_grad[1])
        return (None, below, *(None for _ in range(ctx.count)))  # the parameters' were added where they belong
