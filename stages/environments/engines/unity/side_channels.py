"""Side channels for other messages between Unity and Python: the standard channels, and a base class for others.

Messages hold booleans, integers, floats, strings and lists of floats (little-endian). Methods have ML-Agents' names, so
channels written for it work here. `SideChannels` holds all channels of one worker.

ML-Agents' channels are those for engine settings, environment parameters, float properties, raw bytes, and statistics.
`SideChannelBridge` uses them to send a run's engine settings and environment parameters, and passes on statistics.
"""

from __future__ import annotations

import logging
import math
import struct
import uuid
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from typing import Any

import numpy as np

from headrace.config import ConstantSampler, EngineSettings, GaussianSampler, MultiRangeSampler, UniformSampler
from headrace.config.environment_parameters import ParameterValue
from headrace.stages.environments.engines.errors import GameBroken
from headrace.stages.environments.engines.unity.errors import ChannelMisused
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.protocol import StatisticValues
from headrace.stages.errors import StageError, describe_error

_BOOL = struct.Struct("<?")
_INT = struct.Struct("<i")
_FLOAT = struct.Struct("<f")
log = logging.getLogger(__name__)

_HEAD = struct.Struct("<16si")
"""Header of each message: the channel's id in the byte order of .NET, and the number of bytes that follow."""
TRAINING_ANALYTICS = uuid.UUID("b664a4a9-d86f-5a5f-95cb-e8353a7e8356")
"""Id of the channel that packages use to gather analytics. Headrace ignores its messages."""
STATS = uuid.UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520")


class IncomingMessage:
    """Reads a message from Unity, value by value.

    Reading past the end of a message returns the defaults, because older packages send fewer values.

    Args:
        buffer: the message.
        offset: the offset of the message's first value.
    """

    def __init__(self, buffer: bytes, offset: int = 0) -> None:
        self.buffer = bytes(buffer)
        self.offset = offset

    def read_bool(self, default_value: bool = False) -> bool:
        """Read one byte; anything but 0 is true."""
        return bool(self._unpack(_BOOL, default_value))

    def read_int32(self, default_value: int = 0) -> int:
        """Read four bytes as a signed integer."""
        return int(self._unpack(_INT, default_value))

    def read_float32(self, default_value: float = 0.0) -> float:
        """Read four bytes as a float."""
        return float(self._unpack(_FLOAT, default_value))

    def read_float32_list(self, default_value: Sequence[float] | None = None) -> list[float]:
        """Read a count (int32) and that number of floats; the default is []."""
        data = self._counted(_FLOAT.size)
        if data is None:
            return list(default_value or ())
        return [value for (value,) in _FLOAT.iter_unpack(data)]

    def read_string(self, default_value: str = "") -> str:
        """Read a byte count (int32) and that number of bytes, in ASCII or UTF-8."""
        data = self._counted(1)
        return default_value if data is None else data.decode("utf-8", errors="replace")

    def get_raw_bytes(self) -> bytes:
        """Return the entire message."""
        return self.buffer

    def _next(self, size: int) -> bytes | None:
        """Return the next bytes; if fewer are left, go to the end and return None."""
        end = self.offset + size
        if size < 0 or end > len(self.buffer):
            self.offset = len(self.buffer)
            return None
        data = self.buffer[self.offset : end]
        self.offset = end
        return data

    def _unpack(self, form: struct.Struct, default: Any) -> Any:
        data = self._next(form.size)
        return default if data is None else form.unpack(data)[0]

    def _counted(self, size: int) -> bytes | None:
        count = self._unpack(_INT, None)
        return None if count is None else self._next(count * size)


class OutgoingMessage:
    """Writes a message for Unity, value by value."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def write_bool(self, b: bool) -> None:
        """Write one byte."""
        self.buffer += _BOOL.pack(b)

    def write_int32(self, i: int) -> None:
        """Write four bytes, as a signed integer.

        Raises:
            struct.error: if the value is not an integer, or does not fit.
        """
        self.buffer += _INT.pack(i)

    def write_float32(self, f: float) -> None:
        """Write four bytes, as a float.

        Raises:
            struct.error: if the value is not a number.
            OverflowError: if the number is too large.
        """
        self.buffer += _FLOAT.pack(f)

    def write_float32_list(self, float_list: Sequence[float]) -> None:
        """Write a count, then the floats. Raises the same errors as `write_float32`."""
        data = b"".join(map(_FLOAT.pack, float_list))
        self.write_int32(len(float_list))
        self.buffer += data

    def write_string(self, s: str) -> None:
        """Write a byte count, then the text.

        Raises:
            ChannelMisused: if the text is not ASCII.
        """
        if not s.isascii():
            raise ChannelMisused(f"side channels: {s!r} is not ASCII, and Unity would read '?' for other characters")
        self.write_int32(len(s))
        self.buffer += s.encode()

    def set_raw_bytes(self, buffer: bytes | bytearray) -> None:
        """Set the entire message.

        Raises:
            ValueError: if the message is not empty.
        """
        if self.buffer:
            raise ValueError(f"the message has {len(self.buffer)} bytes, but raw bytes must be the entire message")
        self.buffer = bytearray(buffer)


class SideChannel(ABC):
    """Base class of side channels: each carries one kind of message, and has the same id on both sides.

    Attributes:
        message_queue: messages to send with the next exchange, the oldest first.

    Args:
        channel_id: the channel's id, as in Unity's class.
    """

    def __init__(self, channel_id: uuid.UUID) -> None:
        self._channel_id = channel_id
        self.message_queue: list[bytes | bytearray] = []

    @property
    def channel_id(self) -> uuid.UUID:
        """The channel's id, as in Unity's class."""
        return self._channel_id

    @abstractmethod
    def on_message_received(self, msg: IncomingMessage) -> None:
        """Handle a message from Unity; a step's messages arrive in order."""

    def queue_message_to_send(self, msg: OutgoingMessage) -> None:
        """Send a message with the next exchange."""
        self.message_queue.append(bytes(msg.buffer))


class SendingChannel(SideChannel):
    """A channel from Python to Unity only."""

    def on_message_received(self, msg: IncomingMessage) -> None:
        """Ignore the message; Unity's packages send none on this channel."""


class SideChannels:
    """Collects the channels' outgoing messages, and passes each channel the messages received for it.

    Channels may be instances of ML-Agents' own classes.

    Args:
        channels: all channels of the worker.
        worker: the worker's name (`Unity worker 3`), for messages.

    Raises:
        ChannelMisused: if two channels have the same id.
    """

    def __init__(self, channels: Iterable[SideChannel] = (), worker: str = "Unity") -> None:
        self._worker = worker
        self._by_id: dict[uuid.UUID, SideChannel] = {}
        self._warned = {TRAINING_ANALYTICS}
        for channel in channels:
            other = self._by_id.setdefault(channel.channel_id, channel)
            if other is not channel:
                names = " and ".join(type(same).__name__ for same in (other, channel))
                raise ChannelMisused(
                    f"{worker}: the side channels {names} have the same id, {channel.channel_id}; give each a unique id"
                )

    @property
    def all(self) -> list[SideChannel]:
        """The channels, in the order of sending."""
        return list(self._by_id.values())

    @property
    def by_class(self) -> dict[str, SideChannel]:
        """The channels, keyed by class name. If several channels have the same class, only the last is included."""
        return {type(channel).__name__: channel for channel in self._by_id.values()}

    def outgoing(self) -> bytes:
        """Encode and clear the queued messages, channel by channel, each in order."""
        parts: list[bytes | bytearray] = []
        for channel_id, channel in self._by_id.items():
            for message in channel.message_queue:
                parts += (_HEAD.pack(channel_id.bytes_le, len(message)), message)
            channel.message_queue.clear()
        return b"".join(parts)

    def incoming(self, data: bytes) -> None:
        """Pass each channel its messages, and warn once about each id without a channel.

        Raises:
            GameBroken: if the data can't be decoded; no message is passed on in this case.
            StageError: if a channel fails to handle a message.
        """
        if not data:
            return
        for channel_id, message in list(self._messages(data)):
            channel = self._by_id.get(channel_id)
            if channel is not None:
                self._deliver(channel, message)
            elif channel_id not in self._warned:
                self._warned.add(channel_id)
                log.warning(
                    "%s sends messages on the side channel %s, which nothing reads: Headrace drops them. To read them, "
                    "list the channel's class under env_settings.side_channels (in a script, pass it in side_channels)",
                    self._worker,
                    "StatsSideChannel (of StatsRecorder)" if channel_id == STATS else channel_id,
                )

    def _messages(self, data: bytes) -> Iterator[tuple[uuid.UUID, bytes]]:
        at = 0
        while at < len(data):
            begin = at + _HEAD.size
            if begin > len(data):
                raise self._broken(data, at, f"{_HEAD.size} bytes of its header")
            guid, length = _HEAD.unpack_from(data, at)
            at = begin + length
            if length < 0 or at > len(data):
                size = f"{length:,} bytes" if length >= 0 else "a negative number of bytes"
                raise self._broken(data, begin, f"a message of {size}, according to its header,")
            yield uuid.UUID(bytes_le=guid), data[begin:at]

    def _broken(self, data: bytes, at: int, expected: str) -> GameBroken:
        return GameBroken(
            f"{self._worker}: its side-channel data can't be read: expected {expected} at byte {at}, and "
            f"{len(data) - at} bytes are left of {len(data)}"
        )

    def _deliver(self, channel: SideChannel, message: bytes) -> None:
        try:
            channel.on_message_received(IncomingMessage(message))
        except StageError:
            raise
        except Exception as error:
            raise StageError(
                f"{self._worker}: the side channel {type(channel).__name__} ({channel.channel_id}) failed with a "
                f"message of {len(message)} bytes: {describe_error(error)}"
            ) from error


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
    message = OutgoingMessage()
    message.write_string(key)
    message.write_int32(kind)
    return message


def _sampler(key: str, seed: int, sampler: _Sampler) -> OutgoingMessage:
    message = _message(key, _Type.SAMPLER)
    message.write_int32(seed)
    message.write_int32(sampler)
    return message


def _seed(of_sampler: int, of_run: int) -> int:
    return of_run if of_sampler == -1 else of_sampler


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
        super().__init__(STATS)
        self._stats: dict[str, StatList] = {}

    def on_message_received(self, msg: IncomingMessage) -> None:
        """Store a value."""
        key = msg.read_string()
        value = msg.read_float32()
        self._stats.setdefault(key, []).append((value, StatsAggregationMethod(msg.read_int32())))

    def get_and_reset_stats(self) -> Mapping[str, StatList]:
        """Return the values since the last call, keyed by name, oldest first, each with its aggregation method."""
        stats, self._stats = self._stats, {}
        return stats


_HOW = {
    StatsAggregationMethod.AVERAGE: "mean",
    StatsAggregationMethod.MOST_RECENT: "last",
    StatsAggregationMethod.SUM: "sum",
    StatsAggregationMethod.HISTOGRAM: "histogram",
}


class SideChannelBridge(SideChannels):
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
        standard = (engine_channel, self._parameters_channel, self._stats)
        super().__init__((*standard, *channels), f"Unity worker {worker_id}")

    def outgoing(self) -> bytes:
        """Return and clear all channels' queued messages, with the parameters that have changed."""
        self.update()
        return super().outgoing()

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
                # Each parameter and each Unity program of a run has a distinct seed.
                entropy = [self._seed, zlib.crc32(name.encode()), self._worker_id]
                seed = int(np.random.SeedSequence(entropy).generate_state(1)[0]) & 0x7FFFFFFF
                self._parameters_channel.set_parameter(name, value, seed)

    def statistics(self) -> Mapping[str, StatisticValues]:
        """Return the statistics received since the last call."""
        statistics: dict[str, StatisticValues] = {}
        for name, values in self._stats.get_and_reset_stats().items():
            how = _HOW[values[-1][1]]
            # There is no single newest value for several programs, so the first one's is shown, as in ML-Agents.
            if how != "last" or self._worker_id == 0:
                statistics[name] = StatisticValues(tuple(value for value, _ in values), how)
        return statistics
