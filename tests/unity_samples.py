"""Unity's messages as tests write them: agents, observations, behaviours."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from headrace.stages.environments.engines.unity.messages import (
    DEFAULT,
    NONE,
    PNG,
    AgentInfoProto,
    BrainParametersProto,
    ObservationProto,
)

UNSPECIFIED, PLAIN, TRANSLATION, VARIABLE = 0, 1, 2, 4
CHANNELS_FIRST = (PLAIN, TRANSLATION, TRANSLATION)
CHANNELS_LAST = (TRANSLATION, TRANSLATION, PLAIN)


def numbers(values, *, shape=None, properties=(PLAIN,), name="Vector", kind=DEFAULT):
    """An observation of floats: a vector, unless a shape and properties say otherwise."""
    values = np.asarray(values, np.float32)
    proto = ObservationProto(
        shape=values.shape if shape is None else shape,
        compression_type=NONE,
        dimension_properties=properties,
        observation_type=kind,
        name=name,
    )
    proto.float_data.data.extend(values.ravel().tolist())
    return proto


def picture(data: bytes, shape, *, mapping=(), properties=CHANNELS_FIRST, name="Camera"):
    """An observation of PNG files."""
    return ObservationProto(
        shape=shape,
        compression_type=PNG,
        compressed_data=data,
        compressed_channel_mapping=mapping,
        dimension_properties=properties,
        name=name,
    )


def png(pixels: np.ndarray) -> bytes:
    """One file: RGB of [H, W, 3] and RGBA of [H, W, 4], grey of [H, W] (16 bits of uint16)."""
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """A picture of uint8 noise."""
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def agent(agent_id: int, *observations, reward=0.0, done=False, interrupted=False, mask=(), group=0, group_reward=0.0):
    """What one agent sends."""
    return AgentInfoProto(
        id=agent_id,
        observations=observations,
        reward=reward,
        done=done,
        max_step_reached=interrupted,
        action_mask=mask,
        group_id=group,
        group_reward=group_reward,
    )


def brain(name="Crawler?team=0", *, continuous=0, branches: Sequence[int] = ()):
    """A behaviour as a package of today announces it."""
    proto = BrainParametersProto(brain_name=name)
    proto.action_spec.num_continuous_actions = continuous
    proto.action_spec.num_discrete_actions = len(branches)
    proto.action_spec.discrete_branch_sizes.extend(branches)
    return proto
