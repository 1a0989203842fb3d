"""Export of single layers, with their current weights, and of custom networks as ONNX nodes.

Torch's exporter writes a custom network, whose nodes are then spliced into the graph. The exporter needs the `onnx`
package and does not support all layers, so this part is best effort. Everything else works without the exporter.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.queues.specs import ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.network.images import Residual
from headrace.stages.policy.onnx.graph import ATTRIBUTE_GRAPH, BATCH, Graph, ModelProto

_LAYER_NORM_EPSILON = 1e-5


def array(tensor: Tensor) -> NDArray[np.float32]:
    """Return a tensor's values as an array."""
    numbers: NDArray[np.float32] = tensor.detach().cpu().numpy()
    return numbers


def apply(graph: Graph, module: nn.Module, x: str) -> str:
    """Apply a layer, or a sequence of layers, to `x`.

    Raises:
        StageError: if no Headrace network uses this kind of layer.
    """
    match module:
        case nn.Sequential():
            for layer in module:
                x = apply(graph, layer, x)
            return x
        case nn.Linear():
            return graph.node(
                "Gemm", x, graph.constant(array(module.weight)), graph.constant(array(module.bias)), transB=1
            )
        case nn.Conv2d():
            return _convolution(graph, module, x)
        case nn.MaxPool2d():
            side, stride = int(module.kernel_size), int(module.stride)  # type: ignore[arg-type]  # ours are square
            return graph.node("MaxPool", x, kernel_shape=[side, side], strides=[stride, stride])
        case Residual():
            return graph.node("Add", x, apply(graph, module.layers, x))
        case nn.SiLU():
            return swish(graph, x)
        case nn.GELU():  # has no operator before version 20
            doubled = graph.add(graph.node("Erf", graph.multiply(x, sqrt(0.5))), 1.0)
            return graph.node("Mul", graph.multiply(x, 0.5), doubled)
        case nn.Tanh():
            return graph.node("Tanh", x)
        case nn.ReLU():
            return graph.node("Relu", x)
        case nn.ELU():
            return graph.node("Elu", x, alpha=float(module.alpha))
        case nn.LeakyReLU():
            return graph.node("LeakyRelu", x, alpha=float(module.negative_slope))
    raise StageError(f"a layer of kind {type(module).__name__} can't be written to ONNX")


def swish(graph: Graph, x: str) -> str:
    """Return x·sigmoid(x)."""
    return graph.node("Mul", x, graph.node("Sigmoid", x))


def linear_of_things(graph: Graph, weight: Tensor, bias: Tensor | None, x: str) -> str:
    """Apply a linear layer over the last axis of `x` [B, n, W]."""
    x = graph.node("MatMul", x, graph.constant(array(weight).T))
    return x if bias is None else graph.add(x, array(bias))


def layer_norm(graph: Graph, x: str, axis: int) -> str:
    """Normalise to zero mean and unit variance over the last axis, which has the index `axis`."""
    centred = graph.node("Sub", x, graph.node("ReduceMean", x, axes=[axis], keepdims=1))
    variance = graph.node("ReduceMean", graph.node("Mul", centred, centred), axes=[axis], keepdims=1)
    return graph.node("Div", centred, graph.node("Sqrt", graph.add(variance, _LAYER_NORM_EPSILON)))


def lstm_step(graph: Graph, lstm: nn.LSTM, x: str, h: str, c: str) -> tuple[str, str]:
    """Run one LSTM step on a batch; return the new output and cell [B, size].

    Basic operations are used so that the result does not depend on a runtime's conventions for sequences and layouts.
    """
    size = lstm.hidden_size
    weights = [graph.constant(array(getattr(lstm, name))) for name in ("weight_ih_l0", "bias_ih_l0")]
    of_memory = [graph.constant(array(getattr(lstm, name))) for name in ("weight_hh_l0", "bias_hh_l0")]
    gates = graph.node("Add", graph.node("Gemm", x, *weights, transB=1), graph.node("Gemm", h, *of_memory, transB=1))
    parts = [graph.columns(gates, i * size, (i + 1) * size, 4 * size) for i in range(4)]
    let_in, forget, let_out = (graph.node("Sigmoid", parts[i]) for i in (0, 1, 3))
    new = graph.node("Mul", let_in, graph.node("Tanh", parts[2]))
    cell = graph.node("Add", graph.node("Mul", forget, c), new)
    return graph.node("Mul", let_out, graph.node("Tanh", cell)), cell


def attention(graph: Graph, x: str, there: str, things: int, layers: tuple[nn.Linear, ...], heads: int) -> str:
    """Write `headrace.stages.policy.network.sets.residual_attention` for `x` [B, things, W]; return [B, W].

    Args:
        graph: the model under construction.
        x: [B, things, W] embedded entities.
        there: [B, things] 1 for entities present, 0 for all others.
        things: the number of rows for entities.
        layers: the linear layers query, key, value and out.
        heads: the number of attention heads.
    """
    query, key, value, out = layers
    width = out.in_features
    x = layer_norm(graph, x, 2)

    def by_heads(layer: nn.Linear, *axes: int) -> str:
        projected = graph.reshape(
            linear_of_things(graph, layer.weight, layer.bias, x), -1, things, heads, width // heads
        )
        return graph.node("Transpose", projected, perm=axes)

    scores = graph.node("MatMul", by_heads(query, 0, 2, 1, 3), by_heads(key, 0, 2, 3, 1))
    never = graph.add(graph.multiply(graph.reshape(there, -1, 1, 1, things), 1e8), -1e8)
    weights = graph.node("Softmax", graph.node("Add", graph.multiply(scores, 1 / sqrt(width)), never), axis=3)
    gathered = graph.node("Transpose", graph.node("MatMul", weights, by_heads(value, 0, 2, 1, 3)), perm=[0, 2, 1, 3])
    found = linear_of_things(graph, out.weight, out.bias, graph.reshape(gathered, -1, things, width))
    x = layer_norm(graph, graph.node("Add", x, found), 2)
    total = graph.reshape(graph.node("MatMul", graph.reshape(there, -1, 1, things), x), -1, width)
    count = graph.clip(graph.node("MatMul", there, graph.constant(np.ones((things, 1)))), 1.0, float(things))
    return graph.node("Div", total, count)


def _convolution(graph: Graph, module: nn.Conv2d, x: str) -> str:
    assert module.bias is not None, "our convolutions have one"
    vertical, horizontal = (int(side) for side in module.padding)
    return graph.node(
        "Conv",
        x,
        graph.constant(array(module.weight)),
        graph.constant(array(module.bias)),
        kernel_shape=list(module.kernel_size),
        strides=list(module.stride),
        pads=[vertical, horizontal, vertical, horizontal],
        dilations=list(module.dilation),
        group=module.groups,
    )


_ROWS = 2
"""Number of rows in the trial run. With a single row, the exporter would fix the batch axis at size 1."""


class _OfOne(nn.Module):
    """Wraps the user's module so that each observation is a separate argument, as the exporter requires."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *observations: Tensor) -> Any:
        return self.network(observations)


def splice_network(
    graph: Graph, network: nn.Module, specs: Sequence[ObservationSpec], observations: Sequence[str]
) -> str:
    """Write a custom network; return its encoding [B, encoding_size].

    Args:
        graph: the model under construction.
        network: the user's module, with its weights.
        specs: the specs of the observations.
        observations: the observations' values in the graph, as the module expects them.

    Raises:
        StageError: if torch can't write the network, or its nodes can't be spliced; the message says why.
    """
    names = [f"observation_{index}" for index in range(len(specs))]
    written = ModelProto.FromString(_exported(network, specs, names, graph.opset)).graph
    renamed = dict(zip(names, observations, strict=True))

    def rename(name: str) -> str:
        if name and name not in renamed:  # an empty name stands for an omitted input
            renamed[name] = graph.name("network")
        return renamed.get(name, "")

    for tensor in written.initializer:
        tensor.name = rename(tensor.name)
        graph.keep(tensor)
    for node in written.node:
        if any(attribute.type == ATTRIBUTE_GRAPH for attribute in node.attribute) or node.domain:
            raise StageError(
                f"network_settings.network uses {node.op_type}, which Headrace can't write to an ONNX model"
            )
        node.name = graph.name("network")
        node.input[:] = [rename(name) for name in node.input]
        node.output[:] = [rename(name) for name in node.output]
    graph.splice(written.node)
    return rename(written.output[0].name)


def _exported(network: nn.Module, specs: Sequence[ObservationSpec], names: list[str], opset: int) -> bytes:
    examples = tuple(torch.zeros(_ROWS, *(spec.shape or (1,))) for spec in specs)
    file = io.BytesIO()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the exporter warns about itself, and about each size it makes constant
            torch.onnx.export(
                _OfOne(network).eval(),
                examples,
                file,  # type: ignore[arg-type]  # this exporter writes into any file
                input_names=names,
                output_names=["encoding"],
                dynamic_axes={name: {0: BATCH} for name in [*names, "encoding"]},
                opset_version=opset,
                dynamo=False,
            )
    except Exception as error:
        text = " ".join(str(error).split())
        raise StageError(
            f"network_settings.network can't be written to ONNX (operator set {opset}): {type(error).__name__}: {text}"
        ) from error
    return file.getvalue()
