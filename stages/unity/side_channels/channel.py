"""What a side channel is."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod

from stages.unity.side_channels.messages import IncomingMessage, OutgoingMessage


class SideChannel(ABC):
    """One kind of messages, known on both sides by its id. Derive from it to make your own.

    Those of ML-Agents have the same methods, so one written for it can be used unchanged.

    Attributes:
        message_queue: messages that leave with the next order to Unity, the oldest first.

    Args:
        channel_id: the same as in Unity's class.
    """

    def __init__(self, channel_id: uuid.UUID) -> None:
        self._channel_id = channel_id
        self.message_queue: list[bytes | bytearray] = []

    @property
    def channel_id(self) -> uuid.UUID:
        """By which Unity knows it."""
        return self._channel_id

    @abstractmethod
    def on_message_received(self, msg: IncomingMessage) -> None:
        """Take a message of Unity; the messages of a step come in their order."""

    def queue_message_to_send(self, msg: OutgoingMessage) -> None:
        """Send a message with the next order to Unity."""
        self.message_queue.append(bytes(msg.buffer))


class SendingChannel(SideChannel):
    """A channel on which Unity has nothing to say."""

    def on_message_received(self, msg: IncomingMessage) -> None:
        """Drop it: no package sends any."""
