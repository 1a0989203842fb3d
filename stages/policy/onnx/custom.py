"""A network of the user's own as ONNX nodes: written by torch's exporter, then spliced into ours.

Everything else is written without it. It needs the `onnx` package, and does not know all layers: this is best effort.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headrace.queues.specs import ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.onnx.graph import BATCH, Graph
from headrace.stages.policy.onnx.messages import ATTRIBUTE_GRAPH, ModelProto

_ROWS = 2
"""Rows of the trial: more than one, so that the axis of rows is not taken for one of size 1."""


class _OfOne(nn.Module):
    """The user's module, with its observations as separate arguments, as the exporter wants them."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *observations: Tensor) -> Any:
        return self.network(observations)


def splice_network(
    graph: Graph, network: nn.Module, specs: Sequence[ObservationSpec], observations: Sequence[str]
) -> str:
    """Write a user's network: from observations to its encoding [B, encoding_size].

    Args:
        graph: the model under construction.
        network: the user's module, with its weights.
        specs: of the observations.
        observations: their values in the graph, as the module's inputs.

    Raises:
        StageError: if torch can't write it, or writes what can't be spliced; the message says why.
    """
    names = [f"observation_{index}" for index in range(len(specs))]
    written = ModelProto.FromString(_exported(network, specs, names, graph.opset)).graph
    renamed = dict(zip(names, observations, strict=True))

    def rename(name: str) -> str:
        if name and name not in renamed:  # an empty name stands for an input that is left out
            renamed[name] = graph.name("network")
        return renamed.get(name, "")

    for tensor in written.initializer:
        tensor.name = rename(tensor.name)
        graph.keep(tensor)
    for node in written.node:
        if any(attribute.type == ATTRIBUTE_GRAPH for attribute in node.attribute) or node.domain:
            raise StageError(f"network_settings.network uses {node.op_type}, which can't be part of an ONNX model here")
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
            warnings.simplefilter("ignore")  # it warns about itself, and about each size that it takes for constant
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
