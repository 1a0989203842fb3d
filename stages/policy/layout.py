"""Names and shapes of the tensors that a policy consists of, in the order of `PolicyUpdate.weights`.

Trainer and actors derive it from the same spec and settings; a policy that was made for others is refused by
it. Matrices are stored [in, out]: a layer is `inputs @ weight + bias`.
"""

from __future__ import annotations

import numpy as np

from config import NetworkSettings
from queues.messages import PolicyUpdate
from queues.specs import BehaviorSpec
from stages.errors import StageError
from stages.policy.encoders import ObservationEncoder

Layout = tuple[tuple[str, tuple[int, ...]], ...]

MASK_PENALTY = np.float32(-1e8)
"""Added to the logits of forbidden choices: their probability is exactly 0, and p·log p is 0, not NaN."""

ACTION_LIMIT = 3.0
"""A bounded continuous action leaves the policy as clip(a, -3, 3) / 3, as ML-Agents has it."""


def policy_layout(spec: BehaviorSpec, settings: NetworkSettings) -> Layout:
    """(name, shape) of each tensor of the acting part of the network, and of the normaliser if there is one.

    `action` is one layer for all heads: its columns are the means of the continuous actions, then the logits
    of each branch.
    """
    inputs = ObservationEncoder(spec).size
    tensors: list[tuple[str, tuple[int, ...]]] = []
    if settings.normalize:
        tensors += [("normalizer.mean", (inputs,)), ("normalizer.inverse_std", (inputs,))]
    width = inputs
    for layer in range(settings.num_layers):
        tensors += [
            (f"body.{layer}.weight", (width, settings.hidden_units)),
            (f"body.{layer}.bias", (settings.hidden_units,)),
        ]
        width = settings.hidden_units
    heads = spec.actions.continuous_size + spec.actions.mask_size
    tensors += [("action.weight", (width, heads)), ("action.bias", (heads,))]
    if spec.actions.continuous_size:
        tensors.append(("log_sigma", (spec.actions.continuous_size,)))
    return tuple(tensors)


def branch_slices(spec: BehaviorSpec) -> tuple[slice, ...]:
    """Where each discrete branch lies in a row of choices (logits, masks)."""
    slices, at = [], 0
    for size in spec.actions.discrete_branches:
        slices.append(slice(at, at + size))
        at += size
    return tuple(slices)


def check_layout(update: PolicyUpdate, expected: Layout) -> None:
    """Refuse a policy that was made for another network.

    Raises:
        StageError: naming the first tensor that differs, what was expected and what came.
    """
    for (name, shape), (got_name, got_shape) in zip(expected, update.layout, strict=False):
        if (name, shape) != (got_name, tuple(got_shape)):
            raise StageError(
                f"{update.behavior_id}: policy version {update.version} does not fit this network: "
                f"expected tensor {name} {shape}, got {got_name} {tuple(got_shape)}; "
                "was it trained with other network_settings?"
            )
    if len(expected) != len(update.layout):
        raise StageError(
            f"{update.behavior_id}: policy version {update.version} has {len(update.layout)} tensors, "
            f"expected {len(expected)}; was it trained with other network_settings?"
        )
