"""The names of ML-Agents' model format, version 3, by which Unity reads an `.onnx` file.

Unity runs the model once on zeros and reads the constants among the outputs; then it sets the inputs by their names.
"""

from __future__ import annotations

from config.observation_kinds import OBSERVATION_KINDS
from queues.specs import ObservationSpec

VERSION = 3
VERSION_NUMBER = "version_number"
MEMORY_SIZE = "memory_size"
ACTION_MASKS = "action_masks"
RECURRENT_IN = "recurrent_in"
RECURRENT_OUT = "recurrent_out"
CONTINUOUS = "continuous_actions"
CONTINUOUS_SIZE = "continuous_action_output_shape"
DETERMINISTIC_CONTINUOUS = "deterministic_continuous_actions"
DISCRETE = "discrete_actions"
DISCRETE_SIZES = "discrete_action_output_shape"
DETERMINISTIC_DISCRETE = "deterministic_discrete_actions"

FORBIDDEN = 1e8
"""Subtracted from the logits of forbidden choices. A mask of zeros forbids all alike, without NaN."""


def observation_name(index: int) -> str:
    """The input for an observation, by its place in the spec."""
    return f"obs_{index}"


def observation_shape(observation: ObservationSpec) -> tuple[int, ...]:
    """An observation's shape in a model: images are [channels, height, width], and a single number is a vector."""
    if OBSERVATION_KINDS[observation.kind].pixels and observation.channels_last:
        height, width, channels = observation.shape
        return (channels, height, width)
    return observation.shape or (1,)
