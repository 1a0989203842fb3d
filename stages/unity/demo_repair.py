"""Repair of demonstrations with too long a name, whose header overwrote the beginning of the behaviour's description.

The end of the description is intact and has the actions; the pairs behind it are whole. Their beginning is found by
trying.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from headrace.stages.unity.messages import ActionSpecProto, AgentInfoActionPairProto, BrainParametersProto
from headrace.stages.unity.varint import read_varint

_FURTHEST = 4096
"""Bytes that may be left of a description."""
_ACTION_SPEC = b"\x4a"
"""Tag of field 9 of `BrainParametersProto`, its last one."""


def damaged_description(data: bytes, end: int, name: str) -> tuple[Any, int] | None:
    """Recover a description that begins before `end`, where the header that overwrote it ends.

    Args:
        data: the file.
        end: the first byte that may be part of the description.
        name: for the behaviour, as its own may be lost.

    Returns:
        `BrainParametersProto` with the actions, and the offset of the first pair; None if none is found.
    """
    for first in range(end, min(end + _FURTHEST, len(data))):
        left = data[end:first]
        if (spec := _ending_spec(left)) is not None and _is_pair(data, first):
            return BrainParametersProto(brain_name=name, action_spec=spec), first
    return None


def _ending_spec(left: bytes) -> Any | None:
    """The action spec at the end of the bytes; None if there is none."""
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
        length, start = read_varint(data, at)
        if not length or start + length > len(data):
            return False
        pair = AgentInfoActionPairProto.FromString(data[start : start + length])
    except (ValueError, DecodeError):
        return False
    return bool(pair.agent_info.observations)
