"""The side channel of float properties, which both sides set and read: the predecessor of environment parameters."""

from __future__ import annotations

import uuid

from headrace.stages.environments.unity.side_channels.channel import IncomingMessage, OutgoingMessage, SideChannel

FLOAT_PROPERTIES = uuid.UUID("60ccf7d0-4f7e-11ea-b238-784f4387d1f7")


class FloatPropertiesChannel(SideChannel):
    """Keeps the latest values of both sides.

    Args:
        channel_id: of a second channel of this kind.
    """

    def __init__(self, channel_id: uuid.UUID | None = None) -> None:
        super().__init__(channel_id or FLOAT_PROPERTIES)
        self._values: dict[str, float] = {}

    def on_message_received(self, msg: IncomingMessage) -> None:
        """Keep a value that Unity has set."""
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
        """The value, or None if neither side has set it."""
        return self._values.get(key)

    def list_properties(self) -> list[str]:
        """The names of all values."""
        return list(self._values)

    def get_property_dict_copy(self) -> dict[str, float]:
        """All values by name."""
        return dict(self._values)
