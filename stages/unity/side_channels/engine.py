"""How Unity runs: picture size, quality, pace."""

from __future__ import annotations

import math
import uuid
from enum import IntEnum

from stages.unity.errors import ChannelMisused
from stages.unity.side_channels.channel import SendingChannel
from stages.unity.side_channels.messages import OutgoingMessage


class _Kind(IntEnum):
    """What a message sets."""

    SCREEN = 0
    QUALITY = 1
    TIME_SCALE = 2
    TARGET_FRAME_RATE = 3
    CAPTURE_FRAME_RATE = 4


class EngineConfigurationChannel(SendingChannel):
    """Sets how Unity runs; what is never set stays as Unity has it."""

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
        """Set what is given; each is one message.

        Args:
            width: of the window in pixels; together with the height.
            height: of the window in pixels.
            quality_level: index of Unity's quality settings.
            time_scale: how much faster than the clock the game goes.
            target_frame_rate: frames per second to aim at; -1 for as many as can be.
            capture_frame_rate: frames per second of the game's time, each rendered however long it takes.

        Raises:
            ChannelMisused: if only one of width and height is given, or the time scale is no number from 0.
        """
        if (width is None) != (height is None):
            raise ChannelMisused(f"engine settings: width {width} and height {height} can only be set together")
        if time_scale is not None and not (math.isfinite(time_scale) and time_scale >= 0):
            raise ChannelMisused(f"engine settings: time_scale is {time_scale}, expected a number of at least 0")
        if width is not None and height is not None:
            self._send(_Kind.SCREEN, width, height)
        if quality_level is not None:
            self._send(_Kind.QUALITY, quality_level)
        if time_scale is not None:
            message = OutgoingMessage()
            message.write_int32(_Kind.TIME_SCALE)
            message.write_float32(time_scale)
            self.queue_message_to_send(message)
        if target_frame_rate is not None:
            self._send(_Kind.TARGET_FRAME_RATE, target_frame_rate)
        if capture_frame_rate is not None:
            self._send(_Kind.CAPTURE_FRAME_RATE, capture_frame_rate)

    def _send(self, kind: _Kind, *values: int) -> None:
        message = OutgoingMessage()
        message.write_int32(kind)
        for value in values:
            message.write_int32(value)
        self.queue_message_to_send(message)
