"""ML-Agents' side channels: engine settings, environment parameters, float properties, raw bytes, and statistics.

`SideChannelBridge` uses them to send a run's engine settings and environment parameters, and passes on statistics.
"""

from __future__ import annotations

import logging
import math
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from typing import Any

import numpy as np

from headrace.config import ConstantSampler, EngineSettings, GaussianSampler, MultiRangeSampler, UniformSampler
from headrace.config.environment_parameters import ParameterValue
from headrace.stages.environments.engines.unity.errors import ChannelMisused
from headrace.stages.environments.engines.unity.side_channels.channel import (
    IncomingMessage,
    OutgoingMessage,
    SendingChannel,
    SideChannel,
    SideChannels,
)
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.protocol import StatisticValues

log = logging.getLogger(__name__)

FLOAT_PROPERTIES = uuid.UUID("60ccf7d0-4f7e-11ea-b238-784f4387d1f7")


class _Kind(IntEnum):
    SCREEN = 0
    QUALITY = 1
    TIME_SCALE = 2
    TARGET_FRAME_RATE = 3
    CAPTURE_FRAME_RATE = 4


class EngineConfigurationChannel(SendingChannel):
    """Sends engine settings; settings that are never sent keep Unity's values."""

    def __init__(self) -> None:
        super().__init__(uuid.UUID("e951342c-4f7e-11ea-b238-784f4387d1f7"))

    def set_configuration_parameters(
        self,
        width: int | None = None,
        height: int | None = None,
        quality_level: int | None = None,
        time_scale: float | None = None,
        target_frame_rate: int | None = None,
        capture_frame_rate: int | None = None,
    ) -> None:
        """Send the given settings, one message each.

        Args:
            width: width of the window in pixels. Requires `height` too.
            height: height of the window in pixels.
            quality_level: index of Unity's quality settings.
            time_scale: ratio of game time to real time.
            target_frame_rate: frames per second; -1 for no limit.
            capture_frame_rate: frames per second of game time, each rendered however long it takes.

        Raises:
            ChannelMisused: if only one of width and height is given, or the time scale is negative or not finite.
        """
        if (width is None) != (height is None):
            raise ChannelMisused(f"engine settings: width {width} and height {height} can only be set together")
        if time_scale is not None and not (math.isfinite(time_scale) and time_scale >= 0):
            raise ChannelMisused(f"engine settings: time_scale must be a non-negative number, got {time_scale}")
        if width is not None and height is not None:
            self._send(_Kind.SCREEN, width, height)
        if quality_level is not None:
            self._send(_Kind.QUALITY, quality_level)
        if time_scale is not None:
            self._send(_Kind.TIME_SCALE, float(time_scale))
        if target_frame_rate is not None:
            self._send(_Kind.TARGET_FRAME_RATE, target_frame_rate)
        if capture_frame_rate is not None:
            self._send(_Kind.CAPTURE_FRAME_RATE, capture_frame_rate)

    def _send(self, kind: _Kind, *values: int | float) -> None:
        message = OutgoingMessage()
        message.write_int32(kind)
        for value in values:
            if isinstance(value, float):
                message.write_float32(value)
            else:
                message.write_int32(value)
        self.queue_message_to_send(message)


class _Type(IntEnum):
    FLOAT = 0
    SAMPLER = 1


class _Sampler(IntEnum):
    UNIFORM = 0
    GAUSSIAN = 1
    MULTI_RANGE = 2


class EnvironmentParametersChannel(SendingChannel):
    """Sends environment parameters; a scene uses a new value when its next episode begins."""

    def __init__(self) -> None:
        super().__init__(uuid.UUID("534c891e-810f-11ea-a9d0-822485860400"))

    def set_parameter(self, key: str, value: ParameterValue, seed: int) -> None:
        """Set a parameter to a value from the YAML.

        Args:
            key: the parameter's name.
            value: a number, or a sampler.
            seed: the seed for a sampler without its own seed.

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
        """Make Unity draw a parameter from a range."""
        message = _sampler(key, seed, _Sampler.UNIFORM)
        message.write_float32(min_value)
        message.write_float32(max_value)
        self.queue_message_to_send(message)

    def set_gaussian_sampler_parameters(self, key: str, mean: float, st_dev: float, seed: int) -> None:
        """Make Unity draw a parameter around a mean."""
        message = _sampler(key, seed, _Sampler.GAUSSIAN)
        message.write_float32(mean)
        message.write_float32(st_dev)
        self.queue_message_to_send(message)

    def set_multirangeuniform_sampler_parameters(
        self, key: str, intervals: Sequence[tuple[float, float]], seed: int
    ) -> None:
        """Make Unity draw a parameter from several ranges."""
        message = _sampler(key, seed, _Sampler.MULTI_RANGE)
        message.write_float32_list(list(chain.from_iterable(intervals)))
        self.queue_message_to_send(message)


def _message(key: str, kind: _Type) -> OutgoingMessage:
    if not key.isascii():
        raise ChannelMisused(f"environment parameter {key!r}: Unity accepts only ASCII names; rename it")
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


class FloatPropertiesChannel(SideChannel):
    """Keeps the latest values of float properties, the predecessor of environment parameters. Both sides can set them.

    Args:
        channel_id: the channel's id. It must be given for a second channel of this kind.
    """

    def __init__(self, channel_id: uuid.UUID | None = None) -> None:
        super().__init__(channel_id or FLOAT_PROPERTIES)
        self._values: dict[str, float] = {}

    def on_message_received(self, msg: IncomingMessage) -> None:
        """Store a value that Unity has set."""
        key = msg.read_string()
        self._values[key] = msg.read_float32()

    def set_property(self, key: str, value: float) -> None:
        """Set a value here and in Unity."""
        message = OutgoingMessage()
        message.write_string(key)
        message.write_float32(value)
        self._values[key] = value
        self.queue_message_to_send(message)

    def get_property(self, key: str) -> float | None:
        """Return the value, or None if neither side has set it."""
        return self._values.get(key)

    def list_properties(self) -> list[str]:
        """Return the names of all values."""
        return list(self._values)

    def get_property_dict_copy(self) -> dict[str, float]:
        """Return a dict of all values, keyed by name."""
        return dict(self._values)


class RawBytesChannel(SideChannel):
    """Sends bytes, and stores received bytes until they are read."""

    def __init__(self, channel_id: uuid.UUID) -> None:
        super().__init__(channel_id)
        self._received: list[bytes] = []

    def on_message_received(self, msg: IncomingMessage) -> None:
        """Store a message from Unity."""
        self._received.append(msg.get_raw_bytes())

    def get_and_clear_received_messages(self) -> Sequence[bytes]:
        """Return all messages since the last call, oldest first."""
        received, self._received = self._received, []
        return received

    def send_raw_data(self, data: bytes | bytearray) -> None:
        """Send bytes with the next exchange."""
        message = OutgoingMessage()
        message.set_raw_bytes(data)
        self.queue_message_to_send(message)


class StatsAggregationMethod(IntEnum):
    """Aggregation of a statistic's values within a summary period."""

    AVERAGE = 0
    MOST_RECENT = 1
    SUM = 2
    HISTOGRAM = 3


StatList = list[tuple[float, StatsAggregationMethod]]


class StatsSideChannel(SideChannel):
    """Stores the values that Unity records, until the caller reads them."""

    def __init__(self) -> None:
        super().__init__(uuid.UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520"))
        self._stats: dict[str, StatList] = {}
        self._warned: set[int] = set()

    def on_message_received(self, msg: IncomingMessage) -> None:
        """Store a value."""
        key = msg.read_string()
        value = msg.read_float32()
        self._stats.setdefault(key, []).append((value, self._method(msg.read_int32(), key)))

    def get_and_reset_stats(self) -> Mapping[str, StatList]:
        """Return the values since the last call, keyed by name, oldest first, each with its aggregation method."""
        stats, self._stats = self._stats, {}
        return stats

    def _method(self, number: int, key: str) -> StatsAggregationMethod:
        if number in StatsAggregationMethod._value2member_map_:
            return StatsAggregationMethod(number)
        if number not in self._warned:
            self._warned.add(number)
            log.warning(
                "Unity records %r with the unknown aggregation method %d; Headrace averages its values",
                key,
                number,
            )
        return StatsAggregationMethod.AVERAGE


_HOW = {
    StatsAggregationMethod.AVERAGE: "mean",
    StatsAggregationMethod.MOST_RECENT: "last",
    StatsAggregationMethod.SUM: "sum",
    StatsAggregationMethod.HISTOGRAM: "histogram",
}


class SideChannelBridge:
    """The side channels of one connection to Unity, and the settings that were sent over them.

    Args:
        engine: settings to send with the first message.
        parameters: the run's environment parameters; None if the run has none.
        worker_id: the Unity program's number in the run.
        seed: the seed for samplers without their own seed.
        channels: the user's side channels.
    """

    def __init__(
        self,
        engine: EngineSettings,
        parameters: EpisodeParameters | None,
        worker_id: int,
        seed: int,
        channels: Iterable[Any] = (),
    ) -> None:
        self.generation = 0
        """Generation of the parameters that were sent last."""
        self.parameters = parameters
        self._worker_id = worker_id
        self._seed = seed
        self._sent: dict[str, ParameterValue] = {}
        self._parameters_channel = EnvironmentParametersChannel()
        self._stats = StatsSideChannel()
        engine_channel = EngineConfigurationChannel()
        engine_channel.set_configuration_parameters(
            width=engine.width,
            height=engine.height,
            quality_level=engine.quality_level,
            time_scale=engine.time_scale,
            target_frame_rate=engine.target_frame_rate,
            capture_frame_rate=engine.capture_frame_rate,
        )
        self.all: tuple[SideChannel, ...] = (engine_channel, self._parameters_channel, self._stats, *channels)
        """All channels: the standard ones and the user's."""
        self.channels = SideChannels(self.all, f"Unity worker {worker_id}")
        """Converts all channels' messages to and from bytes."""

    def outgoing(self) -> bytes:
        """Return and clear all channels' queued messages, with the parameters that have changed."""
        self.update()
        return self.channels.outgoing()

    def incoming(self, data: bytes) -> None:
        """Handle messages from Unity. Raises the same errors as `SideChannels.incoming`."""
        self.channels.incoming(data)

    def update(self) -> None:
        """Queue the changed parameters for the next message.

        Unchanged parameters are not sent, because sending a sampler again would restart its sequence.
        """
        parameters = self.parameters
        if parameters is None or (self._sent and parameters.generation == self.generation):
            return
        self.generation = parameters.generation
        for name, value in parameters.values.items():
            if self._sent.get(name) != value:
                self._sent[name] = value
                self._parameters_channel.set_parameter(name, value, self._sampler_seed(name))

    def statistics(self) -> Mapping[str, StatisticValues]:
        """Return the statistics received since the last call."""
        found: dict[str, StatisticValues] = {}
        for name, values in self._stats.get_and_reset_stats().items():
            how = _HOW[values[-1][1]]
            # There is no single newest value for several programs, so the first one's is shown, as in ML-Agents.
            if how != "last" or self._worker_id == 0:
                found[name] = StatisticValues(tuple(value for value, _ in values), how)
        return found

    def _sampler_seed(self, name: str) -> int:
        """Return a distinct seed for each parameter and each Unity program of a run."""
        entropy = [self._seed, zlib.crc32(name.encode()), self._worker_id]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0]) & 0x7FFFFFFF
