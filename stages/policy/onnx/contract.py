"""What an `.onnx` file contains: names in ML-Agents' formats (version 3; version 2 in 1.x packages), notes, a checksum.

Unity runs the model once on zeros and reads the constants among the outputs; then it sets the inputs by name. The notes
and the checksum are Headrace's additions; the notes are the spec that the policy was trained with, and the policy's
step.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.errors import SpecError
from headrace.queues.specs import BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError

VERSION = 3
"""The format version that Headrace writes."""
VERSIONS = (2, 3)
"""The format versions that Headrace reads."""
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

VECTOR_OBSERVATION = "vector_observation"
"""Version 2's input for all vectors, concatenated."""
ACTION = "action"
"""Output with all of a behaviour's actions in version 2, before hybrid actions existed."""
IS_CONTINUOUS = "is_continuous_control"
"""Output in version 2 that is 0 if `ACTION` has discrete actions."""

METADATA = (CONTINUOUS_SIZE, DISCRETE_SIZES, IS_CONTINUOUS)
ACTIONS = (CONTINUOUS, DISCRETE, ACTION)

STATED = (VERSION_NUMBER, MEMORY_SIZE, CONTINUOUS_SIZE, DISCRETE_SIZES)
"""Outputs that are constants."""

FORBIDDEN = 1e8
"""Subtracted from forbidden choices' logits. An all-zero mask lowers all logits equally, without producing NaN."""


def before_units(output: str) -> str:
    """Return the name of Headrace's own output for the actions in `output`, before conversion to `ActionUnits`.

    Headrace runs models by these outputs, because its environment stage converts actions itself.
    """
    return f"policy_{output}"


def observation_name(index: int) -> str:
    """Return the name of an observation's input, given the observation's index in the spec."""
    return f"obs_{index}"


def observation_inputs(observations: Sequence[ObservationSpec], version: int) -> dict[str, tuple[int, ...]]:
    """Return the inputs for observations: each input's name with the indices of the observations it concatenates.

    In version 2 all vectors share one input, images are numbered separately, and sets are named as in version 3.
    """
    if version >= VERSION:
        return {observation_name(index): (index,) for index in range(len(observations))}
    inputs: dict[str, tuple[int, ...]] = {}
    images = 0
    for index, observation in enumerate(observations):
        kind = OBSERVATION_KINDS[observation.kind]
        if kind.flat:
            inputs[VECTOR_OBSERVATION] = (*inputs.get(VECTOR_OBSERVATION, ()), index)
        elif kind.pixels:
            inputs[f"visual_observation_{images}"] = (index,)
            images += 1
        else:
            inputs[observation_name(index)] = (index,)
    return inputs


def observation_shape(observation: ObservationSpec) -> tuple[int, ...]:
    """Return an observation's shape in a model: images are [channels, height, width]; single numbers are vectors."""
    if OBSERVATION_KINDS[observation.kind].pixels and observation.channels_last:
        height, width, channels = observation.shape
        return (channels, height, width)
    return observation.shape or (1,)


NOTES = "headrace"
"""Key of the notes among the model's properties."""


class ModelMetadata(NamedTuple):
    """The content of a model's notes."""

    spec: BehaviorSpec
    step: int


def noted(spec: BehaviorSpec, step: int) -> str:
    """Return a model's notes as JSON."""
    return json.dumps({"spec": spec.to_plain(), "step": step}, separators=(",", ":"))


def read_notes(properties: Mapping[str, str], where: str) -> ModelMetadata | None:
    """Return a model's notes, or None if another program made the model.

    Args:
        properties: the model's properties.
        where: the file, for messages.

    Raises:
        StageError: if the notes can't be read.
    """
    text = properties.get(NOTES)
    if text is None:
        return None
    try:
        plain = json.loads(text)
        return ModelMetadata(BehaviorSpec.from_plain(plain["spec"]), int(plain["step"]))
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError, SpecError) as error:
        raise StageError(
            f"{where}: its property {NOTES!r} is not in the format that Headrace writes: {error}"
        ) from error


_SEAL = b"\x72\x25\x0a\x11headrace_checksum\x12\x10"
"""Start of a model's last property in ONNX's format (protobuf), up to the property's value: the length and CRC-32 of
all bytes before it, in hexadecimal."""


def sealed(model: bytes) -> bytes:
    """Return a model with its checksum appended as the last property."""
    return model + _SEAL + _checksum(model)


def is_damaged(model: bytes) -> bool:
    """Return True if a model was changed after it was sealed.

    A model without a seal comes from another program. If its length differs, a program that does not know the seal has
    rewritten the model; that does not count as damage.
    """
    at = len(model) - 16
    body, seal, stated = model[: at - len(_SEAL)], model[at - len(_SEAL) : at], model[at:]
    return seal == _SEAL and stated[:8] == _checksum(body)[:8] and stated != _checksum(body)


def _checksum(model: bytes) -> bytes:
    return b"%08x%08x" % (len(model), zlib.crc32(model))
