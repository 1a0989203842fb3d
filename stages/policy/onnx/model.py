"""A policy as an ONNX model: for Unity in ML-Agents' format, version 3 (see `contract`), or for Godot.

Unlike ML-Agents' policies, Headrace's recurrent policies take the previous action as an input. Unity does not provide
continuous actions as inputs, so the previous action is part of the model's memory. That memory depends on whether Unity
uses the sampled or the deterministic actions, so the model keeps one for each, concatenated: [h, c, previous action].
`difference` compares an exported model with the live policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array, Floats, PolicyUpdate
from headrace.queues.specs import GODOT, BehaviorSpec, ObservationSpec
from headrace.stages.action_units import action_units
from headrace.stages.errors import StageError
from headrace.stages.policy.design import NORMALIZER_MEAN, PolicyDesign
from headrace.stages.policy.network.body import ActorNetwork, untrained_actor
from headrace.stages.policy.numpy_policy import make_policy
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.policy.onnx import contract
from headrace.stages.policy.onnx.actor import (
    ActionHeads,
    ActionValues,
    EncodedValues,
    MemoryValues,
    compute_encoding,
    convert_to_units,
    encode_observations,
)
from headrace.stages.policy.onnx.contract import NOTES, noted
from headrace.stages.policy.onnx.graph import BATCH, INT64, OPSET, Graph
from headrace.stages.policy.onnx.layers import apply
from headrace.stages.policy.onnx.onnx_policy import OnnxPolicy
from headrace.stages.policy.onnx.runtime import Runtime
from headrace.stages.policy.protocol import ActingPolicy, Recall

STATE_IN, STATE_OUT, OUTPUT = "state_ins", "state_outs", "output"


@dataclass(frozen=True, slots=True)
class ActionKey:
    """One of the game's action keys, and its position among the policy's actions."""

    name: str
    columns: slice
    """Columns of a continuous key among the continuous actions; empty for a discrete key."""
    branch: int
    """Branch of a discrete key; -1 for a continuous key."""


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
    """Return a warning if a Godot game's order of keys may have been lost in transmission, otherwise None."""
    if GODOT not in (spec.spaces or {}):
        return None
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
        number = graph.node("Cast", graph.add(graph.input(observation.name, (1,)), np.float32(0.5)), to=INT64)
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


LATER_OPSET = 15
"""Operator set for custom networks with operations that the default set does not have."""


def onnx_model(design: PolicyDesign, update: PolicyUpdate, opset: int = OPSET) -> bytes:
    """Return a policy as the content of an `.onnx` file.

    Args:
        design: the policy's design.
        update: the policy's weights.
        opset: the operator set; a custom network that needs a later one is written for `LATER_OPSET`.

    Raises:
        StageError: if the update does not fit the design, a custom network can't be written to ONNX, or the policy
            chooses how long its actions repeat.
        LoadError: if the design names a custom network that can't be loaded.
    """
    if design.spec.action_repeat == "learned":
        raise StageError(
            f"{update.behavior_id}: the policy chooses how long to hold each action (environment.action_repeat), which "
            "the model runtimes of games don't support; play the policy with --inference, or train with a fixed repeat"
        )
    tensors = update.tensors()
    vectors = ObservationLayout(design.spec).vector_size
    if (NORMALIZER_MEAN in tensors) != (design.settings.normalize and vectors > 0):
        raise StageError(
            f"{update.behavior_id}: network_settings.normalize differs from the setting that this policy was trained "
            "with"
        )
    actor = untrained_actor(design)
    actor.load_acting(tensors)
    if GODOT in (design.spec.spaces or {}):
        return godot_model(design, update, actor, tensors)
    try:
        return _Model(design, actor, tensors, opset).to_bytes(update)
    except StageError:
        if design.settings.network is None:
            raise
        return _Model(design, actor, tensors, LATER_OPSET).to_bytes(update)


class _Model:
    def __init__(self, design: PolicyDesign, actor: ActorNetwork, tensors: dict[str, Array], opset: int) -> None:
        self._graph = Graph(design.spec.name, opset)
        self._design = design
        self._actor = actor
        actions = design.spec.actions
        inputs = [
            self._graph.input(contract.observation_name(index), contract.observation_shape(spec))
            for index, spec in enumerate(design.spec.observations)
        ]
        seen = encode_observations(self._graph, design, actor.body, tensors, inputs)
        choices = actions.mask_size
        masks = self._graph.input(contract.ACTION_MASKS, (choices,)) if choices else None
        self._heads = ActionHeads(self._graph, design, actor.log_sigma, masks)
        way = (design.memory_size + design.previous_action_size) if design.memory_size else 0
        self._state_size = 2 * way
        if way:
            memories = self._graph.reshape(
                self._graph.input(contract.RECURRENT_IN, (1, self._state_size)), -1, self._state_size
            )
            drawn, drawn_after = self._recurrent(seen, memories, 0, deterministic=False)
            chosen, chosen_after = self._recurrent(seen, memories, way, deterministic=True)
            after = self._graph.beside([drawn_after, chosen_after])
        else:
            encoding, _, _ = compute_encoding(self._graph, design, actor.body, seen, None)
            heads = apply(self._graph, actor.action, encoding)
            drawn, chosen = (self._heads.act(heads, deterministic) for deterministic in (False, True))
            after = None
        self._unconverted: dict[str, str] = {}
        self._give(drawn, chosen, after)

    def to_bytes(self, update: PolicyUpdate) -> bytes:
        notes = {NOTES: noted(self._design.spec, update.step)}
        return self._graph.to_bytes(f"{update.behavior_id}, step {update.step}", notes)

    def _recurrent(
        self, seen: EncodedValues, memories: str, start: int, deterministic: bool
    ) -> tuple[ActionValues, str]:
        """Act with the memory that starts at column `start`; return the actions and the updated memory."""
        graph, half = self._graph, self._design.memory_size // 2
        edges = np.cumsum([start, half, half, self._design.previous_action_size]).tolist()
        h, c, previous = (graph.columns(memories, a, b, self._state_size) for a, b in pairwise(edges))
        remembered = MemoryValues(h, c, self._heads.before(previous))
        encoding, h_after, c_after = compute_encoding(graph, self._design, self._actor.body, seen, remembered)
        assert h_after is not None
        assert c_after is not None
        acted = self._heads.act(apply(graph, self._actor.action, encoding), deterministic)
        return acted, graph.beside([h_after, c_after, self._heads.features(acted)])

    def _give(self, drawn: ActionValues, chosen: ActionValues, after: str | None) -> None:
        """Add the model's outputs, in ML-Agents' order, and then Headrace's own."""
        actions = self._design.spec.actions
        self._number(contract.VERSION_NUMBER, [contract.VERSION])
        self._number(contract.MEMORY_SIZE, [self._state_size])
        if drawn.continuous is not None and chosen.continuous is not None:
            self._give_continuous(contract.CONTINUOUS, drawn.continuous)
            self._number(contract.CONTINUOUS_SIZE, [actions.continuous_size])
            self._give_continuous(contract.DETERMINISTIC_CONTINUOUS, chosen.continuous)
        if drawn.discrete:
            shape = (BATCH, len(drawn.discrete))
            self._graph.output(contract.DISCRETE, self._graph.beside(drawn.discrete), shape, integers=True)
            self._number(contract.DISCRETE_SIZES, [actions.discrete_branches])
            self._graph.output(
                contract.DETERMINISTIC_DISCRETE, self._graph.beside(chosen.discrete), shape, integers=True
            )
        if after is not None:
            state = self._graph.reshape(after, -1, 1, self._state_size)
            self._graph.output(contract.RECURRENT_OUT, state, (BATCH, 1, self._state_size))
        for name, values in self._unconverted.items():
            self._graph.output(contract.before_units(name), values, (BATCH, actions.continuous_size))

    def _give_continuous(self, name: str, values: str) -> None:
        converted = convert_to_units(self._graph, values, action_units(self._design.spec))
        self._graph.output(name, converted, (BATCH, self._design.spec.actions.continuous_size))
        if converted != values:
            self._unconverted[name] = values

    def _number(self, name: str, numbers: Sequence[object]) -> None:
        """Add a constant to the outputs; Unity reads constants in the model's first run."""
        array = np.array(numbers, np.float32)
        self._graph.output(name, self._graph.constant(array), array.shape)


TOLERANCE = 1e-4
_ROWS = 16
_TICKS = 2
"""Number of consecutive decisions compared. An error in the memory shows up in the second decision."""


def difference(design: PolicyDesign, update: PolicyUpdate, model: bytes) -> str | None:
    """Describe how a model acts differently from its policy; return None if it acts the same.

    Deterministic actions are compared. Masks are random, so the comparison covers more than each branch's best choice.
    One agent may choose differently, because rounding decides between two equally good choices.

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
        return "its discrete actions differ"
    return None


def _difference_in_godot(
    design: PolicyDesign, live: ActingPolicy, model: bytes, random: np.random.Generator
) -> str | None:
    """Compare the policy with its model, which is run as in the Godot RL Agents addon.

    Inputs are named by the game's keys; discrete observations are numbers.
    """
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
        return f"its {STATE_OUT} has shape {list(state.shape)}"
    ours = live.act(tuple(seen), None, random, True).actions
    return _compared(ours, ActionBatch(*read_output(design.spec, output)))


def _masks(design: PolicyDesign, random: np.random.Generator) -> NDArray[np.bool_] | None:
    """Return random masks that allow half of all choices, and at least one per branch."""
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
    return random.standard_normal(shape).astype(np.float32).astype(spec.dtype)  # models take float32 inputs
