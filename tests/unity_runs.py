"""How tests start the stand-in Unity, and read what it reports."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from unity_client.main import main

from headrace.stages.environments.engines.game import GameSettings
from headrace.stages.environments.engines.unity.environment import UnityEnvironment
from headrace.stages.environments.engines.unity.game import UnityBuild, UnityGame
from headrace.stages.environments.engines.unity.messages import AgentActionProto, ListAgentActionProto
from headrace.stages.environments.engines.unity.side_channels import SideChannels

BUILD = Path(__file__).with_name("unity_client") / "unity_build"
"""Without its extension, as users give it."""

os.environ["UNITY_CLIENT_PYTHON"] = sys.executable


def build(folder: Path, *arguments: str) -> UnityBuild:
    """The stand-in Unity, whose logs and reports go to the folder."""
    return UnityBuild(BUILD, (*arguments, "--report", str(folder)), log_file=folder / "Player-0.log")


_given = 0
"""Ports given to tests so far."""


def free_port(count: int = 1) -> int:
    """The first of some ports in a row that nobody listens to, below those that systems give to their own connections.

    No port comes twice in a row, so that two tests at a time, or two servers of one, have ports of their own.
    """
    global _given
    for base in range(10_000 + (os.getpid() * 16 + _given) % 20_000, 32_000, count):
        _given += count
        if all(is_free(port) for port in range(base, base + count)):
            return base
    raise AssertionError("no free ports")


def is_free(port: int) -> bool:
    """Whether nobody listens to a port."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class PlayedScene:
    """The stand-in in a thread of this process, as an Editor in which the user has pressed Play.

    The start of a program would be most of what a short test takes.
    """

    def __init__(self, port: int, *arguments: str) -> None:
        self.returncode: int | None = None
        given = [*arguments, "--mlagents-port", str(port), "-logFile", os.devnull]  # no words between pytest's dots
        self._thread = threading.Thread(target=self._run, args=(given,), daemon=True)
        self._thread.start()

    def _run(self, arguments: list[str]) -> None:
        self.returncode = main(arguments)

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()


@asynccontextmanager
async def playing(
    folder: Path,
    *arguments: str,
    channels: SideChannels | None = None,
    seed: int = 1,
    listen: str = "localhost",
    max_message_mib: int = 512,
) -> AsyncIterator[UnityGame]:
    """A connected worker and a played scene, whose report goes to the folder, from the start to an orderly end."""
    port = free_port()
    settings = GameSettings(0, port, seed, 60.0, max_message_mib)
    game = UnityGame(settings, None, 1, lambda: channels or SideChannels(), listen)
    scene = PlayedScene(port, "--report", str(folder), *arguments)
    try:
        await game.start()
        yield game
    finally:
        await game.close()
        await asyncio.to_thread(scene.join)


class PlayedEnvironments:
    """Makes low-level environments on played scenes, and ends them."""

    def __init__(self) -> None:
        self._made: list[UnityEnvironment] = []

    def __call__(self, *arguments: object, **options: Any) -> UnityEnvironment:
        port = free_port()
        scene = PlayedScene(port, *map(str, arguments))

        class Played(UnityEnvironment):
            DEFAULT_EDITOR_PORT = port

            def close(self) -> None:
                super().close()
                scene.join()  # its report is written then

        self._made.append(Played(**options))
        return self._made[-1]

    def close(self) -> None:
        """End all; closing twice is allowed."""
        for env in self._made:
            env.close()


def reports(folder: Path) -> list[dict[str, Any]]:
    """What all stand-ins that have ended by themselves say, oldest first."""
    found = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(path.read_text()) for path in found]


class Actor:
    """Answers what a Unity asks, by a rule of the behaviour and the first number that an agent sees.

    By default each is told what it sees, which solves every scene.
    """

    def __init__(self, rule: Callable[[str, float], float] = lambda behavior, seen: seen) -> None:
        self._rule = rule
        self._specs: dict[str, Any] = {}

    def __call__(self, output: Any) -> dict[str, Any]:
        """Actions for all that ask for a decision in a `UnityOutputProto`."""
        for brain in output.rl_initialization_output.brain_parameters:
            self._specs[brain.brain_name] = brain.action_spec
        return {
            behavior: ListAgentActionProto(value=[self._act(behavior, info) for info in asking])
            for behavior, infos in output.rl_output.agentInfos.items()
            if (asking := [info for info in infos.value if not info.done])
        }

    def _act(self, behavior: str, info: Any) -> Any:
        spec = self._specs[behavior]
        told = self._rule(behavior, info.observations[0].float_data.data[0])
        continuous = [told] * spec.num_continuous_actions
        discrete = [int(told > 0)] * spec.num_discrete_actions
        return AgentActionProto(
            continuous_actions=continuous,
            discrete_actions=discrete,
            vector_actions_deprecated=[*continuous, *map(float, discrete)],
        )


async def play(game: UnityGame, steps: int, actor: Actor | None = None) -> Any:
    """Reset a worker and go some steps; what it said last."""
    actor = actor or Actor()
    output = await game.request_reset()
    for _ in range(steps):
        output = await game.request_step(actor(output))
    return output


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and wasn't waited for doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
