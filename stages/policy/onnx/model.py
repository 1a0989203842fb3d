"""A policy as an ONNX model: for Unity in ML-Agents' format, version 3 (see `contract`), or for Godot.

Unlike ML-Agents' policies, Headrace's recurrent policies take the previous action as an input. Unity does not provide
continuous actions as inputs, so the previous action is part of the model's memory. That memory depends on whether Unity
uses the sampled or the deterministic actions, so the model keeps one for each, concatenated: [h, c, previous action].
`difference` compares an exported model with the live policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.queues.messages import ActionBatch, Array, Floats, PolicyUpdate
from headrace.queues.specs import GODOT, BehaviorSpec, ObservationSpec
from headrace.stages.action_units import action_units
from headrace.stages.errors import StageError
from headrace.stages.policy.design import NORMALIZER_INVERSE_STD, NORMALIZER_MEAN, PolicyDesign
from headrace.stages.policy.numpy_policy import make_policy
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.policy.onnx import contract
from headrace.stages.policy.onnx.actor import Acted, Encoded, ExportedActor, constant, convert_to_units
from headrace.stages.policy.onnx.contract import NOTES, noted
from headrace.stages.policy.onnx.export import OPSET, write_model
from headrace.stages.policy.onnx.onnx_policy import OnnxPolicy
from headrace.stages.policy.onnx.runtime import Runtime
from headrace.stages.policy.protocol import ActingPolicy, Recall

_MOST_LOST = 0.1
"""Maximum rounding of an input to float32, as a share of its standard deviation, that causes no warning."""
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
    module = (GodotActor if GODOT in (design.spec.spaces or {}) else UnityActor)(design, tensors)
    what = "the policy" if design.settings.network is None else "network_settings.network"
    about, notes = f"{update.behavior_id}, step {update.step}", {NOTES: noted(design.spec, update.step)}
    try:
        return write_model(module, design.spec.name, what, opset, about, notes)
    except StageError:
        if design.settings.network is None:
            raise
        return write_model(module, design.spec.name, what, LATER_OPSET, about, notes)


class UnityActor(ExportedActor):
    """A policy in ML-Agents' format; see `contract`."""

    constants = contract.STATED

    def __init__(self, design: PolicyDesign, tensors: Mapping[str, Array]) -> None:
        super().__init__(design, tensors)
        self._way = (design.memory_size + design.previous_action_size) if design.memory_size else 0
        """Width of one of the two memories."""
        self.inputs: dict[str, tuple[int, ...]] = {
            contract.observation_name(index): contract.observation_shape(observation)
            for index, observation in enumerate(self.spec.observations)
        }
        if self.spec.actions.mask_size:
            self.inputs[contract.ACTION_MASKS] = (self.spec.actions.mask_size,)
        if self._way:
            self.inputs[contract.RECURRENT_IN] = (1, 2 * self._way)
        self.register_buffer(contract.VERSION_NUMBER, constant([contract.VERSION]))
        self.register_buffer(contract.MEMORY_SIZE, constant([2 * self._way]))
        self.register_buffer(contract.CONTINUOUS_SIZE, constant([self.spec.actions.continuous_size]))
        self.register_buffer(contract.DISCRETE_SIZES, constant([self.spec.actions.discrete_branches]))

    def outputs(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Compute a model's outputs, in ML-Agents' order, and then Headrace's own."""
        given = dict(zip(self.inputs, inputs, strict=True))
        seen, masks = self.encode(inputs[: len(self.spec.observations)]), given.get(contract.ACTION_MASKS)
        outputs = {name: self.get_buffer(name) for name in (contract.VERSION_NUMBER, contract.MEMORY_SIZE)}
        if self._way:
            memories = given[contract.RECURRENT_IN].reshape(-1, 2 * self._way)
            drawn, drawn_after = self._recurrent(seen, memories[:, : self._way], masks, deterministic=False)
            chosen, chosen_after = self._recurrent(seen, memories[:, self._way :], masks, deterministic=True)
            after = {
                contract.RECURRENT_OUT: torch.cat([drawn_after, chosen_after], dim=1).reshape(-1, 1, 2 * self._way)
            }
        else:
            heads, _ = self.heads(seen)
            drawn, chosen, after = self.act(heads, masks, False), self.act(heads, masks, True), {}
        unconverted = {}
        if drawn.continuous is not None and chosen.continuous is not None:
            units = action_units(self.spec)
            outputs[contract.CONTINUOUS] = convert_to_units(drawn.continuous, units)
            outputs[contract.CONTINUOUS_SIZE] = self.get_buffer(contract.CONTINUOUS_SIZE)
            outputs[contract.DETERMINISTIC_CONTINUOUS] = convert_to_units(chosen.continuous, units)
            if not units.identity:
                unconverted[contract.before_units(contract.CONTINUOUS)] = drawn.continuous
                unconverted[contract.before_units(contract.DETERMINISTIC_CONTINUOUS)] = chosen.continuous
        if drawn.discrete:
            outputs[contract.DISCRETE] = torch.cat(drawn.discrete, dim=1)
            outputs[contract.DISCRETE_SIZES] = self.get_buffer(contract.DISCRETE_SIZES)
            outputs[contract.DETERMINISTIC_DISCRETE] = torch.cat(chosen.discrete, dim=1)
        return {**outputs, **after, **unconverted}

    def _recurrent(
        self, seen: Encoded, memory: Tensor, masks: Tensor | None, deterministic: bool
    ) -> tuple[Acted, Tensor]:
        """Act with one of the two memories; return the actions and the updated memory."""
        size = self.design.memory_size
        heads, after = self.heads(seen, memory[:, :size], memory[:, size:])
        assert after is not None, "the policy has a memory"
        acted = self.act(heads, masks, deterministic)
        return acted, torch.cat([after, self.features(acted)], dim=1)


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
    keys, column, branch = [], 0, 0
    for action in _announced(spec)["actions"]:
        if action["action_type"] == "continuous":
            keys.append(ActionKey(action["name"], slice(column, column + action["size"]), -1))
            column += action["size"]
        else:
            keys.append(ActionKey(action["name"], slice(0, 0), branch))
            branch += 1
    return keys


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


def remark_on_rounding(spec: BehaviorSpec, tensors: Mapping[str, Array]) -> str | None:
    """Return a warning if float32 inputs lose differences that the policy saw in float64, otherwise None."""
    layout = ObservationLayout(spec)
    if not layout.exact or NORMALIZER_MEAN not in tensors:
        return None
    mean, inverse_std = np.abs(tensors[NORMALIZER_MEAN]), tensors[NORMALIZER_INVERSE_STD]
    lost = np.spacing(mean.astype(np.float32)) * inverse_std
    for index, columns in layout.vectors:
        worst = columns.start + int(lost[columns].argmax())
        if spec.observations[index].dtype == "float64" and lost[worst] > _MOST_LOST:
            return (
                f"{spec.name}: the model in the .onnx file takes float32, which rounds the observation "
                f"'{spec.observations[index].name}' at [{worst - columns.start}] (about {mean[worst]:.4g} ± "
                f"{1 / inverse_std[worst]:.3g}) to steps of {lost[worst] / inverse_std[worst]:.3g}, so the model acts "
                "differently from the policy. Subtract an offset in the environment, or play the .pt file"
            )
    return None


class GodotActor(ExportedActor):
    """A policy in the format of the Godot RL Agents addon.

    Raises:
        StageError: if the addon can't run this policy.
    """

    def __init__(self, design: PolicyDesign, tensors: Mapping[str, Array]) -> None:
        _refuse_what_the_addon_lacks(design)
        super().__init__(design, tensors)
        self._announced = _announced(self.spec)["observations"]
        self.inputs = {
            observation.name: (1 if self._announced[observation.name]["space"] == "discrete" else observation.size,)
            for observation in self.spec.observations
        } | {STATE_IN: ()}

    def outputs(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Compute a model's outputs."""
        *observations, state = inputs
        seen = [self._observed(spec, value) for spec, value in zip(self.spec.observations, observations, strict=True)]
        heads, _ = self.heads(self.encode(seen))
        parts = []
        for key in action_keys(self.spec):
            if key.branch >= 0:
                parts.append(self.logits(heads, key.branch))
                continue
            parts.append(self.continuous(heads, deterministic=True)[:, key.columns])
            if self.spec.actions.discrete_branches:  # stands in for the log standard deviations, which are skipped
                parts.append(parts[-1] * 0.0)
        return {OUTPUT: torch.cat(parts, dim=1), STATE_OUT: state}

    def _observed(self, spec: ObservationSpec, value: Tensor) -> Tensor:
        """Convert an observation from the addon's format to the network's input format."""
        if self._announced[spec.name]["space"] == "discrete":
            return ((value + 0.5).long() == torch.arange(spec.size)).float()
        return value if len(spec.shape) <= 1 else value.reshape(-1, *spec.shape)


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
    announced: dict[str, Any] = spec.spaces[GODOT]
    return announced


def read_output(spec: BehaviorSpec, output: Array) -> tuple[Array, Array]:
    """Read `output` [n, k] as the addon does: continuous actions [n, C] in [-1, 1], and choices [n, branches]."""
    branches, at = spec.actions.discrete_branches, 0
    continuous = np.zeros((len(output), spec.actions.continuous_size), np.float32)
    discrete = np.zeros((len(output), len(branches)), np.int32)
    for key in action_keys(spec):
        if key.branch >= 0:
            size = branches[key.branch]
            discrete[:, key.branch] = output[:, at : at + size].argmax(axis=1)
        else:
            size = key.columns.stop - key.columns.start
            continuous[:, key.columns] = output[:, at : at + size].clip(-1, 1)
            size *= 2 if branches else 1  # skip what stands in for the log standard deviations
        at += size
    return continuous, discrete


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
