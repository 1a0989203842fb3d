"""A game on the page, as seen by the page's server: settings, newest frame and status."""

from __future__ import annotations

import asyncio
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from headrace.pipeline.control import DirectShow, KeysHeld, PictureTaken, ShowAnnounced

_HEADER = struct.Struct("<I")


@dataclass
class ShowOrder:
    """The settings that viewers have requested for the game."""

    players: dict[str, str] = field(default_factory=dict)
    """Name of the player for each behaviour id; `newest` if not set."""
    persons: dict[str, object] = field(default_factory=dict)
    """The viewers who play, keyed by the behaviour id that each has taken over."""
    paused: bool = False
    speed: float = 1.0
    recorded: str = ""

    def message(self) -> DirectShow:
        """Return the settings as a message for the game's host."""
        ids = dict.fromkeys((*self.players, *self.persons))
        parts = {each: (self.players.get(each, "newest"), each in self.persons) for each in ids}
        return DirectShow(parts, self.paused, self.speed, self.recorded)


class ShownGame(ABC):
    """One game for all viewers. All calls come from the server's event loop.

    Frames are not queued: each viewer gets the newest frame when it has read the last one.

    Args:
        status: the initial status.
        trouble: reason why the game can't be shown; empty if it can.
    """

    own = False
    """True if this is the run's own game, in which case each control affects the run."""

    def __init__(self, status: str, trouble: str = "") -> None:
        self.order = ShowOrder()
        self.status = status
        """The status: `refused`, `off`, `starting`, `on` or `failed`."""
        self.trouble = trouble
        self.announced: Mapping[str, Any] = {"sides": [], "display": None, "saved": "", "trouble": "", "waits": ""}
        self.picture = b""
        """The newest frame: the JSON's length (4 bytes, little-endian), followed by the JSON and the image."""
        self.pictures = 0
        self.revision = 0
        """Number of changes so far, other than new frames."""
        self.changed = asyncio.Event()
        self._keys = 0
        self._viewers = 0
        self._alone_since = 0.0
        self._closed = False

    def join(self, call: Callable[..., None]) -> None:
        """Store the function that schedules calls in the server's event loop; called before the server starts."""
        return

    @abstractmethod
    def start(self) -> None:
        """Start the game, or restart it after a failure; do nothing if it is running."""

    @abstractmethod
    def _send(self, message: DirectShow | KeysHeld) -> None:
        """Send a message to the game's host."""

    @property
    def viewers(self) -> int:
        """Number of connected viewers."""
        return self._viewers

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Count a viewer in this context; start the game if it is off."""
        self._viewers += 1
        try:
            if self.status == "off":
                self.start()
            yield
        finally:
            self._viewers -= 1
            self._alone_since = asyncio.get_running_loop().time()

    def direct(self) -> None:
        """Send the changed settings to the game's host, and wake all viewers."""
        self._send(self.order.message())
        self.tell()

    def hold_keys(self, behavior_id: str, keys: tuple[str, ...]) -> None:
        """Send the keys held down by the person who plays for a behaviour id."""
        self._keys += 1
        self._send(KeysHeld(behavior_id, self._keys, keys))

    def tell(self) -> None:
        """Wake all viewers because something other than the frame has changed."""
        self.revision += 1
        self._wake()

    async def close(self) -> None:
        """End the game for good, and close the viewers' sockets."""
        self._closed = True
        self._wake()

    @property
    def closed(self) -> bool:
        """True if the game has ended for good."""
        return self._closed

    def _see(self, message: PictureTaken | ShowAnnounced) -> None:
        """Handle a message from the game's host."""
        if isinstance(message, ShowAnnounced):
            self.announced, self.status = message.values, "on"
            self.tell()
            return
        body = json.dumps(message.values, separators=(",", ":")).encode()
        self.picture = _HEADER.pack(len(body)) + body + message.image
        self.pictures += 1
        self._wake()

    def _wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
