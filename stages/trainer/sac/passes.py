"""A perceptron's forward and backward pass without autograd; the equations are in `by_hand`.

Axis letters: R rows, U units of a layer, V inputs of a layer, K outputs. Outputs have their rows last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.stages.policy.network.products import HiddenProducts
from headrace.stages.trainer.sac.perceptron import BACKWARD, FEW, FORWARD

Numbers = NDArray[np.floating[Any]]
"""Of the networks' own precision."""


class HandPerceptron:
    """Linear layers with an activation behind each but the last, on the CPU.

    Args:
        layers: `FlatParameters` has taken over their parameters.
        activation: its name.
        products: multiplies what is wide.
    """

    def __init__(self, layers: Sequence[nn.Linear], activation: str, products: HiddenProducts) -> None:
        *hidden, head = layers
        self.hidden = [_Layer(layer, products) for layer in hidden]
        self.inputs = hidden[0].weight.detach()
        """[U, V] the first layer's weights."""
        parameters = head.weight, head.bias, _gradient(head.weight), _gradient(head.bias)
        self._head, bias, self._of_head, self._of_bias = (each.detach().numpy() for each in parameters)
        self._head_weight, self._bias = head.weight.detach(), bias[:, None]
        self._activate, self._slope = FORWARD[activation], BACKWARD[activation]
        self.keeps_z = activation == "swish"
        """Whether the activation's slope is found at what goes into it, instead of at what comes out."""

    def forward(self, x: Tensor, room: Room) -> Numbers:
        """Outputs [K, R] of rows [R, V]; what the backward pass needs stays in the room."""
        room.x, rows = x, len(x)
        for layer, zs, ys in zip(self.hidden, room.zs, room.ys, strict=True):
            z, y = zs[:rows], ys[:rows]
            layer.forward(x, z)
            self._activate(z, y)
            x = y
        outputs: Numbers = self._head @ x.numpy().T
        outputs += self._bias
        return outputs

    def backward(self, of_outputs: Numbers, room: Room, learned: int) -> Tensor:
        """Write the parameters' gradients; returns the first layer's δ [n, U].

        Args:
            of_outputs: [K, n] the loss's gradient by the outputs of the first n rows.
            room: has the last forward pass.
            learned: the first rows, that the parameters' gradients are of.
        """
        own, delta = of_outputs[:, :learned], room.deltas[-1]
        np.matmul(own, room.ys[-1][:learned].numpy(), out=self._of_head)
        np.add.reduce(own, axis=1, out=self._of_bias)
        # A product of a column and a row takes BLAS three times as long.
        multiply = torch.mul if len(of_outputs) == 1 else torch.mm
        multiply(torch.from_numpy(of_outputs).t(), self._head_weight, out=delta)
        kept = room.zs if self.keeps_z else room.ys
        for at in range(len(self.hidden) - 1, -1, -1):
            self._slope(room.deltas[at], kept[at][: len(delta)])
            x, below = (room.ys[at - 1], room.deltas[at - 1]) if at else (room.x, None)
            self.hidden[at].backward(room.deltas[at], x[:learned], below)
        return room.deltas[0]


class Room:
    """The buffers of a pass; networks of one shape may use them in turn.

    Args:
        network: one of these networks.
        rows: R, at most.
        judged: n, those of them that have a backward pass.
        beside: another room of theirs, as large, with which it shares what is needed within a pass alone: what fits
            into the processor's cache is faster.
    """

    def __init__(self, network: HandPerceptron, rows: int, judged: int, beside: Room | None = None) -> None:
        weights = [layer.weight for layer in network.hidden]

        def buffers(rows: int) -> list[Tensor]:
            return [torch.empty((rows, len(weight)), dtype=weight.dtype) for weight in weights]

        self.x = torch.empty(0)
        self.zs = buffers(rows)
        self.ys = buffers(rows) if network.keeps_z else self.zs
        """Activations take the place of what goes into them where that is not needed any more."""
        self.deltas: list[Tensor] = buffers(judged) if beside is None else beside.deltas


class _Layer:
    """One layer: z = x·Wᵀ + b."""

    def __init__(self, layer: nn.Linear, products: HiddenProducts) -> None:
        self.weight, self._bias = layer.weight.detach(), layer.bias.detach()
        self._of_weight, self._of_bias = _gradient(layer.weight), _gradient(layer.bias)
        self._products = products
        self._multiply = products.product if products.rounds(self.weight) else _exact

    def forward(self, x: Tensor, z: Tensor) -> None:
        """Write z [R, U] of rows [R, V]."""
        self._products.layer(self._bias, x, self.weight, z)

    def backward(self, delta: Tensor, x: Tensor, below: Tensor | None) -> None:
        """Write the parameters' gradients, and that of the inputs to `below`.

        Args:
            delta: [n, U]
            x: [r, V] the first of these rows, that parameters learn from.
            below: [n, V]; None where it is not asked for.
        """
        learned = delta[: len(x)]
        torch.sum(learned, 0, out=self._of_bias)
        if x.shape[1] <= FEW:
            # NumPy's product of few columns takes a third of the time.
            np.matmul(learned.numpy().T, x.numpy(), out=self._of_weight.numpy())
        else:
            self._multiply(learned.t(), x, self._of_weight)
        if below is not None:
            self._multiply(delta, self.weight, below)


def _exact(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.mm(a, b, out=out)


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None, "`FlatParameters` sets it"
    return parameter.grad
