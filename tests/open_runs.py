"""How tests start the stand-in of a game that speaks the open protocol."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

from headrace.stages.environments.engines.game import GameSettings
from headrace.stages.environments.engines.open_protocol.game import OpenBuild, OpenGame

GAME = Path(__file__).with_name("open_game.py")


def game_of(folder: Path, *arguments: str, timeout_s: float = 30.0, max_message_mib: int = 8) -> OpenGame:
    """A worker that starts the stand-in."""
    program = OpenBuild(sys.executable, [str(GAME), *arguments], folder / "Game-0.log")
    return OpenGame(GameSettings(0, 0, 7, timeout_s, max_message_mib), "tcp", program)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def called(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a port that will soon be listened at."""
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0)
