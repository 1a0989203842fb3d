"""The acting part of a policy as a torch module that torch's exporter can write: see `model` for the formats.

The exported modules are those of the network, except where a module computes sizes from its input or uses an operation
that Unity's runtimes have trouble with (`Split`, `Expand`, `Where`, shapes computed at run time). Actions are in the
form that Unity receives, both sampled and deterministic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.functional import embedding, layer_norm, linear, silu

from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.messages import Array, Floats
from headrace.queues.specs import ActionSpec
from headrace.stages.action_units import ActionUnits
from headrace.stages.loading import load_attribute
from headrace.stages.policy.design import (
    NORMALIZER_INVERSE_STD,
    NORMALIZER_MEAN,
    NORMALIZER_REST,
    TORCHS_OWN,
    PolicyDesign,
    consecutive_slices,
)
from headrace.stages.policy.network.body import Encoders, HyperLayer, Memory, untrained_actor
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.policy.network.sets import EMBEDDING, HEADS, SetEncoder
from headrace.stages.policy.observations import NORMALIZED_LIMIT, ObservationLayout
from headrace.stages.policy.onnx.contract import FORBIDDEN
from headrace.stages.policy.onnx.export import ExportedModule
from headrace.stages.policy.sampling import ACTION_LIMIT, LOG_SIGMA_LIMITS, first_action_features


@dataclass(frozen=True)
class Encoded:
    """Encoded observations: the values that a policy computes before it uses its memory."""

    features: Tensor
    """[B, F] all encodings, concatenated."""
    goals: Tensor | None
    """[B, G] goals; None if the network has no hypernetwork."""


@dataclass(frozen=True)
class Acted:
    """Actions in the form of `ActionBatch`."""

    continuous: Tensor | None
    """[B, C] continuous actions; None if there are none."""
    discrete: list[Tensor]
    """[B, 1] int64 choices for each branch."""


class ExportedActor(ExportedModule):
    """A policy's network, from a model's inputs to actions.

    Args:
        design: the policy's design.
        tensors: the policy's tensors, including any normaliser's.

    Raises:
        StageError: if the tensors do not fit the design.
        LoadError: if the design names a custom network that can't be loaded.
    """

    def __init__(self, design: PolicyDesign, tensors: Mapping[str, Array]) -> None:
        super().__init__()
        self.design, self.spec = design, design.spec
        self.network = untrained_actor(replace(design, products=TORCHS_OWN))
        self.network.load_acting(tensors)
        self._layout = ObservationLayout(design.spec)
        self._branches = consecutive_slices(design.spec.actions.discrete_branches)
        names = (NORMALIZER_MEAN, NORMALIZER_REST, NORMALIZER_INVERSE_STD)
        self._normalizer = {name: constant(tensors[name]) for name in names if name in tensors}

    def encode(self, observations: Sequence[Tensor]) -> Encoded:
        """Encode observations [B, *shape]; images have channels first and range from 0 to 1."""
        specs, encoders = self.spec.observations, self.network.body.encoders
        shaped = [
            value.permute(0, 2, 3, 1) if spec.channels_last else value
            for spec, value in zip(specs, observations, strict=True)
        ]
        none = observations[0].new_zeros((len(observations[0]), 0))
        vectors = torch.cat([shaped[index] for index, _ in self._layout.vectors] or [none], dim=1)
        inputs = Inputs(self._normalized(vectors), tuple(shaped[index] for index in self._layout.others))
        if isinstance(encoders, Encoders):
            return _encode(encoders, inputs)
        return Encoded(*encoders(inputs))

    def heads(
        self, seen: Encoded, memories: Tensor | None = None, previous: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the action heads [B, H], from encoded observations, memories [B, m] and previous actions [B, P].

        `previous` has the form of `features`.

        Returns:
            The heads, and the memories [B, m] afterwards (None without memory).
        """
        body, x = self.network.body, seen.features
        if previous is not None:
            x = torch.cat([x, previous + constant(first_action_features(self.spec.actions))], dim=1)
        x = body.layers(x)
        if body.hyper is not None:
            assert seen.goals is not None, "a hypernetwork has goals"
            x = body.activation(_hyper(body.hyper, x, seen.goals))
        after = None
        if body.memory is not None and memories is not None:
            x, after = _remember(body.memory, x, memories)
        heads: Tensor = self.network.action(x)
        return heads, after

    def act(self, heads: Tensor, masks: Tensor | None, deterministic: bool) -> Acted:
        """Compute actions from heads: either sampled, or the mean and the most likely choice.

        Args:
            heads: [B, H] the action heads.
            masks: [B, choices] 1 for allowed choices and 0 for all others; None without discrete actions.
            deterministic: whether to take the mean and the most likely choice.
        """
        deterministic = deterministic or self.design.greedy
        continuous = self.continuous(heads, deterministic) if self.spec.actions.continuous_size else None
        discrete = []
        for index, branch in enumerate(self._branches):
            assert masks is not None, "discrete actions have masks"
            allowed = masks[:, branch]
            logits = self.logits(heads, index) * allowed + (allowed * FORBIDDEN - FORBIDDEN)
            discrete.append(logits.argmax(dim=1, keepdim=True) if deterministic else _drawn(logits))
        return Acted(continuous, discrete)

    def logits(self, heads: Tensor, index: int) -> Tensor:
        """Return a branch's logits [B, choices], before masking."""
        branch, first = self._branches[index], self.design.output_size - self.spec.actions.mask_size
        return heads[:, first + branch.start : first + branch.stop]

    def continuous(self, heads: Tensor, deterministic: bool) -> Tensor:
        """Return the continuous actions [B, C], sampled or deterministic.

        With gSDE they are always the means, because a model can't keep the noise matrix.
        """
        size, limit = self.spec.actions.continuous_size, self.design.mean_limit
        drawn = heads[:, :size]
        if limit:
            drawn = drawn.clamp(-limit, limit)
        if self.design.gsde is None and not deterministic:
            common = self.network.log_sigma
            log_sigma = heads[:, size : 2 * size].clamp(*LOG_SIGMA_LIMITS) if common is None else common
            drawn = drawn + torch.randn_like(drawn) * log_sigma.exp()
        return drawn.tanh() if self.design.squashed else _for_environment(drawn, self.spec.actions)

    def features(self, acted: Acted) -> Tensor:
        """Return [B, P]: the actions' `action_features`, minus `first_action_features`.

        Unity starts an episode with zeros, which therefore represent `first_action_features`.
        """
        parts = [] if acted.continuous is None else [acted.continuous]
        for size, choice in zip(self.spec.actions.discrete_branches, acted.discrete, strict=True):
            one_hots: Floats = np.eye(size, dtype=np.float32)
            parts.append(embedding(choice, constant(one_hots - one_hots[0])).reshape(-1, size))
        return torch.cat(parts, dim=1)

    def _normalized(self, vectors: Tensor) -> Tensor:
        if NORMALIZER_MEAN not in self._normalizer:
            return vectors
        centred = vectors - self._normalizer[NORMALIZER_MEAN]
        if NORMALIZER_REST in self._normalizer:
            centred = centred - self._normalizer[NORMALIZER_REST]
        return (centred * self._normalizer[NORMALIZER_INVERSE_STD]).clamp(-NORMALIZED_LIMIT, NORMALIZED_LIMIT)


def constant(numbers: ArrayLike) -> Tensor:
    """Return numbers as a float32 tensor, which becomes a constant of the model."""
    return torch.tensor(np.asarray(numbers, np.float32))


def _encode(encoders: Encoders, inputs: Inputs) -> Encoded:
    """Do what `Encoders.forward` does, with the exportable form of each encoder."""
    features = [inputs.vectors] if inputs.vectors.shape[1] else []
    goals = [inputs.vectors[:, columns] for columns in encoders.goal_vectors]
    for name, encoder, places in encoders.by_kind:
        observations = [inputs.others[at] for at in places]
        context = torch.cat(features, dim=1) if features else None
        if (form := OBSERVATION_KINDS[name].onnx) is None:
            parts = encoder(observations, context)
        else:
            parts = load_attribute(form, None, "exportable encoder")(encoder, observations, context)
        goals += [parts[number] for number, _ in encoder.goals]
        features += parts
    return Encoded(torch.cat(features, dim=1), torch.cat(goals, dim=1) if goals else None)


def encode_sets(encoder: SetEncoder, sets: Sequence[Tensor], context: Tensor | None) -> list[Tensor]:
    """Encode sets [B, n, width] as `SetEncoder` does."""
    shared = None if encoder.own is None else silu(encoder.own(context))
    x = torch.cat([embed(things, shared) for embed, things in zip(encoder.embeddings, sets, strict=True)], dim=1)
    present = torch.cat([(things.abs().amax(dim=2) > 0).float() for things in sets], dim=1)
    n, width = sum(int(things.shape[1]) for things in sets), EMBEDDING

    def by_heads(layer: nn.Linear) -> Tensor:
        return layer(x).reshape(-1, n, HEADS, width // HEADS).transpose(1, 2)  # type: ignore[no-any-return]

    x = layer_norm(x, (width,))
    never = present.reshape(-1, 1, 1, n) * FORBIDDEN - FORBIDDEN
    scores = by_heads(encoder.query) @ by_heads(encoder.key).transpose(2, 3) / sqrt(width) + never
    gathered = (scores.softmax(dim=3) @ by_heads(encoder.value)).transpose(1, 2).reshape(-1, n, width)
    x = layer_norm(x + encoder.out(gathered), (width,))
    total = (present.reshape(-1, 1, n) @ x).reshape(-1, width)
    return [total / present.sum(dim=1, keepdim=True).clamp(min=1.0)]


def _hyper(layer: HyperLayer, x: Tensor, goals: Tensor) -> Tensor:
    inputs, outputs = layer.shape
    matrices: Tensor = layer.matrix(layer_norm(layer.hidden(goals), (outputs,))).reshape(-1, inputs, outputs)
    return (x.reshape(-1, 1, inputs) @ matrices).reshape(-1, outputs) + layer.bias


def _remember(memory: Memory, x: Tensor, memories: Tensor) -> tuple[Tensor, Tensor]:
    """Run one LSTM step; return the output [B, m / 2] and the memories [B, m] afterwards.

    The gates are written out, so that the result does not depend on a runtime's conventions for sequences and layouts.
    """
    size, ((of_x, of_h, x_bias, h_bias),) = memory.size, memory.lstm.all_weights
    h, c = memories[:, :size], memories[:, size:]
    gates = linear(x, of_x, x_bias) + linear(h, of_h, h_bias)
    let_in, forget, new, let_out = (gates[:, at * size : (at + 1) * size] for at in range(4))
    c = forget.sigmoid() * c + let_in.sigmoid() * new.tanh()
    h = let_out.sigmoid() * c.tanh()
    return h, torch.cat([h, c], dim=1)


def _drawn(logits: Tensor) -> Tensor:
    """Draw a choice [B, 1]. The exporter passes logarithms to ONNX's operation, so probabilities must not be 0."""
    return logits.softmax(dim=1).clamp(min=torch.finfo(torch.float32).tiny).multinomial(1)


def _for_environment(drawn: Tensor, actions: ActionSpec) -> Tensor:
    """Convert actions of an unsquashed Gaussian to the environment's form; see `environment_actions`."""
    clipped = drawn.clamp(-ACTION_LIMIT, ACTION_LIMIT) / ACTION_LIMIT
    if not actions.unbounded:
        return clipped
    raw = constant([at in actions.unbounded for at in range(actions.continuous_size)])
    return clipped * (1.0 - raw) + drawn * raw


def convert_to_units(actions: Tensor, units: ActionUnits) -> Tensor:
    """Convert continuous actions [B, C] to the environment's units, in float32."""
    if units.identity:
        return actions
    largest = np.finfo(np.float32).max  # in place of infinity, which some runtimes don't support
    low, high = (constant(bound.clip(-largest, largest)) for bound in (units.low, units.high))
    converted = torch.maximum(torch.minimum(actions * constant(units.half) + constant(units.middle), high), low)
    whole = constant(units.whole)
    return _rounded(converted) * whole + converted * (1.0 - whole) if units.whole.any() else converted


def _rounded(x: Tensor) -> Tensor:
    """Round half to even as NumPy does; `Round` is not in all operator sets."""
    up, down = (x + 0.5).floor(), (x - 0.5).ceil()
    odd = up - (up * 0.5).floor() * 2.0
    return up - (up - down) * odd
