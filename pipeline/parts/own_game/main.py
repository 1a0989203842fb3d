"""The way between the page and the run's own game, in which persons play: through main, which knows its actor."""

from __future__ import annotations

from collections.abc import Callable

from headrace.pipeline.control.messages import DirectShow, KeysHeld, PictureTaken, ShowAnnounced
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.launcher import ActorSlot
from headrace.pipeline.main.run_part import Run, RunPart


class OwnGameLink(RunPart):
    """Passes on, in main's loop, what the page and the game say to each other; a run with persons has one actor.

    Attributes:
        tell: called with what the game says, and with None whenever its actor is started.
    """

    receives = (ShowAnnounced, PictureTaken)

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.tell: Callable[[ShowAnnounced | PictureTaken | None], None] = lambda message: None
        self._order: DirectShow | None = None

    def listen(self, tell: Callable[[ShowAnnounced | PictureTaken | None], None]) -> None:
        """Let the page hear what the game says."""
        self.tell = tell

    def send(self, message: DirectShow | KeysHeld) -> None:
        """Pass on what the page says."""
        if isinstance(message, DirectShow):
            self._order = message
        self.run.broadcaster.send_to_sources(message)

    def receive(self, host: HostHandle, message: ShowAnnounced | PictureTaken) -> None:
        """Pass on what the game says."""
        self.tell(message)

    async def actor_started(self, slot: ActorSlot) -> None:
        """An actor was started, perhaps in the place of one in which somebody plays."""
        self.tell(None)
        if self._order is not None:
            slot.handle.control.send(self._order)
