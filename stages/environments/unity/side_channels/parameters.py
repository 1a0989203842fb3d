"""The side channel of environment parameters: numbers, or samplers from which Unity draws them itself."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from enum import IntEnum
from itertools import chain

from headrace.config import ConstantSampler, GaussianSampler, MultiRangeSampler, UniformSampler
from headrace.config.environment_parameters import ParameterValue
from headrace.stages.environments.unity.errors import ChannelMisused
from headrace.stages.environments.unity.side_channels.channel import OutgoingMessage, SendingChannel


class _Type(IntEnum):
    """The kind of value in a message."""

    FLOAT = 0
    SAMPLER = 1


class _Sampler(IntEnum):
    """The distribution of a sampler."""

    UNIFORM = 0
    GAUSSIAN = 1
    MULTI_RANGE = 2


class EnvironmentParametersChannel(SendingChannel):
    """Sends environment parameters; a scene uses a new value from its next episode on."""

    def __init__(self) -> None:
        super().__init__(uuid.UUID("534c891e-810f-11ea-a9d0-822485860400"))

    def set_parameter(self, key: str, value: ParameterValue, seed: int) -> None:
        """Set a parameter to a value of the YAML.

        Args:
            key: its name.
            value: a number, or a sampler.
            seed: of a sampler without a seed of its own.

        Raises:
            ChannelMisused: if the key is not ASCII.
        """
        match value:
            case ConstantSampler():
                self.set_float_parameter(key, value.sampler_parameters.value)
            case UniformSampler(sampler_parameters=p):
                self.set_uniform_sampler_parameters(key, p.min_value, p.max_value, _seed(p.seed, seed))
            case GaussianSampler(sampler_parameters=p):
                self.set_gaussian_sampler_parameters(key, p.mean, p.st_dev, _seed(p.seed, seed))
            case MultiRangeSampler(sampler_parameters=p):
                self.set_multirangeuniform_sampler_parameters(key, p.intervals, _seed(p.seed, seed))
            case _:
                self.set_float_parameter(key, value)

    def set_float_parameter(self, key: str, value: float) -> None:
        """Set a parameter to a number."""
        message = _message(key, _Type.FLOAT)
        message.write_float32(value)
        self.queue_message_to_send(message)

    def set_uniform_sampler_parameters(self, key: str, min_value: float, max_value: float, seed: int) -> None:
        """Let Unity draw a parameter from a range."""
        message = _sampler(key, seed, _Sampler.UNIFORM)
        message.write_float32(min_value)
        message.write_float32(max_value)
        self.queue_message_to_send(message)

    def set_gaussian_sampler_parameters(self, key: str, mean: float, st_dev: float, seed: int) -> None:
        """Let Unity draw a parameter around a mean."""
        message = _sampler(key, seed, _Sampler.GAUSSIAN)
        message.write_float32(mean)
        message.write_float32(st_dev)
        self.queue_message_to_send(message)

    def set_multirangeuniform_sampler_parameters(
        self, key: str, intervals: Sequence[tuple[float, float]], seed: int
    ) -> None:
        """Let Unity draw a parameter from several ranges."""
        message = _sampler(key, seed, _Sampler.MULTI_RANGE)
        message.write_float32_list(list(chain.from_iterable(intervals)))
        self.queue_message_to_send(message)


def _message(key: str, kind: _Type) -> OutgoingMessage:
    if not key.isascii():
        raise ChannelMisused(f"environment parameter {key!r}: Unity reads names of ASCII letters only; rename it")
    message = OutgoingMessage()
    message.write_string(key)
    message.write_int32(kind)
    return message


def _sampler(key: str, seed: int, sampler: _Sampler) -> OutgoingMessage:
    message = _message(key, _Type.SAMPLER)
    message.write_int32(seed)
    message.write_int32(sampler)
    return message


def _seed(own: int, other: int) -> int:
    return other if own == -1 else own
