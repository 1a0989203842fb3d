"""The side channel of raw bytes."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from headrace.stages.environments.unity.side_channels.channel import IncomingMessage, OutgoingMessage, SideChannel


class RawBytesChannel(SideChannel):
    """Sends bytes, and keeps received ones until they are read."""

    def __init__(self, channel_id: uuid.UUID) -> None:
        super().__init__(channel_id)
        self._received: list[bytes] = []

    def on_message_received(self, msg: IncomingMessage) -> None:
        """Keep a message from Unity."""
        self._received.append(msg.get_raw_bytes())

    def get_and_clear_received_messages(self) -> Sequence[bytes]:
        """All messages since the last call, the oldest first."""
        received, self._received = self._received, []
        return received

    def send_raw_data(self, data: bytes | bytearray) -> None:
        """Send bytes with the next exchange."""
        message = OutgoingMessage()
        message.set_raw_bytes(data)
        self.queue_message_to_send(message)
