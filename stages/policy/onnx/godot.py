"""A policy as an ONNX model for the Godot RL Agents addon, in the format that the addon's C# reader expects.

Inputs: one for each observation of the agent, named by its key, [batch, n] float, and `state_ins` [batch], which is
passed through. Outputs: `output` [batch, k] and `state_outs`. The reader goes through the game's action keys in their
order. For a discrete key it takes n logits from `output` and picks the highest; for a continuous key it takes n means,
and skips the n log standard deviations that follow. If all keys are continuous, the log standard deviations are left
out; the reader recognises this because k is then the number of means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from headrace.queues.messages import Array, PolicyUpdate
from headrace.queues.specs import GODOT, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.actor import ActorNetwork
from headrace.stages.policy.onnx.actor import ActionHeads, compute_encoding, encode_observations
from headrace.stages.policy.onnx.contract import NOTES, noted
from headrace.stages.policy.onnx.graph import BATCH, OPSET, Graph
from headrace.stages.policy.onnx.layers import apply

STATE_IN, STATE_OUT, OUTPUT = "state_ins", "state_outs", "output"
_INT64 = 7


@dataclass(frozen=True, slots=True)
class ActionKey:
    """One of the game's action keys, and its position among the policy's actions."""

    name: str
    columns: slice
    """Columns of a continuous key among the continuous actions; empty for a discrete key."""
    branch: int
    """Branch of a discrete key; -1 for a continuous key."""


def is_of_godot(spec: BehaviorSpec) -> bool:
    """Return True if this behaviour's agents act in a game made with Godot."""
    return GODOT in (spec.spaces or {})


def action_keys(spec: BehaviorSpec) -> list[ActionKey]:
    """Return the game's action keys, in the game's order."""
    found, column, branch = [], 0, 0
    for action in _announced(spec)["actions"]:
        if action["action_type"] == "continuous":
            found.append(ActionKey(action["name"], slice(column, column + action["size"]), -1))
            column += action["size"]
        else:
            found.append(ActionKey(action["name"], slice(0, 0), branch))
            branch += 1
    return found


def remark_on_order(spec: BehaviorSpec) -> str | None:
    """Return a warning if the order of the game's keys may have been lost in transmission, otherwise None."""
    names = [key.name for key in action_keys(spec)]
    if _announced(spec)["ordered"] or len(names) < 2:
        return None
    return (
        f"{spec.name}: the game's addon (from before December 2023, or for Godot 3) sends the keys of actions in "
        f"alphabetical order ({', '.join(names)}), but reads a model's outputs in the order of get_action_space. If "
        "the two orders differ, the game swaps actions; list the keys of get_action_space in alphabetical order, or "
        "update the addon"
    )


def godot_model(design: PolicyDesign, update: PolicyUpdate, actor: ActorNetwork, tensors: dict[str, Array]) -> bytes:
    """Return a policy as the content of an `.onnx` file.

    Args:
        design: the policy's design.
        update: the policy's weights.
        actor: the policy's network, with the weights.
        tensors: the policy's tensors.

    Raises:
        StageError: if the addon can't run this policy.
    """
    spec = design.spec
    _refuse_what_the_addon_lacks(design)
    graph = Graph(spec.name, OPSET)
    seen = encode_observations(graph, design, actor.body, tensors, [_input(graph, spec, o) for o in spec.observations])
    state = graph.input(STATE_IN, ())
    encoding, _, _ = compute_encoding(graph, design, actor.body, seen, None)
    heads = apply(graph, actor.action, encoding)
    parts, width = _parts(graph, design, ActionHeads(graph, design, actor.log_sigma, None), heads)
    graph.output(OUTPUT, graph.beside(parts), (BATCH, width))
    graph.output(STATE_OUT, state, (BATCH,))
    return graph.to_bytes(f"{update.behavior_id}, step {update.step}", {NOTES: noted(spec, update.step)})


def _parts(graph: Graph, design: PolicyDesign, actions: ActionHeads, heads: str) -> tuple[list[str], int]:
    """Return the parts of `output`, and their total width."""
    spec = design.spec
    size = spec.actions.continuous_size
    means = actions.means(heads) if size else ""
    keys, parts = action_keys(spec), []
    for key in keys:
        if key.branch >= 0:
            parts.append(actions.logits(heads, key.branch))
            continue
        part = graph.columns(means, key.columns.start, key.columns.stop, size)
        parts.append(part)
        if spec.actions.discrete_branches:  # stands in for the log standard deviations, which the reader skips
            parts.append(graph.multiply(part, 0.0))
    return parts, sum(_width(spec, key) for key in keys)


def _input(graph: Graph, spec: BehaviorSpec, observation: ObservationSpec) -> str:
    """Add an input for an observation in the addon's format; return it in the network's input format."""
    announced = _announced(spec)["observations"][observation.name]
    if announced["space"] == "discrete":
        number = graph.node("Cast", graph.add(graph.input(observation.name, (1,)), np.float32(0.5)), to=_INT64)
        chosen = graph.node("Equal", number, graph.constant(np.arange(observation.size, dtype=np.int64)))
        return graph.node("Cast", chosen, to=1)
    flat = graph.input(observation.name, (observation.size,))
    return flat if len(observation.shape) <= 1 else graph.reshape(flat, -1, *observation.shape)


def _refuse_what_the_addon_lacks(design: PolicyDesign) -> None:
    spec = design.spec
    pictures = [observation.name for observation in spec.observations if observation.dtype == "uint8"]
    if pictures:
        raise StageError(
            f"{spec.name}: the policy observes images ({', '.join(pictures)}), which the addon can't pass to a model; "
            "play the policy with --inference, or make it observe numbers"
        )
    if design.memory_size:
        raise StageError(
            f"{spec.name}: the policy has a memory, which the addon does not carry from one decision to the next; play "
            "the policy with --inference, or train without network_settings.memory"
        )


def _announced(spec: BehaviorSpec) -> dict[str, Any]:
    assert spec.spaces is not None, "the game has announced its spaces"
    found: dict[str, Any] = spec.spaces[GODOT]
    return found


def read_output(spec: BehaviorSpec, output: Array) -> tuple[Array, Array]:
    """Read `output` [n, k] as the addon does: continuous actions [n, C] in [-1, 1], and choices [n, branches]."""
    keys = action_keys(spec)
    edges: Sequence[int] = np.cumsum([0, *(_width(spec, key) for key in keys)]).tolist()
    continuous = np.zeros((len(output), spec.actions.continuous_size), np.float32)
    discrete = np.zeros((len(output), len(spec.actions.discrete_branches)), np.int32)
    for key, (start, stop) in zip(keys, pairwise(edges), strict=True):
        if key.branch >= 0:
            discrete[:, key.branch] = output[:, start:stop].argmax(axis=1)
        else:
            count = key.columns.stop - key.columns.start
            continuous[:, key.columns] = output[:, start : start + count].clip(-1, 1)
    return continuous, discrete


def _width(spec: BehaviorSpec, key: ActionKey) -> int:
    """Return the number of columns that a key takes in `output`."""
    if key.branch >= 0:
        return spec.actions.discrete_branches[key.branch]
    count: int = key.columns.stop - key.columns.start
    return count * (2 if spec.actions.discrete_branches else 1)
