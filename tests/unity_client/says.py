"""What agents of a scene are like and what they say, and how that becomes messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.stages.environments.engines.unity.messages import (
    DEFAULT,
    GOAL_SIGNAL,
    NONE,
    PNG,
    AgentInfoProto,
    BrainParametersProto,
)

VARIABLE = (4, 1)
"""Dimension properties of a list of entities: as many as there are, each with its features."""
PICTURE = (1, 2, 2)
"""Dimension properties of a picture: channels, and two in which it may be shifted."""


@dataclass(frozen=True)
class Sensor:
    """One observation of a behaviour."""

    name: str
    shape: tuple[int, ...]
    dimensions: tuple[int, ...] = ()
    png: bool = False
    mapping: tuple[int, ...] = ()
    goal: bool = False


@dataclass(frozen=True)
class Behavior:
    """What agents of one kind see and may do."""

    name: str
    sensors: tuple[Sensor, ...]
    continuous: int
    branches: tuple[int, ...]


@dataclass
class Say:
    """One agent's word in a message: it has ended, or asks for a decision."""

    behavior: str
    agent: int
    observations: Sequence[Sequence[float] | bytes]
    """Per sensor: flat floats, or PNG files."""
    reward: float = 0.0
    done: bool = False
    interrupted: bool = False
    mask: Sequence[bool] = field(default=())
    """True = forbidden."""
    group: int = 0
    group_reward: float = 0.0


@dataclass(frozen=True)
class Act:
    """What an agent was told to do."""

    continuous: Sequence[float]
    discrete: Sequence[int]


def info_of(say: Say, behavior: Behavior) -> Any:
    """An `AgentInfoProto`."""
    info = AgentInfoProto(
        reward=say.reward,
        done=say.done,
        max_step_reached=say.interrupted,
        id=say.agent,
        action_mask=say.mask,
        group_id=say.group,
        group_reward=say.group_reward,
    )
    for sensor, seen in zip(behavior.sensors, say.observations, strict=True):
        observation = info.observations.add(
            shape=sensor.shape,
            compression_type=PNG if sensor.png else NONE,
            compressed_channel_mapping=sensor.mapping,
            dimension_properties=sensor.dimensions,
            observation_type=GOAL_SIGNAL if sensor.goal else DEFAULT,
            name=sensor.name,
        )
        if isinstance(seen, bytes):
            observation.compressed_data = seen
        else:
            observation.float_data.data.extend(seen)
    return info


def brain_of(behavior: Behavior) -> Any:
    """A `BrainParametersProto`."""
    brain = BrainParametersProto(brain_name=behavior.name, is_training=True)
    brain.action_spec.num_continuous_actions = behavior.continuous
    brain.action_spec.num_discrete_actions = len(behavior.branches)
    brain.action_spec.discrete_branch_sizes.extend(behavior.branches)
    return brain
