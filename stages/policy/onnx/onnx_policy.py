"""Acting with an `.onnx` model exported by Headrace or by ML-Agents (format versions 2 and 3).

Models sample their own actions; only version 2's discrete actions depend on the caller's random generator. In version 3
the action outputs hold sampled actions and, since ML-Agents 0.28, deterministic ones as well. In version 2 continuous
outputs are sampled actions, and discrete outputs are the log-probabilities of all choices, from which the caller draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.messages import ActionBatch, Array, Floats, PolicyUpdate
from headrace.queues.specs import ActionSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import MASK_PENALTY, PolicyDesign
from headrace.stages.policy.onnx import contract
from headrace.stages.policy.onnx.runtime import Runtime, stated_version, whole_numbers
from headrace.stages.policy.protocol import Decision, Recall
from headrace.stages.policy.sampling import action_features, check_heads, policy_actions, sample_categorical


class ActionOutputs:
    """A model's action outputs.

    Args:
        version: the version of the model's format.
        on_zeros: the model's outputs among `contract.METADATA` and `ACTIONS`, computed for one agent's all-zero
            observations.
        outputs: the names of all the model's outputs.
        actions: the environment's actions.
        where: behaviour and file, for messages.

    Raises:
        StageError: if the model was made for different actions, or an action output is missing.
    """

    def __init__(
        self,
        version: int,
        on_zeros: Mapping[str, Array],
        outputs: Sequence[str],
        actions: ActionSpec,
        where: str,
    ) -> None:
        self._logits = version < contract.VERSION
        self._outputs = outputs
        self._actions = actions
        self._where = where
        self._continuous, self._discrete = contract.CONTINUOUS, contract.DISCRETE
        if self._logits:
            self._choose(on_zeros)
        self._check_sizes(on_zeros)
        self.names()

    def names(self, deterministic: bool = False) -> list[str]:
        """Return the names of the outputs to request: continuous actions, then discrete actions.

        Raises:
            StageError: if an output is missing, including the deterministic ones if `deterministic`.
        """
        names = []
        if self._actions.continuous_size:
            name = contract.DETERMINISTIC_CONTINUOUS if deterministic else self._continuous
            unconverted = contract.before_units(name)
            names.append(unconverted if unconverted in self._outputs else name)
        if self._actions.discrete_branches:
            names.append(contract.DETERMINISTIC_DISCRETE if deterministic and not self._logits else self._discrete)
        lacking = [name for name in names if name not in self._outputs]
        if lacking and deterministic:
            raise StageError(
                f"{self._where}: has no output {lacking[0]}, which deterministic play needs: the version of ML-Agents "
                "that exported it only wrote sampled actions; play the model without --deterministic "
                "(network_settings.deterministic), or export it again with a newer version"
            )
        if lacking:
            raise StageError(f"{self._where}: has no output {lacking[0]}, only {', '.join(self._outputs)}")
        return names

    def read(
        self,
        outputs: Sequence[Array],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool,
    ) -> ActionBatch:
        """Return d agents' actions, given the outputs [d, …] that `names` lists."""
        d, actions = len(outputs[0]), self._actions
        continuous = np.empty((d, actions.continuous_size), np.float32)
        discrete = np.empty((d, len(actions.discrete_branches)), np.int32)
        if actions.continuous_size:
            continuous[:] = outputs[0].reshape(d, -1)
        if actions.discrete_branches:
            last = outputs[-1].reshape(d, -1)
            discrete[:] = self._drawn(last, masks, random, deterministic) if self._logits else last
        return ActionBatch(continuous, discrete)

    def _drawn(
        self, logits: Floats, masks: NDArray[np.bool_] | None, random: np.random.Generator, deterministic: bool
    ) -> NDArray[np.intp]:
        """Draw one choice per branch [d, branches] from log-probabilities [d, choices of all branches]."""
        if masks is not None:  # version 2 gives forbidden choices a probability of 1e-7
            logits = np.where(masks, logits, logits + MASK_PENALTY)
        branches = np.split(logits, np.cumsum(self._actions.discrete_branches)[:-1], axis=1)
        return np.stack([sample_categorical(branch, random, deterministic)[0] for branch in branches], axis=1)

    def _choose(self, on_zeros: Mapping[str, Array]) -> None:
        """Use the output `ACTION`, which holds all actions, if the newer output for that kind of action is missing.

        With only discrete actions, `ACTION` takes precedence, because some exporters wrote only the last branch into
        the newer output.
        """
        kind = on_zeros.get(contract.IS_CONTINUOUS)
        if kind is None or contract.ACTION not in self._outputs:
            return
        if not kind.any():
            self._discrete = contract.ACTION
        elif contract.CONTINUOUS not in self._outputs:
            self._continuous = contract.ACTION

    def _check_sizes(self, on_zeros: Mapping[str, Array]) -> None:
        """Compare the sizes that the model states, or else the sizes of its outputs (see `Runtime`).

        For version 2 only the outputs' sizes count, because the model does not state the number of branches.
        """
        actions = self._actions
        continuous, choices = _size(on_zeros, self._continuous), _size(on_zeros, self._discrete)
        branches: tuple[int, ...] = ()
        if self._logits:
            branches = actions.discrete_branches if choices == actions.mask_size else (choices,)
        elif contract.DISCRETE_SIZES in on_zeros:
            branches = tuple(size for size in whole_numbers(on_zeros[contract.DISCRETE_SIZES]) if size > 0)
        elif choices == len(actions.discrete_branches):
            branches = actions.discrete_branches
        if not self._logits and contract.CONTINUOUS_SIZE in on_zeros:
            continuous = max(0, whole_numbers(on_zeros[contract.CONTINUOUS_SIZE])[0])
        if (continuous, branches) != (actions.continuous_size, actions.discrete_branches):
            theirs = f"of {choices} choices in total" if self._logits else list(branches)
            raise StageError(
                f"{self._where}: was made for {continuous} continuous actions and discrete branches {theirs}, but the "
                f"environment has {actions.continuous_size} and {list(actions.discrete_branches)}"
            )


def _size(on_zeros: Mapping[str, Array], name: str) -> int:
    return on_zeros[name].size if name in on_zeros else 0


class OnnxPolicy:
    """An `ActingPolicy` for one behaviour id that runs a model in onnxruntime.

    Attributes:
        memory_size: m, the size of an agent's memory, whose content the model defines; 0 without memory.
        previous_action_size: P, the width of the previous action; 0 without memory.
        version: the version of the last loaded update; -1 before the first call to `load`.

    Args:
        model: the model's file, or its content.
        design: the behaviour's design. Its spec defines the model's inputs; of its network settings only
            `deterministic` matters here.

    Raises:
        StageError: if onnxruntime is not installed, the file is not an ONNX policy, the policy was made for different
            observations or actions, or deterministic play is required but not possible; the message names the file and
            the difference.
    """

    def __init__(self, model: Path | bytes, design: PolicyDesign) -> None:
        self._spec = spec = design.spec
        self._squashed = design.squashed
        self._where = f"{spec.behavior_id}: {model}" if isinstance(model, Path) else spec.behavior_id
        self._runtime = Runtime(model)
        stated = self._runtime.on_zeros(
            (contract.VERSION_NUMBER, contract.MEMORY_SIZE, *contract.METADATA, *contract.ACTIONS)
        )
        version = stated_version(self._runtime, stated, self._where)
        self._alone = version < contract.VERSION and contract.RECURRENT_IN in self._runtime.shapes
        self._fed = contract.observation_inputs(spec.observations, version)
        self.memory_size = self._read_memory_size(stated)
        actions = spec.actions
        self.previous_action_size = actions.continuous_size + actions.mask_size if self.memory_size else 0
        self._outputs = ActionOutputs(version, stated, self._runtime.outputs, actions, self._where)
        if design.settings.deterministic:
            self._outputs.names(deterministic=True)
        self._check_inputs()
        self.version = -1

    def load(self, update: PolicyUpdate) -> None:
        """Set the version to the update's version; the model keeps its own weights.

        Raises:
            StageError: if the update holds weights.
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
        """See `ActingPolicy.act`. The log-probabilities are unknown, so their column is all zeros."""
        d, actions = len(observations[0]), self._spec.actions
        memories = np.zeros((d, self.memory_size), np.float32) if recall is None else recall.memories
        decided, memories = self._decide(observations, masks, random, deterministic, memories)
        columns: dict[str, Array] = {"log_probs": np.zeros((d, actions.log_prob_size), np.float32)}
        if actions.continuous_size:
            columns["continuous_actions"] = policy_actions(actions, decided.continuous, self._squashed)
        if actions.discrete_branches:
            columns["discrete_actions"] = decided.discrete
        if actions.masked:
            columns["action_masks"] = np.ones((d, actions.mask_size), np.bool_) if masks is None else masks
        if not self.memory_size:
            return Decision(decided, columns)
        previous = action_features(actions, decided.continuous, decided.discrete)
        return Decision(decided, columns, Recall(memories, previous))

    def _decide(
        self,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool,
        memories: Floats,
    ) -> tuple[ActionBatch, Floats]:
        """Return the actions of d agents, and the agents' memories [d, m] after the decision."""
        d, actions = len(memories), self._spec.actions
        if not d:
            nothing = np.empty((0, len(actions.discrete_branches)), np.int32)
            return ActionBatch(np.empty((0, actions.continuous_size), np.float32), nothing), memories
        wanted = self._outputs.names(deterministic)
        outputs = self._run(
            [*wanted, *([contract.RECURRENT_OUT] if self.memory_size else [])],
            self._inputs(observations, masks, memories),
        )
        for array in outputs[: len(wanted)]:
            check_heads(self._where, self.version, array.reshape(d, -1), observations)
        decided = self._outputs.read(outputs[: len(wanted)], masks, random, deterministic)
        return decided, outputs[-1].reshape(d, self.memory_size) if self.memory_size else memories

    def _run(self, names: list[str], inputs: dict[str, Floats]) -> list[Array]:
        """Return outputs [d, …].

        Recurrent version 2 models run once per agent, because they were traced with one agent.
        """
        if not self._alone:
            return self._runtime.run(names, inputs)
        d = len(inputs[contract.RECURRENT_IN])
        rows = [
            self._runtime.run(names, {name: values[row : row + 1] for name, values in inputs.items()})
            for row in range(d)
        ]
        return [np.concatenate(column) for column in zip(*rows, strict=True)]

    def _inputs(
        self, observations: tuple[Array, ...], masks: NDArray[np.bool_] | None, memories: Floats
    ) -> dict[str, Floats]:
        d, specs = len(memories), self._spec.observations
        inputs = {}
        for name, indices in self._fed.items():
            parts = [unity_input(specs[index], observations[index]) for index in indices]
            inputs[name] = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        if contract.ACTION_MASKS in self._runtime.shapes:
            allowed = np.ones((d, self._spec.actions.mask_size), np.float32)
            inputs[contract.ACTION_MASKS] = allowed if masks is None else masks.astype(np.float32)
        if contract.RECURRENT_IN in self._runtime.shapes:
            inputs[contract.RECURRENT_IN] = memories.reshape(d, 1, self.memory_size)
        return inputs

    def _read_memory_size(self, stated: Mapping[str, Array]) -> int:
        """Return the memory size that the model states; if a conversion dropped it, use the memory input's size."""
        size = whole_numbers(stated.get(contract.MEMORY_SIZE))[0]
        shapes, outputs = self._runtime.shapes, self._runtime.outputs
        if size <= 0 and contract.RECURRENT_IN in shapes and contract.RECURRENT_OUT in outputs:
            size = shapes[contract.RECURRENT_IN][-1] or 0
        if size > 0 and not (contract.RECURRENT_IN in shapes and contract.RECURRENT_OUT in outputs):
            raise StageError(
                f"{self._where}: has a memory of {size} numbers, but lacks {contract.RECURRENT_IN} or "
                f"{contract.RECURRENT_OUT}; export it again with a current version"
            )
        return max(0, size)

    def _check_inputs(self) -> None:
        specs = self._spec.observations
        expected = {name: _shape([specs[index] for index in indices]) for name, indices in self._fed.items()}
        optional = {
            contract.ACTION_MASKS: (self._spec.actions.mask_size,),
            contract.RECURRENT_IN: (1, self.memory_size),
        }
        for name, shape in self._runtime.shapes.items():
            ours = expected.get(name) or optional.get(name)
            if ours is None:
                raise StageError(
                    f"{self._where}: needs an input {name} {_shown(shape)}, but the environment only provides "
                    f"{', '.join(f'{given} {_shown(size)}' for given, size in expected.items())}"
                )
            if len(shape) != len(ours) or any(n not in (None, m) for n, m in zip(shape, ours, strict=True)):
                raise StageError(
                    f"{self._where}: was made for {name} of shape {_shown(shape)}, but the environment provides "
                    f"{self._named(name)} of shape {_shown(ours)}"
                )
        lacking = [name for name in expected if name not in self._runtime.shapes]
        if lacking:
            raise StageError(
                f"{self._where}: has no input {lacking[0]} for the environment's {self._named(lacking[0])}; its inputs "
                f"are {', '.join(self._runtime.shapes)}"
            )

    def _named(self, name: str) -> str:
        """Return the environment's names for the observations that an input holds."""
        specs = self._spec.observations
        return " and ".join(repr(specs[index].name) for index in self._fed.get(name, ())) or name


def _shape(side_by_side: list[ObservationSpec]) -> tuple[int, ...]:
    shapes = [contract.observation_shape(spec) for spec in side_by_side]
    return shapes[0] if len(shapes) == 1 else (sum(shape[0] for shape in shapes),)


def unity_input(spec: ObservationSpec, observation: Array) -> Floats:
    """Convert an observation [n, *shape] to a model's float32 input. Images range from 0 to 1, with channels first."""
    if not spec.shape:
        return observation.reshape(-1, 1).astype(np.float32)
    values: Floats = observation.astype(np.float32)
    if not OBSERVATION_KINDS[spec.kind].pixels:
        return values
    if observation.dtype == np.uint8:
        values /= np.float32(255.0)
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2)) if spec.channels_last else values


def _shown(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("any" if n is None else str(n) for n in shape) + "]"
