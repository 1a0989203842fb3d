"""The acting part of a network as ONNX nodes: from the model's inputs to an encoding, and from head outputs to actions.

The body mirrors the network's modules. Actions are in the form that Unity receives, both sampled and deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.messages import Array
from headrace.stages.action_units import ActionUnits
from headrace.stages.errors import StageError
from headrace.stages.loading import load_attribute
from headrace.stages.policy.design import (
    NORMALIZER_INVERSE_STD,
    NORMALIZER_MEAN,
    NORMALIZER_REST,
    PolicyDesign,
    branch_slices,
)
from headrace.stages.policy.network.body import Encoders, HyperLayer, NetworkBody
from headrace.stages.policy.network.custom import CustomNetwork
from headrace.stages.policy.network.images import ImageEncoders, VisualEncoder
from headrace.stages.policy.network.sets import EMBEDDING, HEADS, SetEncoder
from headrace.stages.policy.observations import NORMALIZED_LIMIT, ObservationLayout
from headrace.stages.policy.onnx.contract import FORBIDDEN
from headrace.stages.policy.onnx.graph import Graph
from headrace.stages.policy.onnx.layers import (
    apply,
    array,
    attention,
    layer_norm,
    linear_of_things,
    lstm_step,
    splice_network,
    swish,
)
from headrace.stages.policy.sampling import ACTION_LIMIT, LOG_SIGMA_LIMITS, first_action_features


@dataclass(frozen=True)
class EncodedValues:
    """Encoded observations: the values that a policy computes before it uses its memory."""

    features: str
    """[B, F] all encodings, concatenated."""
    goals: str | None = None
    """[B, G] goals; None if the network has no hypernetwork."""


@dataclass(frozen=True)
class MemoryValues:
    """A memory, split into its parts."""

    h: str
    """[B, m / 2] the LSTM's hidden state."""
    c: str
    """[B, m / 2] the LSTM's cell state."""
    previous_actions: str
    """[B, P] the previous action's features."""


WriteEncoder = Callable[[Graph, Any, Sequence[str], Sequence[tuple[int, ...]], str | None], Sequence[str]]
"""Function that writes the encoder for one kind of observation to ONNX.

Its arguments are the graph, the encoder (`KindEncoder`), the values and shapes of the observations, and the encodings
of the preceding kinds (None if there are none). It returns the values of the encodings.
"""


def encode_observations(
    graph: Graph, design: PolicyDesign, body: NetworkBody, tensors: Mapping[str, Array], inputs: Sequence[str]
) -> EncodedValues:
    """Encode the observations.

    Args:
        graph: the model under construction.
        design: the policy's design.
        body: the body of the policy's network, with the weights.
        tensors: the policy's tensors, including any normaliser's.
        inputs: the value of each observation; images have channels first and range from 0 to 1.

    Raises:
        StageError: if a custom network can't be written to ONNX.
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
    """Compute the encoding [B, E] and the LSTM's new h and c, from encoded observations and a memory."""
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
    if NORMALIZER_REST in tensors:
        centred = graph.node("Sub", centred, graph.constant(tensors[NORMALIZER_REST]))
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
    graph: Graph, encoder: ImageEncoders, images: Sequence[str], shapes: Sequence[tuple[int, ...]], context: str | None
) -> list[str]:
    """Encode images. Pixels already have the form that the encoder's layers expect: from 0 to 1, channels first."""
    return [_image(graph, each, image) for each, image in zip(encoder, images, strict=True)]


def _image(graph: Graph, encoder: nn.Module, image: str) -> str:
    assert isinstance(encoder, VisualEncoder)
    write_layers = load_attribute(encoder.entry.onnx, None, "ONNX writer")
    x = graph.node("Flatten", write_layers(graph, encoder.features, image), axis=1)
    return apply(graph, encoder.activation, apply(graph, encoder.dense, x))


def write_sets(
    graph: Graph, encoder: SetEncoder, sets: Sequence[str], shapes: Sequence[tuple[int, ...]], context: str | None
) -> list[str]:
    """Encode sets, together with the agent's other observations."""
    known = None
    if encoder.own is not None:
        assert context is not None, "its layer takes them"
        known = swish(graph, apply(graph, encoder.own, context))
    things, there = [], []
    for each, embedding in zip(sets, encoder.embeddings, strict=True):
        linear, start = embedding.linear, 0
        assert isinstance(linear, nn.Linear)
        if known is not None:  # the known columns come first, and are the same for all entities in a row
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
    """Return a mask [B, n]: 1 for each of `things` [B, n, width] that is not all zeros, 0 for all others."""
    largest = graph.node("ReduceMax", graph.node("Abs", things), axes=[2], keepdims=0)
    return graph.node("Cast", graph.node("Greater", largest, graph.constant(0.0)), to=1)


def _hyper(graph: Graph, layer: HyperLayer, x: str, goals: str) -> str:
    inputs, outputs = layer.shape
    matrices = apply(graph, layer.matrix, layer_norm(graph, apply(graph, layer.hidden, goals), 1))
    product = graph.node("MatMul", graph.reshape(x, -1, 1, inputs), graph.reshape(matrices, -1, inputs, outputs))
    return graph.add(graph.reshape(product, -1, outputs), array(layer.bias))


_INT64 = 7


def convert_to_units(graph: Graph, actions: str, units: ActionUnits) -> str:
    """Convert continuous actions [B, C] to the environment's units, in float32."""
    if units.identity:
        return actions
    largest = np.finfo(np.float32).max  # in place of infinity, which some runtimes don't support
    low, high = (graph.constant(bound.clip(-largest, largest)) for bound in (units.low, units.high))
    scaled = graph.add(graph.multiply(actions, units.half), units.middle)
    converted = graph.node("Max", graph.node("Min", scaled, high), low)
    return _mixed(graph, _rounded(graph, converted), converted, units.whole) if units.whole.any() else converted


def _rounded(graph: Graph, x: str) -> str:
    """Round half to even as NumPy does; `Round` is not in all operator sets."""
    up, down = graph.node("Floor", graph.add(x, 0.5)), graph.node("Ceil", graph.add(x, -0.5))
    odd = graph.node("Sub", up, graph.multiply(graph.node("Floor", graph.multiply(up, 0.5)), 2.0))
    return graph.node("Sub", up, graph.node("Mul", graph.node("Sub", up, down), odd))


def _mixed(graph: Graph, x: str, y: str, of_x: NDArray[np.bool_]) -> str:
    """Return the columns of `x` where `of_x` [columns] is true, and those of `y` elsewhere."""
    return graph.node("Add", graph.multiply(x, of_x), graph.multiply(y, ~of_x))


@dataclass(frozen=True)
class ActionValues:
    """Actions in the form of `ActionBatch`."""

    continuous: str | None
    """[B, C] continuous actions; None if there are none."""
    discrete: tuple[str, ...]
    """[B, 1] int64 choices for each branch."""


class ActionHeads:
    """Writes the computation of one design's actions from its head outputs.

    Args:
        graph: the model under construction.
        design: the policy's design.
        log_sigma: [C] log σ of a Gaussian that is not squashed. gSDE does not use it.
        masks: the input with the masks [B, choices], 1 = allowed; None without discrete actions, or if no choice is
            made.
    """

    def __init__(self, graph: Graph, design: PolicyDesign, log_sigma: Tensor | None, masks: str | None) -> None:
        self._graph = graph
        self._design = design
        self._sigma = None if log_sigma is None else np.exp(array(log_sigma))
        self._draws = design.gsde is None
        """Whether continuous actions can be sampled. With gSDE they are always the means, because a model can't keep
        the noise matrix."""
        self._branches = branch_slices(design.spec)
        choices = design.spec.actions.mask_size
        self._masks: list[tuple[str, str]] = []
        for branch in self._branches:
            if masks is None:
                break
            allowed = graph.columns(masks, branch.start, branch.stop, choices)
            self._masks.append((allowed, graph.add(graph.multiply(allowed, FORBIDDEN), -FORBIDDEN)))

    def act(self, heads: str, deterministic: bool) -> ActionValues:
        """Compute actions from head outputs [B, H]: either sampled, or the mean and the most likely choice."""
        deterministic = deterministic or self._design.greedy
        return ActionValues(
            self._continuous(heads, deterministic) if self._design.spec.actions.continuous_size else None,
            tuple(self._choice(heads, index, deterministic) for index in range(len(self._branches))),
        )

    def means(self, heads: str) -> str:
        """Return the continuous actions [B, C] of a deterministic policy."""
        return self._continuous(heads, deterministic=True)

    def logits(self, heads: str, index: int) -> str:
        """Return a branch's logits [B, choices], before masking."""
        branch = self._branches[index]
        first = self._design.output_size - self._design.spec.actions.mask_size
        return self._head(heads, first + branch.start, first + branch.stop)

    def features(self, acted: ActionValues) -> str:
        """Return [B, P]: the actions' `action_features`, minus `first_action_features`.

        Unity starts an episode with zeros, which therefore represent `first_action_features`.
        """
        graph, spec = self._graph, self._design.spec.actions
        parts = [acted.continuous] if acted.continuous is not None else []
        for size, choice in zip(spec.discrete_branches, acted.discrete, strict=True):
            one_hots: NDArray[np.float32] = np.eye(size, dtype=np.float32)
            chosen = graph.node("Gather", graph.constant(one_hots - one_hots[0]), choice, axis=0)
            parts.append(graph.reshape(chosen, -1, size))
        return graph.beside(parts)

    def before(self, features: str) -> str:
        """Invert `features`: return the previous action as the network's input."""
        return self._graph.add(features, first_action_features(self._design.spec.actions))

    def _head(self, heads: str, start: int, stop: int) -> str:
        return self._graph.columns(heads, start, stop, self._design.output_size)

    def _continuous(self, heads: str, deterministic: bool) -> str:
        graph, size = self._graph, self._design.spec.actions.continuous_size
        drawn = self._head(heads, 0, size)
        if limit := self._design.mean_limit:
            drawn = graph.clip(drawn, -limit, limit)
        if self._draws and not deterministic:
            noise = graph.node("RandomNormalLike", drawn, dtype=1, mean=0.0, scale=1.0)
            if self._sigma is not None:
                noise = graph.multiply(noise, self._sigma)
            else:
                log_sigma = graph.clip(self._head(heads, size, 2 * size), *LOG_SIGMA_LIMITS)
                noise = graph.node("Mul", noise, graph.node("Exp", log_sigma))
            drawn = graph.node("Add", drawn, noise)
        if self._design.squashed:
            return graph.node("Tanh", drawn)
        return self._for_environment(drawn)

    def _for_environment(self, drawn: str) -> str:
        """Convert actions of an unsquashed Gaussian to the environment's form; see `environment_actions`."""
        graph, spec = self._graph, self._design.spec.actions
        limit = graph.constant(np.float32(ACTION_LIMIT))
        clipped = graph.node("Div", graph.clip(drawn, -ACTION_LIMIT, ACTION_LIMIT), limit)
        if not spec.unbounded:
            return clipped
        raw = np.zeros(spec.continuous_size, np.bool_)
        raw[list(spec.unbounded)] = True
        return _mixed(graph, clipped, drawn, ~raw)

    def _choice(self, heads: str, index: int, deterministic: bool) -> str:
        graph, logits = self._graph, self.logits(heads, index)
        allowed, penalty = self._masks[index]
        logits = graph.node("Add", graph.node("Mul", logits, allowed), penalty)
        if deterministic:
            return graph.node("ArgMax", logits, axis=1, keepdims=1)
        # Multinomial takes log-probabilities, and some runtimes require the probabilities to sum to 1.
        log_probs = graph.node("LogSoftmax", logits, axis=1)
        return graph.node("Multinomial", log_probs, sample_size=1, dtype=_INT64)
