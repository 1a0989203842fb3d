"""A whole perceptron as one step of autograd: the same numbers as those of `NetworkBody` and a head, faster.

Off-policy learning makes an update every step or so, and each update runs networks seven times. For plain designs that
is matrix products and their overhead: graphs of small operations, copies of biases, new memory for each result. Here a
pass keeps its results in reused buffers, gradients of weights are added in place to the vector of `FlatParameters`, and
products with the few columns of an observation are transposed if that is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.body import NetworkBody
from headrace.stages.policy.network.layers import SLOPE_OF_INPUT, TIMES_SLOPE, WRITE_ACTIVATION
from headrace.stages.policy.network.products import HiddenProducts

FEW = 32
"""Columns up to which the transposed product is faster: five times at 4, and never slower."""


class Perceptron:
    """The hidden layers of a body, and a head, whose parameters a `FlatParameters` has taken over.

    One pass of each kind, frozen or not, can be pending at a time: the next one overwrites the buffers that its
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
        products = HiddenProducts(design.products)
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
        self._forward, self._backward = WRITE_ACTIVATION[activation], TIMES_SLOPE[activation]
        self._products = products
        self._keeps_z = activation in SLOPE_OF_INPUT
        self._learns = not frozen
        self._x = torch.empty(0)
        self._zs: list[Tensor] = []
        self._results: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, out], a new tensor."""
        if not self._results or len(self._results[0]) != len(x):
            self._make_buffers(x)
        self._x = x
        for weight, bias, z, result in zip(self._weights[:-1], self._biases[:-1], self._zs, self._results, strict=True):
            self._products.layer(bias, x, weight, z)
            self._forward(z, result)
            x = result
        return torch.addmm(self._biases[-1], x, self._weights[-1].t())

    def backward(self, gradient: Tensor, to_inputs: bool) -> Tensor | None:
        """Add up the gradients of the parameters; return the gradient of the inputs if `to_inputs`."""
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
                kept = self._zs[layer - 1] if self._keeps_z else below
                gradient = self._below(gradient, layer, kept)
        return self._first(gradient) if to_inputs else None

    def _to_inputs(self, gradient: Tensor) -> Tensor:
        rows = _some_rows(gradient) if gradient.device.type == "cpu" else None
        if rows is not None:
            gradient = gradient[rows]
        for layer in reversed(range(1, len(self._weights))):
            kept = (self._zs if self._keeps_z else self._results)[layer - 1]
            gradient = self._below(gradient, layer, kept if rows is None else kept[rows])
        found = self._first(gradient)
        return found if rows is None else torch.zeros_like(self._x).index_copy_(0, rows, found)

    def _below(self, gradient: Tensor, layer: int, kept: Tensor) -> Tensor:
        """The gradient [n, hidden] of the input of the activation below a layer; a new tensor."""
        below = self._products.below(gradient, self._weights[layer])
        self._backward(below, kept)
        return below

    def _first(self, gradient: Tensor) -> Tensor:
        """The gradient of the inputs, from the gradient of the first layer's outputs."""
        return (self._weights[0].t() @ gradient.t()).t()

    def _make_buffers(self, x: Tensor) -> None:
        shapes = [(len(x), weight.shape[0]) for weight in self._weights[:-1]]

        def buffers() -> list[Tensor]:
            return [torch.empty(shape, dtype=x.dtype, device=x.device) for shape in shapes]

        self._results = buffers()
        # Only swish needs its input in the backward pass; the others may overwrite it.
        self._zs = buffers() if self._keeps_z else self._results


def _some_rows(gradient: Tensor) -> Tensor | None:
    """The rows of a gradient that are not all 0; None if all rows are such.

    If only the smaller output of two networks counts, each has gradients for some of the rows: on a CPU only these are
    computed, as reading the gradient there does not wait for a device.
    """
    rows = gradient.count_nonzero(dim=1).nonzero().squeeze(1)
    return None if len(rows) == len(gradient) else rows


class _Node(torch.autograd.Function):
    """A pass, as an autograd function. Parameters are among its inputs because they require gradients."""

    @staticmethod
    def forward(ctx: Any, way: _Pass, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.way, ctx.count = way, len(parameters)
        return way.forward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        below = ctx.way.backward(gradients[0], ctx.needs_input_grad[1])
        return (None, below, *(None for _ in range(ctx.count)))  # the parameters' gradients were added in place


# The same without autograd; the equations are in `gradients`. Axis letters: R rows, U units of a layer, V inputs of a
# layer, K outputs. Outputs have their rows last.

Numbers = NDArray[np.floating[Any]]
"""The networks' own precision."""


class HandPerceptron:
    """Linear layers with an activation after each but the last, on the CPU.

    Args:
        layers: `FlatParameters` has taken over their parameters.
        activation: the activation's name.
        products: multiplies wide layers.
    """

    def __init__(self, layers: Sequence[nn.Linear], activation: str, products: HiddenProducts) -> None:
        *hidden, head = layers
        self.hidden = [_Layer(layer, products) for layer in hidden]
        self.inputs = hidden[0].weight.detach()
        """[U, V] the first layer's weights."""
        parameters = head.weight, head.bias, _gradient(head.weight), _gradient(head.bias)
        self._head, bias, self._of_head, self._of_bias = (each.detach().numpy() for each in parameters)
        self._head_weight, self._bias = head.weight.detach(), bias[:, None]
        self._activate, self._slope = WRITE_ACTIVATION[activation], TIMES_SLOPE[activation]
        self.keeps_z = activation in SLOPE_OF_INPUT
        """Whether the activation's slope is computed from its input, instead of its output."""

    def forward(self, x: Tensor, room: Room) -> Numbers:
        """Outputs [K, R] of rows [R, V]; `room` keeps what the backward pass needs."""
        room.x, rows = x, x.shape[0]
        for layer, zs, ys in zip(self.hidden, room.zs, room.ys, strict=True):
            z, y = zs[:rows], ys[:rows]
            layer.forward(x, z)
            self._activate(z, y)
            x = y
        outputs: Numbers = self._head @ x.numpy().T
        outputs += self._bias
        return outputs

    def back(self, of_outputs: Numbers, room: Room) -> Tensor:
        """Compute the δ of all layers, for `learn`; return the first one's [n, U].

        Args:
            of_outputs: [K, n] the loss's gradient with respect to the outputs of the first n rows.
            room: holds the last forward pass, and receives the δ.
        """
        rows = of_outputs.shape[1]
        deltas = [delta[:rows] for delta in room.deltas]
        # BLAS takes three times as long for the product of a column and a row.
        multiply = torch.mul if len(of_outputs) == 1 else torch.mm
        multiply(torch.from_numpy(of_outputs).t(), self._head_weight, out=deltas[-1])
        kept = room.zs if self.keeps_z else room.ys
        for at in range(len(deltas) - 1, -1, -1):
            self._slope(deltas[at], kept[at][:rows])
            if at:
                self.hidden[at].back(deltas[at], deltas[at - 1])
        return deltas[0]

    def learn(self, of_outputs: Numbers, room: Room) -> None:
        """Write the parameters' gradients.

        Args:
            of_outputs: [K, r] the loss's gradient with respect to the outputs of the first r rows.
            room: holds the δ of `back`.
        """
        rows = of_outputs.shape[1]
        np.matmul(of_outputs, room.ys[-1][:rows].numpy(), out=self._of_head)
        np.add.reduce(of_outputs, axis=1, out=self._of_bias)
        for layer, x, delta in zip(self.hidden, (room.x, *room.ys), room.deltas, strict=False):
            layer.learn(delta[:rows], x[:rows])


class Room:
    """The buffers of a pass; networks of one shape may use them in turn.

    Args:
        network: one of these networks.
        rows: R, at most.
    """

    def __init__(self, network: HandPerceptron, rows: int) -> None:
        weights = [layer.weight for layer in network.hidden]

        def buffers() -> list[Tensor]:
            return [torch.empty((rows, len(weight)), dtype=weight.dtype) for weight in weights]

        self.x = torch.empty(0)
        self.zs = buffers()
        self.ys = buffers() if network.keeps_z else self.zs
        """Activations overwrite their inputs if these are no longer needed."""
        self.deltas = buffers()

    def keep(self, rows: int, chosen: NDArray[np.intp]) -> None:
        """Drop the rows after the first ones, except the chosen rows, whose ascending numbers count from there."""
        for kept in self.zs:  # δ are computed only at these
            of_layer = kept.numpy()[rows:]
            of_layer[: len(chosen)] = of_layer.take(chosen, axis=0)


class _Layer:
    """One layer: z = x·Wᵀ + b."""

    def __init__(self, layer: nn.Linear, products: HiddenProducts) -> None:
        self.weight, self._bias = layer.weight.detach(), layer.bias.detach()
        self._of_weight, self._of_bias = _gradient(layer.weight), _gradient(layer.bias)
        self._products = products
        if not products.rounds(self.weight):
            products.provider(self.weight)  # chosen by measuring, so before a second thread starts

    def forward(self, x: Tensor, z: Tensor) -> None:
        """Write z [R, U] of rows [R, V]."""
        self._products.layer(self._bias, x, self.weight, z)

    def back(self, delta: Tensor, below: Tensor) -> None:
        """Write the gradient of the inputs, from δ [n, U], to `below` [n, V]."""
        self._products.product(delta, self.weight, below, self.weight)

    def learn(self, delta: Tensor, x: Tensor) -> None:
        """Write the parameters' gradients, from δ [r, U] and inputs [r, V]."""
        torch.sum(delta, 0, out=self._of_bias)
        if x.shape[1] <= FEW:
            # NumPy's product with few columns takes a third of the time.
            np.matmul(delta.numpy().T, x.numpy(), out=self._of_weight.numpy())
        else:
            self._products.product(delta.t(), x, self._of_weight, self.weight)


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None, "`FlatParameters` sets it"
    return parameter.grad
