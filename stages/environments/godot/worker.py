"""One Godot game: its command line, and the order of the addon's messages.

`programs/worker.py` handles failures of the program; `messages` converts the content of messages.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from headrace.stages.environments.godot.announcement import Announcement, BadAnnouncement, is_picture, read_announcement
from headrace.stages.environments.godot.messages import (
    CLOSE,
    ENV_INFO,
    HANDSHAKE,
    NO_WINDOW,
    RESET,
    call_of,
    read_message,
)
from headrace.stages.environments.programs.process import Launch, find_executable
from headrace.stages.environments.programs.server import TcpServer
from headrace.stages.environments.programs.worker import GameWorker, Wording, WorkerSettings

log = logging.getLogger(__name__)

DEFAULT_PORT = 11008
"""The addon's port if no `--port` is given, as in the editor."""
_SYNC_NODE = "a Sync node with Control Mode 'Training'"
_WORDING = Wording(
    program="Godot worker",
    unstarted="Godot's editor",
    invitation=f"Start training by pressing Play in Godot's editor, in a scene with {_SYNC_NODE}.",
    next_start="the next Play",
    needs=f"does its main scene have {_SYNC_NODE}",
    argument="--port",
    late=f"Press Play, in a scene with {_SYNC_NODE}; restart a game that is already running, since it tries to connect "
    "only once, a second after its start",
    stranger="Is the program on this port really a game with the Godot RL Agents addon?",
    paused="its scene is paused, or an error in its scripts prevents an answer",
    taken_port="The editor always uses this port, so end the program that listens there, most likely another training "
    "run; or export the game and train with --env, on a port chosen by --base-port",
)
ENGINE = "Godot"
_WITHOUT_WINDOW = ("--disable-render-loop", "--headless")
_FIXED_FPS = "--fixed-fps"
_SEED = 0x7FFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class GodotBuild(Launch):
    """A Godot build and the options to start it with."""

    headless: bool = True
    """True to run without a window, and so without camera images."""
    speedup: float | None = 1.0
    """Multiple of the game's normal speed, set by its physics rate and time scale; None for the scene's own value."""
    fixed_fps: int | None = None
    """Frames per second of game time, run as fast as the machine allows; None for real time."""
    action_repeat: int | None = None
    """Physics frames between decisions; None for the scene's own value."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    """Initial environment parameters, passed as arguments."""

    def command(self, port: int, seed: int) -> list[str]:
        """Return the program and the engine's, addon's and user's arguments. Raises the same errors as `Launch`."""
        command = [str(find_executable(Path(self.path), ENGINE)), f"--port={port}", f"--env_seed={seed & _SEED}"]
        if self.headless:
            command += _WITHOUT_WINDOW
        if self.fixed_fps is not None:
            command += [_FIXED_FPS, str(self.fixed_fps)]
        if self.action_repeat is not None:
            command.append(f"--action_repeat={self.action_repeat}")
        if self.speedup is not None:
            command.append(f"--speedup={self.speedup:g}")
        command += [f"--{name}={value:g}" for name, value in self.parameters.items()]
        return [*command, *self.arguments]


class GodotWorker(GameWorker):
    """One game: a build that the worker starts, or the editor, in which the user presses Play.

    The order of calls is `start`, `reset`, then `step`, with `call` between them; each waits for the game's answer for
    at most `timeout_s`.

    Args:
        settings: the worker's settings. Port 0 is allowed only if a build is given.
        build: the build to start; None for the editor.
    """

    def __init__(self, settings: WorkerSettings, build: GodotBuild | None) -> None:
        super().__init__(settings, TcpServer(settings.port, settings.max_message_mib * 2**20), build, _WORDING)
        self._headless = build is not None and build.headless
        self._blind = False
        """True if the agents observe images, but the game renders none."""

    def read(self, content: bytes) -> dict[str, Any]:
        """Read a message from the addon."""
        return read_message(content)

    def say_goodbye(self) -> None:
        """Send the message that makes the game quit."""
        self._server.send(CLOSE)

    async def start(self) -> Announcement:
        """Listen, start the build or wait for the editor, and request the announcement.

        Releases all resources after a failure or cancellation.

        Raises:
            ProgramRefused: if the port is in use, or the build does not exist.
            ProgramBroken: if the game exits, or does not announce its agents in time.
            ProgramEnded: if the game closes normally.
        """
        try:
            await self._connected()
            self._server.send(HANDSHAKE)
            message = await self._ask(ENV_INFO, "env_info", "has connected, but has not announced its agents")
            try:
                announcement = read_announcement(message)
            except BadAnnouncement as error:
                raise self._broken(str(error)) from None
        except BaseException:
            await self._release()
            raise
        self._announced = True
        self._blind = self._headless and any(
            map(is_picture, chain.from_iterable(a.observations for a in announcement.agents))
        )
        log.info("Connected to %s: %d agents.", self.name, len(announcement.agents))
        return announcement

    def _suspicion(self) -> str:
        return f"; its agents observe images, and {NO_WINDOW}" if self._blind else ""

    async def reset(self) -> dict[str, Any]:
        """Reset all agents; return the answer. Raises the same errors as `step`."""
        return await self._ask(RESET, "reset", "has not answered a reset request")

    async def step(self, message: bytes) -> dict[str, Any]:
        """Send the agents' actions, a message from `action_message`; return the answer.

        Raises:
            ProgramBroken: if the game died, did not answer, dropped the connection, or broke the protocol.
            ProgramEnded: if the game has closed normally.
        """
        return await self._ask(message, "step", "hasn't finished its step")

    async def call(self, method: str) -> list[Any]:
        """Call a method on all agents; return their results. Raises the same errors as `step`."""
        message = await self._ask(call_of(method), "call", f"has not answered a call of {method!r}")
        returned = message.get("returns")
        return returned if isinstance(returned, list) else []
