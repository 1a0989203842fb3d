"""The run's own game on the page, where people play it: its actor draws the frames and receives the keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from headrace.pipeline.control.messages import DirectShow, KeysHeld, PictureTaken, ShowAnnounced
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.coordinator import Coordinator
from headrace.pipeline.main.launcher import ActorSlot
from headrace.pipeline.main.run_part import Run, RunPart
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.monitor.shown_game import ShownGame


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


class OwnGameShow(ShownGame):
    """The game, as seen by the page's server.

    Args:
        send: sends a message to main, from any thread.
        listen: registers a function that main calls with each message from the game, and with None when the game's
            actor starts.
    """

    own = True

    def __init__(
        self,
        send: Callable[[DirectShow | KeysHeld], object],
        listen: Callable[[Callable[[PictureTaken | ShowAnnounced | None], None]], None],
    ) -> None:
        super().__init__("starting")
        self._send_to_main = send
        self._listen = listen

    def join(self, call: Callable[..., None]) -> None:
        """Receive the game's messages in the server's event loop."""
        self._listen(partial(call, self.receive))

    def start(self) -> None:
        """Do nothing: the game runs as long as the run does."""

    def receive(self, message: PictureTaken | ShowAnnounced | None) -> None:
        """Handle a message from the game, or None when its actor starts, possibly to replace a lost one."""
        if message is not None:
            self._see(message)
            return
        self.status = "starting"
        self.tell()

    def _send(self, message: DirectShow | KeysHeld) -> None:
        self._send_to_main(message)


def own_game_of(plan: RunPlan, coordinator: Coordinator) -> OwnGameShow:
    """Return the page's side of the run's own game, in which people play."""
    link: OwnGameLink = coordinator.parts.get("own_game")
    main = asyncio.get_running_loop()
    return OwnGameShow(lambda message: main.call_soon_threadsafe(link.send, message), link.listen)
