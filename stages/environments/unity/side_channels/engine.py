"""The side channel of engine settings: window size, quality, time scale, frame rates."""

from __future__ import annotations

import math
import uuid
from enum import IntEnum

from headrace.stages.environments.unity.errors import ChannelMisused
from headrace.stages.environments.unity.side_channels.channel import OutgoingMessage, SendingChannel


class _Kind(IntEnum):
    """The setting in a message."""

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
            width: of the window in pixels; together with the height.
            height: of the window in pixels.
            quality_level: index of Unity's quality settings.
            time_scale: game time per real time.
            target_frame_rate: frames per second; -1 for no limit.
            capture_frame_rate: frames per second of game time, each rendered however long it takes.

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
