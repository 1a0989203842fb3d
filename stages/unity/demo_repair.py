"""Demonstrations whose name was too long: closing them wrote the header over the beginning of what follows it.

That is the length, and the beginning, of the behaviour's description. Its end is still there and tells the actions; the
pairs behind it are whole. Where they begin is found by trying.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from stages.unity.messages import ActionSpecProto, AgentInfoActionPairProto, BrainParametersProto
from stages.unity.varint import read_varint

_FURTHEST = 4096
"""Bytes that a behaviour's description may have left."""
_ACTION_SPEC = b"\x4a"
"""Begins field 9 of `BrainParametersProto`, its last one."""


def damaged_description(data: bytes, end: int, name: str) -> tuple[Any, int] | None:
    """What is left of a description that begins somewhere before `end`, where the header that lies over it ends.

    Args:
        data: the file.
        end: the first byte that may be the description's.
        name: for the behaviour, as its own may be lost.

    Returns:
        `BrainParametersProto` with the actions, and where the first pair begins; None if there is no such place.
    """
    for first in range(end, min(end + _FURTHEST, len(data))):
        left = data[end:first]
        if (spec := _ending_spec(left)) is not None and _is_pair(data, first):
            return BrainParametersProto(brain_name=name, action_spec=spec), first
    return None


def _ending_spec(left: bytes) -> Any | None:
    """The actions that end there, None if none do."""
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
