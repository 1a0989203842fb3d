"""The content of a demonstration file as arrays: one row for each recorded pair, in the file's order.

A pair is an agent's observation, its reward since the previous pair, and its action. The pair that ends an episode has
the last observation and reward, and a meaningless action. If a recording was stopped mid-episode, some of Unity's
packages write an agent's last pair without an action.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass, fields, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.messages import Array
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.engines.unity.columns import BehaviorReader
from headrace.stages.environments.engines.unity.messages import (
    GOAL_SIGNAL,
    PNG,
    AgentActionProto,
    AgentInfoActionPairProto,
    AgentInfoProto,
    BrainParametersProto,
    DemonstrationMetaProto,
)
from headrace.stages.environments.engines.unity.png import encode_png
from headrace.stages.environments.engines.unity.versions import INTERLEAVED_PACKAGES
from headrace.stages.errors import StageError

log = logging.getLogger(__name__)


META_ROOM = 33
"""Number of bytes for the header and its length. The behaviour's description follows."""
API_VERSIONS = (0, 1)
"""Supported versions of the format; files are written in the newest."""


class DemoReader:
    """A demonstration file; iterating yields its pairs in the order of recording, any number of times.

    Args:
        path: the file.

    Attributes:
        meta: the file's header, a `DemonstrationMetaProto`. Its `number_steps` counts all recorded pairs; 0 for a
            recording that has not been completed.
        brain: the behaviour's `BrainParametersProto`.
        damage: a description of the file's damage, or None if there is none. Known after iterating.

    Raises:
        StageError: if the file can't be read, is not a demonstration, or has an unsupported version.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.damage: str | None = None
        try:
            self._data = self.path.read_bytes()
        except OSError as error:
            raise StageError(f"{self.path}: can't read the demonstration: {error.strerror}") from error
        if not self._data:
            raise StageError(f"{self.path}: the file is empty; record the demonstration again")
        self.meta, self.brain, self._first = self._read_head()

    def __iter__(self) -> Generator[Any, None, None]:
        self.damage = None
        at, count = self._first, 0
        steps = self.meta.number_steps
        if self._data[at:] == self._header:  # written at the end of a recording without steps
            return
        while at < len(self._data) and (steps <= 0 or count < steps):
            try:
                pair, at = _read(AgentInfoActionPairProto, self._data, at)
            except _NotWholeError as error:
                self._lose(at, count, str(error))
                return
            if not pair.agent_info.observations:
                self._lose(at, count, "observes nothing")
                return
            count += 1
            yield pair
        if count < steps:
            self._lose(at, count, "has disappeared")

    def _lose(self, at: int, count: int, why: str) -> None:
        total = f" of {self.meta.number_steps}" if self.meta.number_steps > 0 else ""
        hint = "" if count else "; recordings from before ML-Agents 1.0 have a different format: record it again"
        self.damage = f"{self.path}: truncated or damaged: pair {count + 1}{total}, near byte {at:,}, {why}{hint}"

    def _read_head(self) -> tuple[Any, Any, int]:
        try:
            length, start = read_varint(self._data, 0)
            if start + length > META_ROOM:
                raise _NotWholeError(
                    "its header does not fit the space reserved for it; record it under a shorter name"
                )
            self._header = self._data[start : start + length]
            meta = _parse(DemonstrationMetaProto, self._header)
            if meta.api_version not in API_VERSIONS:
                raise StageError(
                    f"{self.path}: the demonstration has format version {meta.api_version}; expected "
                    f"{' or '.join(map(str, API_VERSIONS))}; record it again with ML-Agents 1.0 to 4.0"
                )
            brain, first = _read(BrainParametersProto, self._data, META_ROOM)
            if not (brain.brain_name or brain.vector_action_size_deprecated or brain.HasField("action_spec")):
                raise _NotWholeError("it describes no behaviour")
        except (_NotWholeError, ValueError) as error:
            raise StageError(
                f"{self.path}: not a demonstration ({error}); expected a .demo file of Unity's Demonstration Recorder"
            ) from error
        return meta, brain, first


class _NotWholeError(Exception):
    """A message is incomplete. The error text is the end of a sentence that begins with "pair 7"."""


def _read(kind: Any, data: bytes, at: int) -> tuple[Any, int]:
    """Read a message, whose length is encoded at offset `at`; return the message and the offset of the next one."""
    try:
        length, start = read_varint(data, at)
    except ValueError as error:
        raise _NotWholeError(str(error)) from error
    if start + length > len(data):
        raise _NotWholeError(f"claims {length:,} bytes, but the file has {max(0, len(data) - start):,} left")
    return _parse(kind, data[start : start + length]), start + length


def _parse(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise _NotWholeError(f"is not a {kind.DESCRIPTOR.name}") from error


def _delimited(message: Any) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    return varint(len(data)) + data


# Varints: protobuf's encoding of message lengths, seven bits per byte, the lowest first.


def varint(value: int) -> bytes:
    """Encode a non-negative number."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode the number at offset `at`; return it and the offset after it.

    Raises:
        ValueError: if the data ends within the number, or the number is wider than 32 bits.
    """
    value = 0
    for i, byte in enumerate(data[at : at + 5]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, at + i + 1
    raise ValueError(f"has no length at byte {at:,}")


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
        none = f"{path}: it contains no steps, because the recording ended before the agent's first decision"
        raise StageError(reader.damage or f"{none}; record the demonstration again")
    agent, first.agent_info.id = first.agent_info.id, 1
    try:
        decoder = BehaviorReader(reader.brain, first.agent_info, str(path))
    except StageError as error:
        raise _wrong_pair(error) from error
    _warn_of_raw_images(decoder.spec, path)
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
        path: the file, which must not exist yet. Its folder is created.
        steps: the pairs. Images have their channels first; observations other than bytes are float32.
        name: the recording's name, cut to fit into the header.

    Raises:
        StageError: if the file already exists, or can't be written.
    """
    last = dict(zip(steps.agent_ids.tolist(), steps.ended.tolist(), strict=True))
    episodes = int(steps.ended.sum()) + sum(not ended for ended in last.values())
    meta = DemonstrationMetaProto(
        api_version=API_VERSIONS[-1],
        demonstration_name=name,
        number_steps=len(steps),
        number_episodes=episodes,
        mean_reward=sum(steps.rewards.tolist()) / max(1, episodes),
    )
    while len(head := _delimited(meta)) > META_ROOM:
        meta.demonstration_name = meta.demonstration_name[:-1]
    actions = steps.spec.actions
    brain = BrainParametersProto(brain_name=steps.spec.behavior_id)
    brain.action_spec.num_continuous_actions = actions.continuous_size
    brain.action_spec.num_discrete_actions = len(actions.discrete_branches)
    brain.action_spec.discrete_branch_sizes.extend(actions.discrete_branches)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(head.ljust(META_ROOM, b"\0") + _delimited(brain))
            file.writelines(map(_delimited, _pairs(steps)))
    except FileExistsError as error:
        raise StageError(f"{path}: the file already exists; remove it, or choose another name") from error
    except OSError as error:
        raise StageError(f"{path}: can't write the demonstration: {error.strerror}") from error


def _warn_of_raw_images(spec: BehaviorSpec, path: Path) -> None:
    floats = (observed for observed in spec.observations if observed.kind == "image" and observed.dtype == "float32")
    if raw := [observed.name for observed in floats if not observed.channels_last]:
        log.warning(
            "%s: holds uncompressed images (%s). If it was recorded with com.unity.ml-agents %s, the pixels are in the "
            "wrong order, and the file has no sign of this: record it again with the sensor's Compression set to PNG",
            *(path, ", ".join(raw), " or ".join(INTERLEAVED_PACKAGES)),
        )


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
    observations = tuple(np.concatenate(pieces) for pieces in zip(*(part.observations for part in parts), strict=True))
    return replace(first, observations=observations, **columns)


def _pairs(steps: DemoSteps) -> Iterator[Any]:
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
        action = AgentActionProto(continuous_actions=continuous, discrete_actions=discrete)
        yield AgentInfoActionPairProto(agent_info=info, action_info=action)


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
