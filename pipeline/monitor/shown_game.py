"""A game on the page, as its server sees it: what is asked of it, its newest picture, and what is said about it."""

from __future__ import annotations

import asyncio
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from headrace.pipeline.control.messages import DirectShow, KeysHeld, PictureTaken, ShowAnnounced

_HEADER = struct.Struct("<I")


@dataclass
class ShowOrder:
    """What is asked of the show."""

    players: dict[str, str] = field(default_factory=dict)
    """By behaviour id; `newest` where it is left out."""
    persons: dict[str, object] = field(default_factory=dict)
    """By behaviour id: the viewer who plays."""
    paused: bool = False
    speed: float = 1.0
    recorded: str = ""

    def message(self) -> DirectShow:
        """Return it as the message to whoever plays the game."""
        ids = dict.fromkeys((*self.players, *self.persons))
        parts = {each: (self.players.get(each, "newest"), each in self.persons) for each in ids}
        return DirectShow(parts, self.paused, self.speed, self.recorded)


class ShownGame(ABC):
    """One game for all who watch. All calls come from the loop of the page's server.

    Pictures are not queued: each viewer gets the newest one when it has read the last.

    Args:
        status: at the start.
        trouble: why it can't be shown; empty if it can.
    """

    own = False
    """True if it is the run's own game, so that whatever is done to it is done to the run."""

    def __init__(self, status: str, trouble: str = "") -> None:
        self.order = ShowOrder()
        self.status = status
        """`refused`, `off`, `starting`, `on` or `failed`."""
        self.trouble = trouble
        self.announced: Mapping[str, Any] = {"sides": [], "display": None, "saved": "", "trouble": "", "waits": ""}
        self.picture = b""
        """The newest picture: length of the JSON (4 bytes, little-endian), JSON, image."""
        self.pictures = 0
        self.revision = 0
        """Rises when anything but the picture has changed."""
        self.changed = asyncio.Event()
        self._keys = 0
        self._viewers = 0
        self._alone_since = 0.0
        self._closed = False

    def join(self, call: Callable[..., None]) -> None:
        """Learn how to call something in the loop of the page's server; before it starts."""
        return

    @abstractmethod
    def start(self) -> None:
        """Begin, also again after a failure; nothing if it goes on."""

    @abstractmethod
    def _send(self, message: DirectShow | KeysHeld) -> None:
        """Send a message to whoever plays the game."""

    @property
    def viewers(self) -> int:
        """The number of those who watch."""
        return self._viewers

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Somebody watches within: the show begins, if it has not failed."""
        self._viewers += 1
        try:
            if self.status == "off":
                self.start()
            yield
        finally:
            self._viewers -= 1
            self._alone_since = asyncio.get_running_loop().time()

    def direct(self) -> None:
        """Pass the mapping on, as it has changed."""
        self._send(self.order.message())
        self.tell()

    def hold_keys(self, behavior_id: str, keys: tuple[str, ...]) -> None:
        """Pass on which keys the person holds who plays for a behaviour id."""
        self._keys += 1
        self._send(KeysHeld(behavior_id, self._keys, keys))

    def tell(self) -> None:
        """Let all viewers look again."""
        self.revision += 1
        self._wake()

    async def close(self) -> None:
        """End the show for good, and the viewers' sockets."""
        self._closed = True
        self._wake()

    @property
    def closed(self) -> bool:
        """True if it has ended for good."""
        return self._closed

    def _see(self, message: PictureTaken | ShowAnnounced) -> None:
        """Take what comes from whoever plays the game."""
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
