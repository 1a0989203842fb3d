"""Converts messages to a plain header and a list of arrays, and back: the form that slabs and stream files share.

The header consists of dicts, lists, strings and numbers, so msgpack can write it. It gives each array's offset, dtype
and shape, so `build` needs only the header and one buffer. Nothing is pickled.

`pack` and `unpack` convert plain data to msgpack for internal use, and preserve non-UTF-8 paths and lone surrogates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any

import msgpack
import numpy as np

from headrace.queues.errors import ShapeError
from headrace.queues.messages import (
    Array,
    Barrier,
    Columns,
    DecisionAnswer,
    DecisionRequest,
    Message,
    PolicyAnswer,
    PolicyQuestion,
    PolicyUpdate,
    ReplayRequest,
    ReplaySample,
    StepBatch,
    TrajectoryBatch,
)

ALIGNMENT = 64
"""Arrays start at multiples of this many bytes, so views of them are aligned."""

_ALLOWED_KINDS = "biuf"
_STEP_ARRAYS = (
    *("agent_ids", "env_ids", "episode_ids", "rewards", "terminated", "truncated"),
    *("policy_versions", "generations", "learning", "opponents"),
)
_STEP_GROUPS = ("decisions", "games")
_STEP_OPTIONS = ("group_ids", "group_rewards", "parameters", "env_frames", "undiscounted")
"""Arrays that a step may omit."""
_TRAJECTORY_GROUPS = ("rows", "trajectories", "episodes", "games")


def describe(message: Message) -> tuple[dict[str, Any], list[Array]]:
    """Return a message's header, and its arrays (C-contiguous) in the header's order.

    Raises:
        TypeError: if the object is not a pipeline message.
    """
    named: list[tuple[str, Array]]

    def grouped(groups: Sequence[str]) -> list[tuple[str, Array]]:
        return [(f"{group}/{name}", array) for group in groups for name, array in getattr(message, group).items()]

    match message:
        case TrajectoryBatch():
            fields: dict[str, Any] = {"behavior_id": message.behavior_id, "source": message.source}
            named = grouped(_TRAJECTORY_GROUPS)
        case PolicyUpdate():
            fields = {
                "behavior_id": message.behavior_id,
                "version": message.version,
                "layout": [[name, list(shape)] for name, shape in message.layout],
                "step": message.step,
                "snapshot": message.snapshot,
            }
            named = [("weights", message.weights)]
        case ReplayRequest():
            fields, named = {}, [("counts", message.counts)]
        case ReplaySample():
            fields, named = {}, [*message.columns.items()]
        case DecisionRequest():
            questions = [[q.behavior_id, q.snapshot, q.version, q.greedy, [*q.held]] for q in message.questions]
            fields, named = {"number": message.number, "asked": questions}, _numbered(message.questions)
        case DecisionAnswer():
            versions = [answer.version for answer in message.answers]
            fields, named = {"number": message.number, "versions": versions}, _numbered(message.answers)
        case Barrier():
            fields = {"number": message.number, "source": message.source}
            named = []
        case StepBatch():
            fields = {"behavior_id": message.behavior_id, "ended": message.ended, "tick": message.tick}
            named = [(name, getattr(message, name)) for name in _STEP_ARRAYS]
            named += [(name, array) for name in _STEP_OPTIONS if (array := getattr(message, name)) is not None]
            named += [(f"observations/{i}", array) for i, array in enumerate(message.observations)]
            named += grouped(_STEP_GROUPS)
        case _:
            raise TypeError(f"not a pipeline message: {type(message).__name__}")
    arrays = [np.ascontiguousarray(array) for _, array in named]
    table = [[name, array.dtype.str, list(array.shape)] for (name, _), array in zip(named, arrays, strict=True)]
    return {"type": type(message).__name__, "fields": fields, "arrays": table}, arrays


def offsets(header: Mapping[str, Any]) -> tuple[list[int], int]:
    """Return the offset of each array in the buffer, and the buffer's size in bytes.

    Raises:
        ShapeError: if the header lists an array with a negative size or a non-numeric dtype.
    """
    starts, at = [], 0
    for name, dtype, shape in header["arrays"]:
        starts.append(at)
        kind = _dtype(dtype)
        if kind.kind not in _ALLOWED_KINDS or (shape and min(shape) < 0):
            raise ShapeError(f"array {name!r}: dtype {dtype!r} and shape {shape} can't be sent in a message")
        at += aligned(prod(shape) * kind.itemsize)
    return starts, at


_dtype = lru_cache(maxsize=64)(np.dtype)
"""Returns the NumPy dtype with a given name; cached, because messages use only a few dtypes."""


def aligned(size: int) -> int:
    """Return the number of bytes that an array of `size` bytes takes up, including padding."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def write_arrays(arrays: Sequence[Array], starts: Sequence[int], buffer: memoryview) -> None:
    """Copy the arrays to their offsets in the buffer."""
    for array, start in zip(arrays, starts, strict=True):
        target = np.frombuffer(buffer, array.dtype, array.size, start)
        target[:] = array.reshape(-1)


def read_arrays(header: Mapping[str, Any], buffer: Any) -> list[Array]:
    """Return views into the buffer, one per array in the header; the views keep the buffer alive.

    Raises:
        ShapeError: if the buffer is smaller than the header claims.
    """
    starts, total = offsets(header)
    size = memoryview(buffer).nbytes
    if size < total:
        raise ShapeError(f"the header claims {total} bytes of arrays, but the message has {size}")
    return [
        np.ndarray(shape, _dtype(dtype), buffer, start)
        for (_, dtype, shape), start in zip(header["arrays"], starts, strict=True)
    ]


def build(header: Mapping[str, Any], arrays: Sequence[Array]) -> Message:
    """Rebuild a message from the header and arrays that `describe` returned.

    Raises:
        ShapeError: if the header does not describe a message, or the arrays do not fit together.
    """
    try:
        fields: dict[str, Any] = dict(header["fields"])
        named = {row[0]: array for row, array in zip(header["arrays"], arrays, strict=True)}
        match header["type"]:
            case "TrajectoryBatch":
                groups: dict[str, dict[str, Array]] = {group: {} for group in _TRAJECTORY_GROUPS}
                for name, array in named.items():
                    group, _, column = name.partition("/")
                    groups[group][column] = array
                fields |= groups
                return TrajectoryBatch(**fields)
            case "PolicyUpdate":
                fields["layout"] = tuple((str(name), tuple(int(s) for s in shape)) for name, shape in fields["layout"])
                return PolicyUpdate(weights=named["weights"], **fields)
            case "Barrier":
                return Barrier(**fields)
            case "ReplayRequest":
                return ReplayRequest(named["counts"])
            case "ReplaySample":
                return ReplaySample(named)
            case "DecisionRequest":
                questions = tuple(
                    PolicyQuestion(behavior_id, snapshot, version, greedy, tuple(held), _group(named, str(i)))
                    for i, (behavior_id, snapshot, version, greedy, held) in enumerate(fields["asked"])
                )
                return DecisionRequest(fields["number"], questions)
            case "DecisionAnswer":
                answers = (PolicyAnswer(version, _group(named, str(i))) for i, version in enumerate(fields["versions"]))
                return DecisionAnswer(fields["number"], tuple(answers))
            case "StepBatch":
                observations = tuple(_group(named, "observations").values())
                fields |= {name: named[name] for name in _STEP_ARRAYS}
                fields |= {name: named[name] for name in _STEP_OPTIONS if name in named}
                fields |= {group: _group(named, group) for group in _STEP_GROUPS}
                return StepBatch(observations=observations, **fields)
            case other:
                raise ShapeError(f"unknown message type {other!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise ShapeError(f"not a message header: {error!r}") from error


def _numbered(parts: Sequence[PolicyQuestion | PolicyAnswer]) -> list[tuple[str, Array]]:
    return [(f"{i}/{name}", array) for i, part in enumerate(parts) for name, array in part.columns.items()]


def _group(named: Mapping[str, Array], group: str) -> Columns:
    prefix = f"{group}/"
    return {name.removeprefix(prefix): array for name, array in named.items() if name.startswith(prefix)}


pack = partial(msgpack.packb, use_bin_type=True, unicode_errors="surrogatepass")
unpack = partial(msgpack.unpackb, raw=False, strict_map_key=False, unicode_errors="surrogatepass")
