"""The run's own game on the page, where people play it: its actor draws the frames and receives the keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from headrace.pipeline.control.messages import DirectShow, KeysHeld, PictureTaken, ShowAnnounced
from headrace.pipeline.main.coordinator import Coordinator
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.monitor.shown_game import ShownGame
from headrace.pipeline.parts.own_game.main import OwnGameLink


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
