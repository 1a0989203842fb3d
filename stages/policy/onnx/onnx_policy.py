"""Acting by an `.onnx` model: one that was exported here, or by ML-Agents (its format of version 3).

The model draws its actions itself, so unlike other policies this one does not use the generator that is passed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from config.observation_kinds import OBSERVATION_KINDS
from queues.messages import ActionBatch, Array, Floats, PolicyUpdate
from queues.specs import ObservationSpec
from stages.errors import StageError
from stages.policy.actions import action_features, policy_actions
from stages.policy.design import PolicyDesign
from stages.policy.onnx import contract
from stages.policy.onnx.runtime import Runtime
from stages.policy.protocol import Decision, Recall
from stages.policy.sampling import check_heads


class OnnxPolicy:
    """Acts for one behaviour id: `ActingPolicy` by a model in onnxruntime.

    Attributes:
        memory_size: m, 0 without memory. Its content is the model's own.
        previous_action_size: P, 0 without memory.
        version: of the last `load`; -1 before the first.

    Args:
        model: the file, or its content.
        design: of the behaviour. Its spec says what the model receives; its network settings have no meaning here.

    Raises:
        StageError: if onnxruntime is not installed, the file is not such a model, or it was made for other observations
            or actions; the message names the file and what differs.
    """

    def __init__(self, model: Path | bytes, design: PolicyDesign) -> None:
        self._spec = spec = design.spec
        self._squashed = design.squashed
        self._where = f"{spec.behavior_id}: {model}" if isinstance(model, Path) else spec.behavior_id
        self._runtime = Runtime(model)
        constants = self._runtime.constants(
            (contract.VERSION_NUMBER, contract.MEMORY_SIZE, contract.CONTINUOUS_SIZE, contract.DISCRETE_SIZES)
        )
        self._check_version(constants)
        self.memory_size = max(0, constants.get(contract.MEMORY_SIZE, (0,))[0])
        actions = spec.actions
        self.previous_action_size = actions.continuous_size + actions.mask_size if self.memory_size else 0
        self._check_actions(constants)
        self._check_inputs()
        self.version = -1

    def load(self, update: PolicyUpdate) -> None:
        """Set the version; the weights are the model's.

        Raises:
            StageError: if the update brings weights.
        """
        if update.layout:
            raise StageError(f"{self._where}: a model's weights can't be replaced, got {update.layout[0][0]}, …")
        self.version = update.version

    def act(
        self,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Recall | None = None,
    ) -> Decision:
        """See `ActingPolicy.act`. Log-probabilities are unknown: their column is zeros."""
        d, actions = len(observations[0]), self._spec.actions
        memories = np.zeros((d, self.memory_size), np.float32) if recall is None else recall.memories
        given, memories = self._decide(observations, masks, deterministic, memories)
        columns: dict[str, Array] = {"log_probs": np.zeros((d, actions.log_prob_size), np.float32)}
        if actions.continuous_size:
            columns["continuous_actions"] = policy_actions(actions, given.continuous, self._squashed)
        if actions.discrete_branches:
            columns["discrete_actions"] = given.discrete
        if actions.masked:
            columns["action_masks"] = np.ones((d, actions.mask_size), np.bool_) if masks is None else masks
        if not self.memory_size:
            return Decision(given, columns)
        return Decision(given, columns, Recall(memories, action_features(actions, given.continuous, given.discrete)))

    def _decide(
        self, observations: tuple[Array, ...], masks: NDArray[np.bool_] | None, deterministic: bool, memories: Floats
    ) -> tuple[ActionBatch, Floats]:
        """Return the actions of d agents, and their memories [d, m] afterwards."""
        d, actions = len(memories), self._spec.actions
        continuous = np.empty((d, actions.continuous_size), np.float32)
        discrete = np.empty((d, len(actions.discrete_branches)), np.int32)
        if not d:
            return ActionBatch(continuous, discrete), memories
        wanted = self._action_outputs(deterministic)
        asked = [*wanted, *([contract.RECURRENT_OUT] if self.memory_size else [])]
        found = dict(zip(asked, self._runtime.run(asked, self._inputs(observations, masks, memories)), strict=True))
        for name in wanted:
            array = found[name].reshape(d, -1)
            if name in (contract.CONTINUOUS, contract.DETERMINISTIC_CONTINUOUS):
                check_heads(self._where, self.version, array, observations)
                continuous[:] = array
            else:
                discrete[:] = array
        if self.memory_size:
            memories = found[contract.RECURRENT_OUT].reshape(d, self.memory_size)
        return ActionBatch(continuous, discrete), memories

    def _action_outputs(self, deterministic: bool) -> list[str]:
        names = []
        if self._spec.actions.continuous_size:
            names.append(contract.DETERMINISTIC_CONTINUOUS if deterministic else contract.CONTINUOUS)
        if self._spec.actions.discrete_branches:
            names.append(contract.DETERMINISTIC_DISCRETE if deterministic else contract.DISCRETE)
        return names

    def _inputs(
        self, observations: tuple[Array, ...], masks: NDArray[np.bool_] | None, memories: Floats
    ) -> dict[str, Floats]:
        d, choices = len(memories), self._spec.actions.mask_size
        inputs = {}
        for index, (spec, observation) in enumerate(zip(self._spec.observations, observations, strict=True)):
            inputs[contract.observation_name(index)] = unity_input(spec, observation)
        if contract.ACTION_MASKS in self._runtime.shapes:
            allowed = np.ones((d, choices), np.float32) if masks is None else masks.astype(np.float32)
            inputs[contract.ACTION_MASKS] = allowed
        if contract.RECURRENT_IN in self._runtime.shapes:
            inputs[contract.RECURRENT_IN] = memories.reshape(d, 1, self.memory_size)
        return inputs

    def _check_version(self, constants: dict[str, tuple[int, ...]]) -> None:
        missing = [name for name in (contract.VERSION_NUMBER, contract.MEMORY_SIZE) if name not in constants]
        if missing:
            raise StageError(
                f"{self._where}: is no model of ML-Agents' kind: it has no output {missing[0]}, only "
                f"{', '.join(self._runtime.outputs)}; expected a file that Headrace or ML-Agents has exported"
            )
        version = constants[contract.VERSION_NUMBER][0]
        if version != contract.VERSION:
            raise StageError(
                f"{self._where}: is of ML-Agents' model version {version}, expected {contract.VERSION}; "
                "export it again with a current version"
            )

    def _check_actions(self, constants: dict[str, tuple[int, ...]]) -> None:
        actions = self._spec.actions
        theirs = (max(0, constants.get(contract.CONTINUOUS_SIZE, (0,))[0]), constants.get(contract.DISCRETE_SIZES, ()))
        ours = (actions.continuous_size, actions.discrete_branches)
        if theirs != ours:
            raise StageError(
                f"{self._where}: was made for {theirs[0]} continuous actions and discrete branches {list(theirs[1])}, "
                f"the environment has {ours[0]} and {list(ours[1])}"
            )
        needed = [name for deterministic in (False, True) for name in self._action_outputs(deterministic)]
        needed += [contract.RECURRENT_OUT] if self.memory_size else []
        lacking = [name for name in needed if name not in self._runtime.outputs]
        if lacking:
            raise StageError(f"{self._where}: has no output {lacking[0]}, only {', '.join(self._runtime.outputs)}")

    def _check_inputs(self) -> None:
        expected: dict[str, tuple[int, ...]] = {}
        for index, spec in enumerate(self._spec.observations):
            expected[contract.observation_name(index)] = contract.observation_shape(spec)
        optional = {
            contract.ACTION_MASKS: (self._spec.actions.mask_size,),
            contract.RECURRENT_IN: (1, self.memory_size),
        }
        for name, shape in self._runtime.shapes.items():
            ours = expected.get(name) or optional.get(name)
            if ours is None:
                raise StageError(
                    f"{self._where}: wants an input {name} {_shown(shape)}, which the environment does not give; it "
                    f"gives {', '.join(f'{given} {_shown(size)}' for given, size in expected.items())}"
                )
            if len(shape) != len(ours) or any(n not in (None, m) for n, m in zip(shape, ours, strict=True)):
                raise StageError(
                    f"{self._where}: was made for {name} of shape {_shown(shape)}, the environment gives "
                    f"{self._named(name)} of shape {_shown(ours)}"
                )
        lacking = [name for name in expected if name not in self._runtime.shapes]
        if lacking:
            raise StageError(
                f"{self._where}: has no input {lacking[0]}, which is {self._named(lacking[0])} of the environment; "
                f"it has {', '.join(self._runtime.shapes)}"
            )

    def _named(self, name: str) -> str:
        """Return the environment's name of an input."""
        for index, spec in enumerate(self._spec.observations):
            if contract.observation_name(index) == name:
                return repr(spec.name)
        return name


def unity_input(spec: ObservationSpec, observation: Array) -> Floats:
    """Convert an observation [n, *shape] to a model's input: float32, images from 0 to 1 with the channels first."""
    if not spec.shape:
        return observation.reshape(-1, 1).astype(np.float32)
    given: Floats = observation.astype(np.float32)
    if not OBSERVATION_KINDS[spec.kind].pixels:
        return given
    if observation.dtype == np.uint8:
        given /= np.float32(255.0)
    return np.ascontiguousarray(given.transpose(0, 3, 1, 2)) if spec.channels_last else given


def _shown(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("any" if n is None else str(n) for n in shape) + "]"
