"""The format of Unity's demonstration files (`.demo`): a header, the behaviour's description, and recorded pairs.

`demo_steps` converts pairs to arrays.

    byte 0   length and `DemonstrationMetaProto`; rewritten when the recording ends; 0 steps until then
    byte 33  length and `BrainParametersProto`
    then     length and `AgentInfoActionPairProto`, for each recorded step

Lengths are varints. Unity leaves a few bytes after the last pair when it closes a file, so the header's number of
steps, unless it is 0, determines the last pair.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from google.protobuf.message import DecodeError

from headrace.stages.environments.unity.messages import (
    ActionSpecProto,
    AgentInfoActionPairProto,
    BrainParametersProto,
    DemonstrationMetaProto,
)
from headrace.stages.errors import StageError

META_ROOM = 33
"""Number of bytes for the header and its length. The behaviour's description follows."""
API_VERSIONS = (0, 1)
"""Supported versions of the format; files are written in the newest."""


@dataclass(frozen=True, slots=True)
class DemoMeta:
    """The header of a recording."""

    name: str
    steps: int = 0
    """Number of recorded pairs, including those that end an episode; 0 for a recording that has not been completed."""
    episodes: int = 0
    mean_reward: float = 0.0
    """Mean reward of an episode."""
    api_version: int = API_VERSIONS[-1]


class DemoReader:
    """A demonstration file; iterating yields its pairs in the order of recording, any number of times.

    Args:
        path: the file.

    Attributes:
        meta: the file's header.
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
        while at < len(self._data) and (not self.meta.steps or count < self.meta.steps):
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
        if count < self.meta.steps:
            self._lose(at, count, "has disappeared")

    def _lose(self, at: int, count: int, why: str) -> None:
        total = f" of {self.meta.steps}" if self.meta.steps else ""
        hint = "" if count else "; recordings from before ML-Agents 1.0 have a different format: record it again"
        self.damage = f"{self.path}: truncated or damaged: pair {count + 1}{total}, near byte {at:,}, {why}{hint}"

    def _read_head(self) -> tuple[DemoMeta, Any, int]:
        try:
            length, start = read_varint(self._data, 0)
            end = start + length
            meta, brain, first = self._overlong(start, end) if end > META_ROOM else self._plain(start, end)
        except (_NotWholeError, ValueError) as error:
            raise StageError(
                f"{self.path}: not a demonstration ({error}); expected a .demo file of Unity's Demonstration Recorder"
            ) from error
        if meta.api_version not in API_VERSIONS:
            raise StageError(
                f"{self.path}: the demonstration has format version {meta.api_version}; expected "
                f"{' or '.join(str(version) for version in API_VERSIONS)}; record it again with ML-Agents 1.0 to 4.0"
            )
        return meta, brain, first

    def _plain(self, start: int, end: int) -> tuple[DemoMeta, Any, int]:
        meta = _meta(_parse(DemonstrationMetaProto, self._data[start:end]))
        if meta.api_version not in API_VERSIONS:
            return meta, None, 0  # the rest may be anything
        brain, first = _read(BrainParametersProto, self._data, META_ROOM)
        if not _describes(brain):
            raise _NotWholeError("it describes no behaviour")
        return meta, brain, first

    def _overlong(self, start: int, end: int) -> tuple[DemoMeta, Any, int]:
        """Read the header of a recording whose name is so long that the header and the description overlap."""
        try:
            brain, first = _read(BrainParametersProto, self._data, META_ROOM)
            if _describes(brain) and first < len(self._data):
                _read(AgentInfoActionPairProto, self._data, first)
                return DemoMeta(""), brain, first  # never closed, so the description is intact
        except _NotWholeError:
            pass
        proto = _parse(DemonstrationMetaProto, self._data[start:end])
        meta = _meta(proto)
        found = damaged_description(self._data, end, meta.name) if proto.demonstration_name else None
        if found is None:
            raise _NotWholeError("its header does not fit the space reserved for it")
        return meta, *found


class DemoWriter:
    """Writes a demonstration file, as a context manager, in one thread.

    A recording that is never closed is readable too.

    Args:
        path: the file, which must not exist yet. Its folder is created.
        brain: the behaviour's `BrainParametersProto`.
        name: the recording's name, cut to fit into the header.

    Raises:
        StageError: if the file exists or can't be made.
    """

    def __init__(self, path: str | os.PathLike[str], brain: Any, name: str) -> None:
        self.path = Path(path)
        self._name = name
        self._steps = self._episodes = 0
        self._rewards = 0.0
        self._open: set[int] = set()
        """Agents whose episodes have not ended."""
        self._closed = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("xb")
        except FileExistsError as error:
            raise StageError(f"{self.path}: the file already exists; remove it, or choose another name") from error
        except OSError as error:
            raise StageError(f"{self.path}: can't create the demonstration: {error.strerror}") from error
        self._write(_head(DemoMeta(name)) + _delimited(brain))

    @property
    def meta(self) -> DemoMeta:
        """The header for the pairs written so far, including those of unfinished episodes."""
        episodes = self._episodes + len(self._open)
        return DemoMeta(self._name, self._steps, episodes, self._rewards / episodes if episodes else 0.0)

    def write(self, agent_info: Any, action: Any) -> None:
        """Append a pair.

        Args:
            agent_info: an `AgentInfoProto` with the observation, and the reward since the agent's last pair.
            action: an `AgentActionProto` with the agent's action, which is meaningless if the episode ended.

        Raises:
            StageError: if the pair can't be written.
            ValueError: if the file is closed.
        """
        if self._closed:
            raise ValueError(f"{self.path}: written to after close()")
        self._write(_delimited(AgentInfoActionPairProto(agent_info=agent_info, action_info=action)))
        self._steps += 1
        self._rewards += agent_info.reward
        if agent_info.done:
            self._open.discard(agent_info.id)
            self._episodes += 1
        else:
            self._open.add(agent_info.id)

    def close(self) -> None:
        """Rewrite the header with its numbers, and close the file; closing twice is allowed.

        Raises:
            StageError: if the header can't be written; the pairs remain readable.
        """
        if self._closed:
            return
        self._closed = True
        with self._file:
            self._file.seek(0)
            self._write(_head(self.meta))

    def __enter__(self) -> DemoWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise StageError(f"{self.path}: can't write the demonstration: {error.strerror}") from error


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


def _describes(brain: Any) -> bool:
    return bool(brain.brain_name or brain.vector_action_size_deprecated or brain.HasField("action_spec"))


def _meta(proto: Any) -> DemoMeta:
    return DemoMeta(
        proto.demonstration_name,
        max(0, proto.number_steps),
        proto.number_episodes,
        proto.mean_reward,
        proto.api_version,
    )


def _head(meta: DemoMeta) -> bytes:
    """Encode the header, with as much of the name as fits."""
    name = meta.name
    while len(found := _delimited(_meta_proto(meta, name))) > META_ROOM:
        name = name[:-1]
    return found.ljust(META_ROOM, b"\0")


def _meta_proto(meta: DemoMeta, name: str) -> Any:
    return DemonstrationMetaProto(
        api_version=meta.api_version,
        demonstration_name=name,
        number_steps=meta.steps,
        number_episodes=meta.episodes,
        mean_reward=meta.mean_reward,
    )


def _delimited(message: Any) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    return varint(len(data)) + data


# Repairs demonstrations whose name was too long, so their header overwrote the start of the behaviour's description.
# The end of the description is intact and contains the actions; the pairs after it are intact. A search finds their
# start.

_FURTHEST = 4096
"""Maximum number of bytes to search for the end of a damaged description."""
_ACTION_SPEC = b"\x4a"
"""Tag of field 9, the last field in `BrainParametersProto`."""


def damaged_description(data: bytes, end: int, name: str) -> tuple[Any, int] | None:
    """Recover a description whose beginning the header has overwritten.

    Args:
        data: the file.
        end: the first byte that may be part of the description.
        name: the name for the behaviour, because the original name may be lost.

    Returns:
        `BrainParametersProto` with the actions, and the offset of the first pair; None if no description is found.
    """
    for first in range(end, min(end + _FURTHEST, len(data))):
        left = data[end:first]
        if (spec := _ending_spec(left)) is not None and _is_pair(data, first):
            return BrainParametersProto(brain_name=name, action_spec=spec), first
    return None


def _ending_spec(left: bytes) -> Any | None:
    """Return the action spec at the end of the bytes; None if there is none."""
    at = left.find(_ACTION_SPEC)
    while at >= 0:
        try:
            length, start = read_varint(left, at + 1)
            if length and start + length == len(left):
                spec = ActionSpecProto.FromString(left[start:])
                if spec.num_continuous_actions > 0 or 0 < spec.num_discrete_actions == len(spec.discrete_branch_sizes):
                    return spec
        except (ValueError, DecodeError):
            pass
        at = left.find(_ACTION_SPEC, at + 1)
    return None


def _is_pair(data: bytes, at: int) -> bool:
    try:
        pair, _ = _read(AgentInfoActionPairProto, data, at)
    except _NotWholeError:
        return False
    return bool(pair.agent_info.observations)


# Varints: protobuf's encoding of message lengths, seven bits per byte, the lowest first.


def varint(value: int) -> bytes:
    """Encode a non-negative number."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


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
