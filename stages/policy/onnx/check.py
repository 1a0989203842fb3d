"""Compares an exported model with the live policy: both decide on the same made-up observations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array, Floats, PolicyUpdate
from headrace.queues.specs import GODOT, ObservationSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.factory import make_policy
from headrace.stages.policy.onnx.onnx_policy import OnnxPolicy
from headrace.stages.policy.onnx.runtime import Runtime
from headrace.stages.policy.protocol import ActingPolicy, Recall

TOLERANCE = 1e-4
_ROWS = 16
_TICKS = 2
"""Decisions in a row: a wrong memory shows in the second."""


def difference(design: PolicyDesign, update: PolicyUpdate, model: bytes) -> str | None:
    """Describe how a model acts differently from the policy that it was made from; None if it does not.

    Deterministic actions are compared. Masks are random, so that not only the best choice of each branch has to be the
    same; and one agent may choose differently, as its two best choices may be equal except for rounding.

    Raises:
        StageError: if onnxruntime is not installed.
    """
    random = np.random.default_rng(0)
    live = make_policy(design)
    live.load(update)
    if GODOT in (design.spec.spaces or {}):
        return _difference_in_godot(design, live, model, random)
    both: tuple[ActingPolicy, ActingPolicy] = (live, OnnxPolicy(model, design))
    recalls: list[Recall | None] = [None, None]
    for _ in range(_TICKS):
        seen = tuple(_made_up(spec, random) for spec in design.spec.observations)
        masks = _masks(design, random)
        decisions = [p.act(seen, masks, random, True, r) for p, r in zip(both, recalls, strict=True)]
        recalls = [decision.recall for decision in decisions]
        if problem := _compared(*(decision.actions for decision in decisions)):
            return problem
    return None


def _compared(ours: ActionBatch, theirs: ActionBatch) -> str | None:
    apart = float(np.abs(ours.continuous - theirs.continuous).max(initial=0.0))
    if apart > TOLERANCE:
        return f"its continuous actions differ by up to {apart:.2g}"
    if (ours.discrete != theirs.discrete).any(axis=1).sum() > 1:
        return "its discrete actions are others"
    return None


def _difference_in_godot(
    design: PolicyDesign, live: ActingPolicy, model: bytes, random: np.random.Generator
) -> str | None:
    """Compare as the addon of Godot RL Agents runs models: inputs by the game's keys, numbers for discrete ones."""
    from headrace.stages.policy.onnx.godot import OUTPUT, STATE_IN, STATE_OUT, read_output

    announced = (design.spec.spaces or {})[GODOT]["observations"]
    seen: list[Array] = []
    inputs: dict[str, Floats] = {STATE_IN: np.ones(_ROWS, np.float32)}
    for spec in design.spec.observations:
        if announced[spec.name]["space"] == "discrete":
            numbers = random.integers(0, spec.size, _ROWS)
            seen.append(np.eye(spec.size, dtype=np.float32)[numbers])
            inputs[spec.name] = numbers[:, None].astype(np.float32)
        else:
            seen.append(_made_up(spec, random))
            inputs[spec.name] = seen[-1].reshape(_ROWS, -1).astype(np.float32)
    output, state = Runtime(model).run([OUTPUT, STATE_OUT], inputs)
    if state.shape != (_ROWS,):
        return f"its {STATE_OUT} has the shape {list(state.shape)}"
    ours = live.act(tuple(seen), None, random, True).actions
    return _compared(ours, ActionBatch(*read_output(design.spec, output)))


def _masks(design: PolicyDesign, random: np.random.Generator) -> NDArray[np.bool_] | None:
    """Half of all choices, and one of each branch in any case."""
    actions = design.spec.actions
    if not actions.discrete_branches:
        return None
    masks = random.random((_ROWS, actions.mask_size)) < 0.5
    at = 0
    for size in actions.discrete_branches:
        masks[np.arange(_ROWS), at + random.integers(0, size, _ROWS)] = True
        at += size
    return masks


def _made_up(spec: ObservationSpec, random: np.random.Generator) -> Array:
    shape = (_ROWS, *spec.shape)
    if np.dtype(spec.dtype).kind in "biu":
        return random.integers(0, 256 if spec.dtype == "uint8" else 2, shape).astype(spec.dtype)
    return random.standard_normal(shape).astype(spec.dtype)
