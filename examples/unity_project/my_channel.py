"""A side channel: what Python and the game tell each other beside observations and actions."""

import logging
import uuid

from headrace.unity import OutgoingMessage, SideChannel

log = logging.getLogger("headrace.my_channel")


class Wind(SideChannel):
    """Tells the game how strong the wind is, and logs what the game answers. The C# side has the same id."""

    def __init__(self) -> None:
        super().__init__(uuid.UUID("7c1f3a0e-9a2b-4d35-8f0e-5b7f3a1c2d4e"))
        message = OutgoingMessage()
        message.write_float32(0.3)
        self.queue_message_to_send(message)

    def on_message_received(self, msg):
        log.info("the game says: %s", msg.read_string())
