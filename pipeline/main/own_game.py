"""The way between the page and the run's own game, in which persons play: through main, which knows its actor."""

from __future__ import annotations

from collections.abc import Callable

from headrace.pipeline.control.messages import DirectShow, KeysHeld, PictureTaken, ShowAnnounced
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.broadcast import Broadcaster


class OwnGameLink:
    """Passes on, in main's loop, what the page and the game say to each other.

    Args:
        broadcaster: reaches the actor, of which a run with persons has one.

    Attributes:
        tell: called with what the game says, and with None whenever its actor is started.
    """

    def __init__(self, broadcaster: Broadcaster) -> None:
        self.tell: Callable[[ShowAnnounced | PictureTaken | None], None] = lambda message: None
        self._broadcaster = broadcaster
        self._order: DirectShow | None = None

    def send(self, message: DirectShow | KeysHeld) -> None:
        """Pass on what the page says."""
        if isinstance(message, DirectShow):
            self._order = message
        self._broadcaster.send_to_sources(message)

    def source_started(self, source: HostHandle) -> None:
        """A source was started, perhaps in the place of one in which somebody plays."""
        self.tell(None)
        if self._order is not None:
            source.control.send(self._order)
