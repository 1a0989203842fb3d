"""The run's own game on the page, where persons play in it: its actor makes the pictures, and takes the keys."""

from __future__ import annotations

from collections.abc import Callable

from headrace.pipeline.control.messages import DirectShow, KeysHeld, PictureTaken, ShowAnnounced
from headrace.pipeline.monitor.shown_game import ShownGame


class OwnGameShow(ShownGame):
    """The game as the page's server sees it.

    Args:
        send: takes a message to main, from any thread.
    """

    own = True

    def __init__(self, send: Callable[[DirectShow | KeysHeld], None]) -> None:
        super().__init__("starting")
        self._send_to_main = send

    def start(self) -> None:
        """Do nothing: it goes on with the run."""

    def receive(self, message: PictureTaken | ShowAnnounced | None) -> None:
        """Take what the game says; None: its actor is started, maybe in the place of one that was lost."""
        if message is not None:
            self._see(message)
            return
        self.status = "starting"
        self.tell()

    def _send(self, message: DirectShow | KeysHeld) -> None:
        self._send_to_main(message)
