"""A side channel: messages between Python and the game, in addition to observations and actions."""

import logging
import uuid

from headrace.unity import OutgoingMessage, SideChannel

log = logging.getLogger("headrace.my_channel")


class Wind(SideChannel):
    """Sends the wind's strength to the game and logs the answer. The channel in C# has the same id."""

    def __init__(self) -> None:
        super().__init__(uuid.UUID("7c1f3a0e-9a2b-4d35-8f0e-5b7f3a1c2d4e"))
        message = OutgoingMessage()
        message.write_float32(0.3)
        self.queue_message_to_send(message)

    def on_message_received(self, msg):
        log.info("the game says: %s", msg.read_string())
