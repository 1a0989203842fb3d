"""The link between the page and the run's own game: main forwards messages, because main knows the game's actor."""

from __future__ import annotations

from collections.abc import Callable

from headrace.pipeline.control.messages import DirectShow, KeysHeld, PictureTaken, ShowAnnounced
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.launcher import ActorSlot
from headrace.pipeline.main.run_part import Run, RunPart


class OwnGameLink(RunPart):
    """Carries messages between the page and the game, in main's event loop. The run has one actor if people play.

    Attributes:
        tell: called with each message from the game, and with None whenever the game's actor starts.
    """

    receives = (ShowAnnounced, PictureTaken)

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.tell: Callable[[ShowAnnounced | PictureTaken | None], None] = lambda message: None
        self._order: DirectShow | None = None

    def listen(self, tell: Callable[[ShowAnnounced | PictureTaken | None], None]) -> None:
        """Register the function that receives the game's messages for the page."""
        self.tell = tell

    def send(self, message: DirectShow | KeysHeld) -> None:
        """Forward a message from the page to the game."""
        if isinstance(message, DirectShow):
            self._order = message
        self.run.broadcaster.send_to_sources(message)

    def receive(self, host: HostHandle, message: ShowAnnounced | PictureTaken) -> None:
        """Forward a message from the game to the page."""
        self.tell(message)

    async def actor_started(self, slot: ActorSlot) -> None:
        """Handle an actor's start; the actor may replace one in which a person was playing."""
        self.tell(None)
        if self._order is not None:
            slot.handle.control.send(self._order)
