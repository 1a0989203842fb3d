"""Demonstration files as Unity writes them, byte by byte; nothing here uses our own writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.stages.environments.engines.unity.messages import (
    AgentActionProto,
    AgentInfoActionPairProto,
    AgentInfoProto,
    BrainParametersProto,
    DemonstrationMetaProto,
)

BRAIN_AT = 33


def delimited(message: Any) -> bytes:
    data = message.SerializeToString()
    length, head = len(data), b""
    while length > 127:
        head += bytes([length % 128 + 128])
        length //= 128
    return head + bytes([length]) + data


def brain(name: str = "Ball?team=0", continuous: int = 1, branches: tuple[int, ...] = ()) -> Any:
    found = BrainParametersProto(brain_name=name)
    found.action_spec.num_continuous_actions = continuous
    found.action_spec.num_discrete_actions = len(branches)
    found.action_spec.discrete_branch_sizes.extend(branches)
    return found


def pair(
    values: list[float],
    reward: float = 0.0,
    done: bool = False,
    interrupted: bool = False,
    agent: int = 0,
    continuous: tuple[float, ...] = (0.5,),
    discrete: tuple[int, ...] = (),
    mask: tuple[bool, ...] = (),
) -> Any:
    """One vector, named `state`; the mask as Unity has it: true = forbidden."""
    info = AgentInfoProto(reward=reward, done=done, max_step_reached=interrupted, id=agent, action_mask=mask)
    observation = info.observations.add(shape=[len(values)], name="state", dimension_properties=[1])
    observation.float_data.data.extend(values)
    action = AgentActionProto(continuous_actions=continuous, discrete_actions=discrete)
    return AgentInfoActionPairProto(agent_info=info, action_info=action)


def episode(length: int, agent: int = 0, first: float = 0.0, interrupted: bool = False) -> list[Any]:
    """Steps first, first + 1, … that observe and do their number / 100, and are rewarded with it; and the ending."""
    numbers = [first + i for i in range(length + 1)]
    return [
        pair([n / 100], (n - 1) / 100 if i else 0.0, i == length, interrupted and i == length, agent, (n / 100,))
        for i, n in enumerate(numbers)
    ]


def unity_file(path: Path, pairs: list[Any], name: str = "Expert", closed: bool = True, described: Any = None) -> Path:
    """A file as Unity leaves it: one that was closed has its header once more behind the pairs, without its length."""
    data = bytearray(delimited(DemonstrationMetaProto(api_version=1, demonstration_name=name)).ljust(BRAIN_AT, b"\0"))
    data[BRAIN_AT:] = delimited(described or brain()) + b"".join(delimited(each) for each in pairs)
    if closed:
        ended = sum(each.agent_info.done for each in pairs)
        meta = DemonstrationMetaProto(
            api_version=1,
            demonstration_name=name,
            number_steps=len(pairs),
            number_episodes=ended + 1,
            mean_reward=sum(each.agent_info.reward for each in pairs) / (ended + 1),
        )
        data += meta.SerializeToString()
        data[: len(delimited(meta))] = delimited(meta)
    path.write_bytes(data)
    return path
