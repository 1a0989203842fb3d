"""Names and shapes of the tensors that a policy consists of, in the order of `PolicyUpdate.weights`.

Trainer and actors derive it from the same design; a policy that was made for another is refused. The matrices of plain
designs are stored [in, out], a layer is `inputs @ weight + bias`; those of all others as in their torch modules.
"""

from __future__ import annotations

import numpy as np

from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError
from headrace.stages.loading import load_attribute
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.observations import ObservationLayout

Layout = tuple[tuple[str, tuple[int, ...]], ...]

MASK_PENALTY = np.float32(-1e8)
"""Added to the logits of forbidden choices: their probability is exactly 0, and p·log p is 0, not NaN."""

ACTOR_TENSORS = "headrace.stages.policy.network.actor:actor_tensors"
"""Gives the tensors of designs that are not plain; a string, so that torch is imported only where a design needs it."""

NORMALIZER_MEAN = "normalizer.mean"
NORMALIZER_INVERSE_STD = "normalizer.inverse_std"


def policy_layout(design: PolicyDesign) -> Layout:
    """(name, shape) of each tensor of the acting part of the network, after those of the normaliser if there is one.

    A plain design has `body.<layer>.weight` and `.bias`, `action.weight` and `.bias` (one layer for all heads, see
    `PolicyDesign.head_size`), and `log_sigma` where continuous actions are not squashed. For any other these are the
    parameters of an `ActorNetwork`; that imports torch.

    Raises:
        StageError: if there is nothing to observe, or an observation can't be learned from.
        LoadError: if the design names a network of the user's own that can't be loaded.
    """
    vectors = ObservationLayout(design.spec).vector_size
    tensors: list[tuple[str, tuple[int, ...]]] = []
    if design.settings.normalize and vectors:
        tensors += [(NORMALIZER_MEAN, (vectors,)), (NORMALIZER_INVERSE_STD, (vectors,))]
    if design.plain:
        tensors += _perceptron(design, vectors)
    else:
        tensors += load_attribute(ACTOR_TENSORS, None, "policy layout")(design)
    return tuple(tensors)


def _perceptron(design: PolicyDesign, width: int) -> list[tuple[str, tuple[int, ...]]]:
    tensors: list[tuple[str, tuple[int, ...]]] = []
    continuous = design.spec.actions.continuous_size
    for layer, hidden in enumerate(design.settings.widths):
        tensors += [(f"body.{layer}.weight", (width, hidden)), (f"body.{layer}.bias", (hidden,))]
        width = hidden
    tensors += [("action.weight", (width, design.head_size)), ("action.bias", (design.head_size,))]
    if continuous and not design.squashed:
        tensors.append(("log_sigma", (continuous,)))
    return tensors


def branch_slices(spec: BehaviorSpec) -> tuple[slice, ...]:
    """Return the columns of each discrete branch in a row of choices (logits, masks)."""
    slices, at = [], 0
    for size in spec.actions.discrete_branches:
        slices.append(slice(at, at + size))
        at += size
    return tuple(slices)


def check_layout(update: PolicyUpdate, expected: Layout) -> None:
    """Refuse a policy that was made for another network; the order of its tensors does not matter.

    Raises:
        StageError: naming the first tensor that differs, what was expected and what came.
    """
    got = {name: tuple(shape) for name, shape in update.layout}
    about = f"{update.behavior_id}: policy version {update.version} does not fit this network"
    mend = "was it trained with other network_settings?"
    for name, shape in expected:
        if name not in got:
            raise StageError(f"{about}: expected tensor {name} {shape}, got none of that name; {mend}")
        if got[name] != shape:
            raise StageError(f"{about}: expected tensor {name} {shape}, got {name} {got[name]}; {mend}")
    unknown = [name for name in got if name not in dict(expected)]
    if unknown:
        names = ", ".join(name for name, _ in expected)
        raise StageError(f"{about}: expected tensors {names}, got {unknown[0]} {got[unknown[0]]} as well; {mend}")
