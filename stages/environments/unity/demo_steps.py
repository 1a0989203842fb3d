"""The content of a demonstration file as arrays: one row for each recorded pair, in the file's order.

A pair is an agent's observation, its reward since the previous pair, and its action. The pair that ends an episode has
the last observation and reward, and a meaningless action. If a recording was stopped mid-episode, some of Unity's
packages write an agent's last pair without an action.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.messages import Array
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.unity.columns import BehaviorReader
from headrace.stages.environments.unity.demo import DemoReader, DemoWriter
from headrace.stages.environments.unity.messages import (
    GOAL_SIGNAL,
    PNG,
    AgentActionProto,
    AgentInfoProto,
    BrainParametersProto,
)
from headrace.stages.environments.unity.png import encode_png
from headrace.stages.errors import StageError

log = logging.getLogger(__name__)

_CHUNK = 512
"""Number of pairs that are decoded together."""


@dataclass(frozen=True, slots=True)
class DemoSteps:
    """P recorded pairs of a behaviour."""

    spec: BehaviorSpec
    """The behaviour's spec, in which images recorded as PNG are uint8, and all other observations float32."""
    observations: tuple[Array, ...]
    """One array [P, *shape] for each observation."""
    rewards: NDArray[np.float32]
    """[P] reward since the agent's previous pair."""
    ended: NDArray[np.bool_]
    """[P] true in the last pair of an episode."""
    interrupted: NDArray[np.bool_]
    """[P] true if the episode was truncated there, by its step limit."""
    agent_ids: NDArray[np.int32]
    """[P] id of each pair's agent."""
    continuous: NDArray[np.float32]
    """[P, C] continuous actions."""
    discrete: NDArray[np.int32]
    """[P, branches] the choice in each branch."""
    action_masks: NDArray[np.bool_] | None
    """[P, choices] true = allowed, all true where an episode ended; None without discrete actions."""
    group_ids: NDArray[np.int32]
    """[P] id of each pair's group, or 0 if there is no group."""
    group_rewards: NDArray[np.float32]
    """[P] the group's reward since the agent's previous pair."""

    def __len__(self) -> int:
        """Return P, the number of pairs."""
        return len(self.rewards)


def read_demo(path: Path) -> DemoSteps:
    """Read all complete pairs; a warning states where a file was cut off.

    Raises:
        StageError: if the file is not a demonstration, has no pairs, or has pairs of different forms; the message names
            the pair.
    """
    reader = DemoReader(path)
    pairs = iter(reader)
    first = next(pairs, None)
    if first is None:
        raise StageError(reader.damage or f"{path}: it contains no steps")
    agent, first.agent_info.id = first.agent_info.id, 1
    try:
        decoder = BehaviorReader(reader.brain, first.agent_info, str(path))
    except StageError as error:
        raise _wrong_pair(error) from error
    first.agent_info.id = agent
    parts: list[DemoSteps] = []
    idle: list[int] = []
    at = 0
    for chunk in chain([[first]], iter(lambda: list(islice(pairs, _CHUNK)), [])):
        idle += [number for number, pair in enumerate(chunk, at) if not (pair.agent_info.done or _acts(pair))]
        parts.append(_decoded(chunk, decoder, at, path))
        at += len(chunk)
    if reader.damage:
        log.warning("%s; the data before that is used", reader.damage)
    steps = _joined(parts)
    _check_idle(steps, idle, path)
    return steps


def write_demo(path: Path, steps: DemoSteps, name: str) -> None:
    """Write pairs to a new file, with images of bytes as PNG and all other observations as floats.

    `read_demo` is the exact inverse.

    Args:
        path: the file, which must not exist yet.
        steps: the pairs. Images have their channels first; observations other than bytes are float32.
        name: the recording's name.

    Raises:
        StageError: if the file already exists, or can't be written.
    """
    with DemoWriter(path, brain_of(steps.spec), name) as writer:
        for info, action in _pairs(steps):
            writer.write(info, action)


def brain_of(spec: BehaviorSpec) -> Any:
    """Return the `BrainParametersProto` of a behaviour."""
    brain = BrainParametersProto(brain_name=spec.behavior_id)
    brain.action_spec.num_continuous_actions = spec.actions.continuous_size
    brain.action_spec.num_discrete_actions = len(spec.actions.discrete_branches)
    brain.action_spec.discrete_branch_sizes.extend(spec.actions.discrete_branches)
    return brain


def _wrong_pair(error: StageError) -> StageError:
    return StageError(str(error).replace(", agent ", ", pair ", 1))  # the decoder got pair numbers as agent ids


def _decoded(pairs: list[Any], decoder: BehaviorReader, at: int, path: Path) -> DemoSteps:
    """Decode pairs; the first one is number `at` in the file, counted from 0."""
    infos = [pair.agent_info for pair in pairs]
    ids = np.array([info.id for info in infos], np.int32)
    ended = np.array([info.done for info in infos], np.bool_)
    interrupted = np.array([info.done and info.max_step_reached for info in infos], np.bool_)
    for number, info in enumerate(infos, at + 1):
        # The decoder reads concurrent agents, so each pair becomes an agent whose episode continues.
        if info.done:
            info.ClearField("action_mask")  # no action follows, and all choices may be forbidden
        info.id, info.done, info.max_step_reached = number, False, False
    try:
        rows = decoder.read(infos)
    except StageError as error:
        raise _wrong_pair(error) from error
    spec = decoder.spec
    actions = [_action(pair.action_info, spec.actions, number, path) for number, pair in enumerate(pairs, at + 1)]
    return DemoSteps(
        spec,
        rows.observations,
        rows.rewards,
        ended,
        interrupted,
        ids,
        np.array([continuous for continuous, _ in actions], np.float32).reshape(len(pairs), -1),
        np.array([discrete for _, discrete in actions], np.int32).reshape(len(pairs), -1),
        rows.action_masks,
        rows.group_ids,
        rows.group_rewards,
    )


def _acts(pair: Any) -> bool:
    action = pair.action_info
    return bool(action.continuous_actions or action.discrete_actions or action.vector_actions_deprecated)


def _action(proto: Any, spec: ActionSpec, number: int, path: Path) -> tuple[list[float], list[int]]:
    """Return the action of a pair, or zeros if the pair has no action."""
    continuous, discrete = list(proto.continuous_actions), list(proto.discrete_actions)
    branches = len(spec.discrete_branches)
    if not continuous and not discrete:  # recorded before hybrid actions
        old = list(proto.vector_actions_deprecated)
        continuous, discrete = old[: spec.continuous_size], [int(value) for value in old[spec.continuous_size :]]
    if not continuous and not discrete:
        return [0.0] * spec.continuous_size, [0] * branches
    if (len(continuous), len(discrete)) != (spec.continuous_size, branches):
        raise StageError(
            f"{path}: pair {number} has {len(continuous)} continuous and {len(discrete)} discrete actions; expected "
            f"{spec.continuous_size} and {branches}, according to the file's description of the behaviour; record it "
            "again"
        )
    return continuous, discrete


def _check_idle(steps: DemoSteps, idle: list[int], path: Path) -> None:
    """Raise an error for pairs without an action (`idle`), unless each is the last pair of its agent."""
    last = {agent: number for number, agent in enumerate(steps.agent_ids.tolist())}
    for number in idle:
        if last[int(steps.agent_ids[number])] != number:
            raise StageError(
                f"{path}: pair {number + 1} has no action, although its agent continues; expected an action in every "
                "pair except the last of an episode; record it again"
            )


def _joined(parts: list[DemoSteps]) -> DemoSteps:
    first = parts[0]
    if len(parts) == 1:
        return first
    columns: dict[str, Any] = {
        column.name: np.concatenate([getattr(part, column.name) for part in parts])
        for column in fields(DemoSteps)
        if column.name not in ("spec", "observations") and getattr(first, column.name) is not None
    }
    observations = tuple(np.concatenate(each) for each in zip(*(part.observations for part in parts), strict=True))
    return replace(first, observations=observations, **columns)


def _pairs(steps: DemoSteps) -> Iterator[tuple[Any, Any]]:
    for row in range(len(steps)):
        info = AgentInfoProto(
            reward=steps.rewards[row],
            done=bool(steps.ended[row]),
            max_step_reached=bool(steps.interrupted[row]),
            id=steps.agent_ids[row],
            group_id=steps.group_ids[row],
            group_reward=steps.group_rewards[row],
        )
        if steps.action_masks is not None and not steps.ended[row]:
            info.action_mask.extend((~steps.action_masks[row]).tolist())
        for spec, values in zip(steps.spec.observations, steps.observations, strict=True):
            _write_observation(info.observations.add(), spec, values[row])
        continuous, discrete = steps.continuous[row].tolist(), steps.discrete[row].tolist()
        yield info, AgentActionProto(continuous_actions=continuous, discrete_actions=discrete)


def _write_observation(proto: Any, spec: ObservationSpec, values: Array) -> None:
    proto.shape.extend(spec.shape)
    proto.name = spec.name
    kind = OBSERVATION_KINDS[spec.kind]
    proto.dimension_properties.extend(kind.unity_dimensions)
    if spec.goal:
        proto.observation_type = GOAL_SIGNAL
    if kind.pixels and spec.dtype == "uint8":
        proto.compression_type = PNG
        proto.compressed_data = encode_png(values)
    else:
        proto.float_data.data.extend(values.ravel().tolist())
