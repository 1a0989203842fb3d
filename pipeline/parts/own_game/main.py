"""The link between the page and the run's own game, in which people play: through main, which knows its actor."""

from __future__ import annotations

from collections.abc import Callable

from headrace.pipeline.control.messages import DirectShow, KeysHeld, PictureTaken, ShowAnnounced
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.launcher import ActorSlot
from headrace.pipeline.main.run_part import Run, RunPart


class OwnGameLink(RunPart):
    """Carries messages between the page and the game in main's loop; a run with people has one actor.

    Attributes:
        tell: called with the game's messages, and with None whenever its actor starts.
    """

    receives = (ShowAnnounced, PictureTaken)

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.tell: Callable[[ShowAnnounced | PictureTaken | None], None] = lambda message: None
        self._order: DirectShow | None = None

    def listen(self, tell: Callable[[ShowAnnounced | PictureTaken | None], None]) -> None:
        """Register the page's function for the game's messages."""
        self.tell = tell

    def send(self, message: DirectShow | KeysHeld) -> None:
        """Forward a message of the page."""
        if isinstance(message, DirectShow):
            self._order = message
        self.run.broadcaster.send_to_sources(message)

    def receive(self, host: HostHandle, message: ShowAnnounced | PictureTaken) -> None:
        """Forward a message of the game."""
        self.tell(message)

    async def actor_started(self, slot: ActorSlot) -> None:
        """Handle an actor's start; it may replace an actor in which a person was playing."""
        self.tell(None)
        if self._order is not None:
            slot.handle.control.send(self._order)
