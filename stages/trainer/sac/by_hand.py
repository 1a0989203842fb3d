"""A perceptron and its gradients, computed without autograd. The equations are in `gradients`.

Axis letters: R rows, U units of a layer, V inputs of a layer, K outputs. Arrays of outputs have rows last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.stages.policy.network.layers import SLOPE_OF_INPUT, TIMES_SLOPE, WRITE_ACTIVATION
from headrace.stages.policy.network.products import HiddenProducts
from headrace.stages.trainer.sac.networks import FEW

Numbers = NDArray[np.floating[Any]]
"""Arrays with the networks' floating-point precision."""


class HandPerceptron:
    """Linear layers on the CPU, with an activation after each layer except the last.

    Args:
        layers: the layers, whose parameters a `FlatParameters` has taken over.
        activation: the activation's name.
        products: computes the matrix products of wide layers.
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
        """Whether the activation's derivative is computed from the activation's input instead of its output."""

    def forward(self, x: Tensor, room: Room) -> Numbers:
        """Compute outputs [K, R] for rows [R, V]; `room` keeps the results that the backward pass needs."""
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
        """Compute all layers' δ, for use by `learn`; return the first layer's δ [n, U].

        Args:
            of_outputs: [K, n] the loss's gradient with respect to the outputs of the first n rows.
            room: holds the results of the last forward pass, and receives the δ.
        """
        rows = of_outputs.shape[1]
        deltas = [delta[:rows] for delta in room.deltas]
        # BLAS takes three times as long for an outer product.
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
            room: holds the δ that `back` computed.
        """
        rows = of_outputs.shape[1]
        np.matmul(of_outputs, room.ys[-1][:rows].numpy(), out=self._of_head)
        np.add.reduce(of_outputs, axis=1, out=self._of_bias)
        for layer, x, delta in zip(self.hidden, (room.x, *room.ys), room.deltas, strict=False):
            layer.learn(delta[:rows], x[:rows])


class Room:
    """The buffers of a pass. Networks with the same shape may share them, one after another.

    Args:
        network: one of the networks that use the buffers.
        rows: the maximum number of rows, R.
    """

    def __init__(self, network: HandPerceptron, rows: int) -> None:
        weights = [layer.weight for layer in network.hidden]

        def buffers() -> list[Tensor]:
            return [torch.empty((rows, len(weight)), dtype=weight.dtype) for weight in weights]

        self.x = torch.empty(0)
        self.zs = buffers()
        self.ys = buffers() if network.keeps_z else self.zs
        """Outputs of activations, which overwrite the inputs if the inputs are no longer needed."""
        self.deltas = buffers()

    def keep(self, rows: int, chosen: NDArray[np.intp]) -> None:
        """Drop all rows after the first `rows`, except the rows `chosen`.

        These are ascending indices, counted from row `rows`.
        """
        for kept in self.zs:  # δ is computed only at these
            of_layer = kept.numpy()[rows:]
            of_layer[: len(chosen)] = of_layer.take(chosen, axis=0)


class _Layer:
    """One linear layer: z = x·Wᵀ + b."""

    def __init__(self, layer: nn.Linear, products: HiddenProducts) -> None:
        self.weight, self._bias = layer.weight.detach(), layer.bias.detach()
        self._of_weight, self._of_bias = _gradient(layer.weight), _gradient(layer.bias)
        self._products = products
        if not products.rounds(self.weight):
            products.provider(self.weight)  # chosen by measuring, so before a second thread starts

    def forward(self, x: Tensor, z: Tensor) -> None:
        """Write z [R, U] for rows [R, V]."""
        self._products.layer(self._bias, x, self.weight, z)

    def back(self, delta: Tensor, below: Tensor) -> None:
        """Write the gradient of the inputs, computed from δ [n, U], to `below` [n, V]."""
        self._products.product(delta, self.weight, below, self.weight)

    def learn(self, delta: Tensor, x: Tensor) -> None:
        """Write the gradients of the parameters, computed from δ [r, U] and inputs [r, V]."""
        torch.sum(delta, 0, out=self._of_bias)
        if x.shape[1] <= FEW:
            # With few columns, NumPy's matmul takes a third of the time.
            np.matmul(delta.numpy().T, x.numpy(), out=self._of_weight.numpy())
        else:
            self._products.product(delta.t(), x, self._of_weight, self.weight)


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None, "`FlatParameters` sets it"
    return parameter.grad
