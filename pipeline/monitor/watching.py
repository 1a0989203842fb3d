"""Watching and playing on the page: the game as the page's server sees it, and its viewers' WebSockets.

Frames and the game's state go out; requests for players and keys come in. Outgoing binary messages are frames
(`ShownGame.picture`). Outgoing text messages are JSON: the game's state, or an object with an `error`. Incoming text
messages are JSON: one of the `Wish` models.
"""

from __future__ import annotations

import asyncio
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from aiohttp import WSMsgType, hdrs, web
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from headrace.pipeline.control import DirectShow, KeysHeld, PictureTaken, ShowAnnounced
from headrace.startup_context import shortened

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
        parts = {key: (self.players.get(key, "newest"), key in self.persons) for key in ids}
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
        self.viewers = 0
        """Number of connected viewers."""
        self.closed = False
        """True if the game has ended for good."""
        self._alone_since = 0.0

    def join(self, call: Callable[..., None]) -> None:
        """Store the function that schedules calls in the server's event loop; called before the server starts."""
        return

    @abstractmethod
    def start(self) -> None:
        """Start the game, or restart it after a failure; do nothing if it is running."""

    @abstractmethod
    def _send(self, message: DirectShow | KeysHeld) -> None:
        """Send a message to the game's host."""

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Count a viewer in this context; start the game if it is off."""
        self.viewers += 1
        try:
            if self.status == "off":
                self.start()
            yield
        finally:
            self.viewers -= 1
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
        self.closed = True
        self._wake()

    def _handle(self, message: PictureTaken | ShowAnnounced) -> None:
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


MOST_VIEWERS = 50
MOST_BYTES = 4096
"""Maximum size of an incoming message in bytes."""
PATIENCE_S = 15.0
"""Seconds after which a viewer that does not read is disconnected."""
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0)
NOT_ALLOWED = "to take part, start the run with --monitor-control and use the address that it prints"

_Name = Annotated[str, StringConstraints(max_length=500)]
_Key = Annotated[str, StringConstraints(max_length=20)]


class _Wish(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


class Give(_Wish):
    """Change the player on a side."""

    do: Literal["give"]
    side: _Name
    player: _Name


class Take(_Wish):
    """Take over an agent on a side, or give it back."""

    do: Literal["take", "leave"]
    side: _Name


class HoldKeys(_Wish):
    """All keys that are held down now."""

    do: Literal["keys"]
    side: _Name
    number: int = Field(ge=0, lt=2**53)
    held: list[_Key] = Field(max_length=16)


class Pace(_Wish):
    """Pause or resume, or change the speed."""

    do: Literal["pace"]
    paused: bool
    speed: float


class RecordPlay(_Wish):
    """Record the person who plays a side. A message with an empty side ends the recording."""

    do: Literal["record"]
    side: _Name


class Start(_Wish):
    """Restart the game after a failure."""

    do: Literal["start"]


Wish = Annotated[Give | Take | HoldKeys | Pace | RecordPlay | Start, Field(discriminator="do")]
_WISH: TypeAdapter[Wish] = TypeAdapter(Wish)


class WishRefused(Exception):
    """A request that is not granted; the viewer receives the reason."""


class Viewer:
    """One viewer's socket.

    Args:
        show: the game that the viewer watches.
        may_play: True if the viewer has presented the token of a run that allows control.
    """

    def __init__(self, show: ShownGame, may_play: bool) -> None:
        self._show = show
        self._may_play = may_play
        self._numbers: dict[str, int] = {}

    def state(self) -> dict[str, Any]:
        """Return everything that the page shows except the frame."""
        show, order = self._show, self._show.order
        sides = [
            {
                **side,
                "player": order.players.get(side["id"], "newest"),
                "taken": side["id"] in order.persons,
                "mine": order.persons.get(side["id"]) is self,
            }
            for side in show.announced["sides"]
        ]
        return {
            "status": show.status,
            "trouble": show.trouble or show.announced["trouble"],
            "sides": sides,
            "display": show.announced["display"],
            "saved": show.announced["saved"],
            "waits": show.announced["waits"],
            "own": show.own,
            "paused": order.paused,
            "speed": order.speed,
            "recorded": order.recorded,
            "may_play": self._may_play,
        }

    def carry_out(self, text: str) -> None:
        """Carry out a viewer's request.

        Raises:
            WishRefused: if the request is not valid or can't be granted.
        """
        try:
            wish = _WISH.validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            raise WishRefused(f"{'.'.join(map(str, first['loc'])) or 'message'}: {first['msg']}") from None
        if isinstance(wish, Take | HoldKeys | RecordPlay) and not self._may_play:
            raise WishRefused(NOT_ALLOWED)
        if isinstance(wish, Pace) and self._show.own and not self._may_play:
            raise WishRefused(NOT_ALLOWED)
        if isinstance(wish, Give | Pace) and not self._may_play and self._show.order.persons:
            raise WishRefused("a person is playing, and only that person can change this")
        match wish:
            case HoldKeys():
                self._send_keys(wish)
                return
            case Give():
                self._give(wish)
            case Take():
                self._take(wish)
            case Pace():
                self._pace(wish)
            case RecordPlay():
                self._record(wish)
            case Start():
                self._show.start()
        self._show.direct()

    def leave(self) -> None:
        """Release the sides that the viewer has taken; called when the socket is closed."""
        persons = self._show.order.persons
        left = [side for side, viewer in persons.items() if viewer is self]
        for side in left:
            self._release(side)
        if left:
            self._show.direct()

    def _release(self, side: str) -> None:
        order = self._show.order
        order.persons.pop(side, None)
        if order.recorded == side:
            order.recorded = ""

    def _send_keys(self, wish: HoldKeys) -> None:
        if self._show.order.persons.get(wish.side) is not self:
            return  # the message was in flight when the viewer left the side
        if wish.number > self._numbers.get(wish.side, -1):
            self._numbers[wish.side] = wish.number
            self._show.hold_keys(wish.side, tuple(wish.held))

    def _give(self, wish: Give) -> None:
        side = self._side(wish.side)
        if self._show.own:
            raise WishRefused("this is the game that the run learns from, where the configuration sets who plays")
        if wish.player not in side["choices"]:
            choices = ", ".join(side["choices"])
            raise WishRefused(f"unknown player '{wish.player}' for {side['name']}; available: {choices}")
        self._show.order.players[wish.side] = wish.player

    def _take(self, wish: Take) -> None:
        side = self._side(wish.side)
        persons = self._show.order.persons
        if wish.do == "leave":
            if persons.get(wish.side) is self:
                self._release(wish.side)
            return
        if persons.get(wish.side, self) is not self:
            raise WishRefused(f"another person is already playing for {side['name']}")
        if not side["playable"]:
            raise WishRefused(
                f"a person can play for {side['name']} in the game that the run learns from only with 'brain: player'"
            )
        for taken in [taken for taken, viewer in persons.items() if viewer is self]:
            self._release(taken)  # a viewer can play only one side at a time
        persons[wish.side] = self

    def _pace(self, wish: Pace) -> None:
        if wish.speed not in SPEEDS:
            raise WishRefused(f"the speed can be {', '.join(f'{speed:g}' for speed in SPEEDS)}, not {wish.speed:g}")
        self._show.order.paused, self._show.order.speed = wish.paused, wish.speed

    def _record(self, wish: RecordPlay) -> None:
        if wish.side:
            self._side(wish.side)
            if self._show.own:
                raise WishRefused(
                    "the game that the run learns from can be recorded only by the run: start the run with --record, "
                    "and 'broadcast: true'"
                )
            if self._show.order.persons.get(wish.side) is not self:
                raise WishRefused("only your own play can be recorded: take over the side first")
        self._show.order.recorded = wish.side

    def _side(self, side: str) -> dict[str, Any]:
        sides: dict[str, dict[str, Any]] = {entry["id"]: entry for entry in self._show.announced["sides"]}
        if side not in sides:
            raise WishRefused(f"unknown side '{side}'; available: {', '.join(sides) or 'none yet'}")
        return sides[side]


def watching(show: ShownGame, may_play: Callable[[web.Request], bool]) -> Callable[[web.Request], Any]:
    """Return the handler for the viewers' WebSocket.

    Args:
        show: the game to watch.
        may_play: returns True for a request from a viewer who may take part.
    """

    async def respond(request: web.Request) -> web.WebSocketResponse:
        if show.viewers >= MOST_VIEWERS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_VIEWERS} viewers are already watching")
        socket = web.WebSocketResponse(max_msg_size=MOST_BYTES, heartbeat=PATIENCE_S, compress=False)
        if not socket.can_prepare(request):
            raise web.HTTPUpgradeRequired(text="this path is for a WebSocket", headers={hdrs.UPGRADE: "websocket"})
        await socket.prepare(request)
        if request.transport is not None:
            request.transport.set_write_buffer_limits(high=64 * 1024)
        viewer = Viewer(show, may_play(request))
        async with show.watched():
            try:
                async with asyncio.TaskGroup() as tasks:
                    sending = tasks.create_task(_send(show, viewer, socket))
                    await _receive(viewer, socket)
                    sending.cancel()
            except* (ConnectionResetError, TimeoutError):
                if request.transport is not None:
                    request.transport.abort()
            finally:
                viewer.leave()
        return socket

    return respond


async def _receive(viewer: Viewer, socket: web.WebSocketResponse) -> None:
    async for message in socket:
        if message.type is not WSMsgType.TEXT:
            break
        try:
            viewer.carry_out(message.data)
        except WishRefused as error:
            async with asyncio.timeout(PATIENCE_S):
                await socket.send_str(json.dumps({"error": shortened(str(error))}))


async def _send(show: ShownGame, viewer: Viewer, socket: web.WebSocketResponse) -> None:
    """Send the newest state and frame whenever the viewer has read the last ones, skipping those in between."""
    revision = pictures = -1
    while not show.closed:
        changed = show.changed
        async with asyncio.timeout(PATIENCE_S):
            if revision != show.revision:
                revision = show.revision
                await socket.send_str(json.dumps(viewer.state()))
            if pictures != show.pictures and show.picture:
                pictures = show.pictures
                await socket.send_bytes(show.picture)
        if show.changed is changed:
            await changed.wait()
    with suppress(ConnectionError, TimeoutError):
        await socket.close(code=1001, message=b"the run has ended")
