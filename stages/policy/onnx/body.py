"""The body of a policy as ONNX nodes: from the model's inputs to an encoding, by the network's own modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.messages import Array
from headrace.stages.errors import StageError
from headrace.stages.loading import load_attribute
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.layout import NORMALIZER_INVERSE_STD, NORMALIZER_MEAN
from headrace.stages.policy.network.body import HyperLayer, NetworkBody
from headrace.stages.policy.network.custom import CustomNetwork
from headrace.stages.policy.network.encoding import Encoders
from headrace.stages.policy.network.images import ImageEncoders, VisualEncoder
from headrace.stages.policy.network.sets import EMBEDDING, HEADS, SetEncoder
from headrace.stages.policy.normalizer import NORMALIZED_LIMIT
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.policy.onnx.custom import splice_network
from headrace.stages.policy.onnx.graph import Graph
from headrace.stages.policy.onnx.layers import apply, array, attention, layer_norm, linear_of_things, lstm_step, swish


@dataclass(frozen=True)
class EncodedValues:
    """Observations, encoded: what a policy computes before it uses its memory."""

    features: str
    """[B, F]"""
    goals: str | None = None
    """[B, G] where a hypernetwork takes them."""


@dataclass(frozen=True)
class MemoryValues:
    """A memory, in its parts."""

    h: str
    """[B, m / 2]"""
    c: str
    """[B, m / 2]"""
    previous_actions: str
    """[B, P]"""


WriteEncoder = Callable[[Graph, Any, Sequence[str], Sequence[tuple[int, ...]], str | None], Sequence[str]]
"""Writes the encoder of one kind of observations to ONNX.

Gets the graph, the encoder (`KindEncoder`), the values and shapes of its observations, and the encodings of the kinds
before (None for nothing); gives the values of the encodings."""


def encode_observations(
    graph: Graph, design: PolicyDesign, body: NetworkBody, tensors: Mapping[str, Array], inputs: Sequence[str]
) -> EncodedValues:
    """Encode the observations.

    Args:
        graph: the model under construction.
        design: of the policy.
        body: of its network, with the weights.
        tensors: of the policy, the normaliser's included where there is one.
        inputs: the value of each observation: images with the channels first, from 0 to 1.

    Raises:
        StageError: if a network of the user's own can't be written to ONNX.
    """
    specs, layout, inputs = design.spec.observations, ObservationLayout(design.spec), [*inputs]
    vectors = None
    if layout.vectors:
        vectors = _normalized(graph, graph.beside([inputs[index] for index, _ in layout.vectors]), tensors)
    if isinstance(body.encoders, CustomNetwork):
        columns = dict(layout.vectors)
        for index, spec in enumerate(specs):
            if index in columns:
                assert vectors is not None, "there are columns of it"
                part = columns[index]
                inputs[index] = graph.columns(vectors, part.start, part.stop, layout.vector_size)
            elif spec.channels_last:
                inputs[index] = graph.node("Transpose", inputs[index], perm=[0, 2, 3, 1])
        return EncodedValues(splice_network(graph, body.encoders.network, specs, inputs))
    return _encode(graph, design, body.encoders, layout, vectors, inputs)


def compute_encoding(
    graph: Graph, design: PolicyDesign, body: NetworkBody, seen: EncodedValues, remembered: MemoryValues | None
) -> tuple[str, str | None, str | None]:
    """From encoded observations and a memory to the encoding [B, E], and the LSTM's h and c after it."""
    x = seen.features
    if remembered is not None:
        x = graph.beside([x, remembered.previous_actions])
    x = apply(graph, body.layers, x)
    if body.hyper is not None:
        assert seen.goals is not None, "a hypernetwork has goals"
        x = apply(graph, body.activation, _hyper(graph, body.hyper, x, seen.goals))
    if remembered is None or body.memory is None:
        return x, None, None
    h, c = lstm_step(graph, body.memory.lstm, x, remembered.h, remembered.c)
    return h, h, c


def _normalized(graph: Graph, vectors: str, tensors: Mapping[str, Array]) -> str:
    if NORMALIZER_MEAN not in tensors:
        return vectors
    centred = graph.node("Sub", vectors, graph.constant(tensors[NORMALIZER_MEAN]))
    scaled = graph.multiply(centred, tensors[NORMALIZER_INVERSE_STD])
    return graph.clip(scaled, -NORMALIZED_LIMIT, NORMALIZED_LIMIT)


def _encode(
    graph: Graph,
    design: PolicyDesign,
    encoders: Encoders,
    layout: ObservationLayout,
    vectors: str | None,
    inputs: Sequence[str],
) -> EncodedValues:
    specs = design.spec.observations
    features = vectors
    goals: list[str] = []
    for name, encoder, places in encoders.by_kind:
        indices = [layout.others[at] for at in places]
        written = _writer(name)(
            graph, encoder, [inputs[index] for index in indices], [specs[index].shape for index in indices], features
        )
        goals += [written[number] for number, _ in encoder.goals]
        features = graph.beside([*([features] if features is not None else []), *written])
    assert features is not None, "a layout without observations can't be made"
    if vectors is not None:
        columns = [graph.columns(vectors, part.start, part.stop, layout.vector_size) for part in encoders.goal_vectors]
        goals = [*columns, *goals]
    return EncodedValues(features, graph.beside(goals) if goals else None)


def _writer(name: str) -> WriteEncoder:
    reference = OBSERVATION_KINDS[name].onnx
    if reference is None:
        raise StageError(f"observations of the kind '{name}' can't be written to ONNX")
    writer: WriteEncoder = load_attribute(reference, None, "ONNX writer")
    return writer


def write_images(
    graph: Graph, encoder: ImageEncoders, images: Sequence[str], shapes: Sequence[tuple[int, ...]], beside: str | None
) -> list[str]:
    """Encode images; pixels come as the encoder's layers want them: as numbers from 0 to 1, the channels first."""
    return [_image(graph, each, image) for each, image in zip(encoder, images, strict=True)]


def _image(graph: Graph, encoder: nn.Module, image: str) -> str:
    assert isinstance(encoder, VisualEncoder)
    write_layers = load_attribute(encoder.entry.onnx, None, "ONNX writer")
    x = graph.node("Flatten", write_layers(graph, encoder.features, image), axis=1)
    return apply(graph, encoder.activation, apply(graph, encoder.dense, x))


def write_sets(
    graph: Graph, encoder: SetEncoder, sets: Sequence[str], shapes: Sequence[tuple[int, ...]], beside: str | None
) -> list[str]:
    """Encode sets, beside the agent's other observations."""
    known = None
    if encoder.own is not None:
        assert beside is not None, "its layer takes them"
        known = swish(graph, apply(graph, encoder.own, beside))
    things, there = [], []
    for each, embedding in zip(sets, encoder.embeddings, strict=True):
        linear, start = embedding.linear, 0
        assert isinstance(linear, nn.Linear)
        if known is not None:  # its columns come first, and are the same for all things of a row
            start = EMBEDDING
        x = linear_of_things(graph, linear.weight[:, start:], None if start else linear.bias, each)
        if known is not None:
            shared = graph.node(
                "Gemm",
                known,
                graph.constant(array(linear.weight[:, :start])),
                graph.constant(array(linear.bias)),
                transB=1,
            )
            x = graph.node("Add", x, graph.reshape(shared, -1, 1, EMBEDDING))
        things.append(swish(graph, x))
        there.append(_there(graph, each))
    total = sum(shape[0] for shape in shapes)
    layers = (encoder.query, encoder.key, encoder.value, encoder.out)
    return [attention(graph, graph.beside(things), graph.beside(there), total, layers, HEADS)]


def _there(graph: Graph, things: str) -> str:
    """[B, n] 1 for each of `things` [B, n, width] that is not all zeros, else 0."""
    largest = graph.node("ReduceMax", graph.node("Abs", things), axes=[2], keepdims=0)
    return graph.node("Cast", graph.node("Greater", largest, graph.constant(0.0)), to=1)


def _hyper(graph: Graph, layer: HyperLayer, x: str, goals: str) -> str:
    inputs, outputs = layer.shape
    made = apply(graph, layer.matrix, layer_norm(graph, apply(graph, layer.hidden, goals), 1))
    product = graph.node("MatMul", graph.reshape(x, -1, 1, inputs), graph.reshape(made, -1, inputs, outputs))
    return graph.add(graph.reshape(product, -1, outputs), array(layer.bias))
