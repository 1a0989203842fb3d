"""A worker that waits for the Unity Editor, played by the stand-in, which the test starts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from unity_runs import BUILD, PlayedScene, play, reports

from headrace.stages.environments.engines.errors import GameBroken, GameEnded, GameRefused
from headrace.stages.environments.engines.game import GameSettings
from headrace.stages.environments.engines.unity.game import UnityGame
from headrace.stages.environments.engines.unity.side_channels import SideChannels

pytestmark = pytest.mark.lengthy


def editor(port: int, timeout_s: float = 60.0) -> UnityGame:
    return UnityGame(GameSettings(0, port, 1, timeout_s), None, 1, SideChannels)


@asynccontextmanager
async def pressed(port: int, folder: Path, *arguments: str) -> AsyncIterator[PlayedScene]:
    """The user has pressed Play; the end of the scene is waited for."""
    scene = PlayedScene(port, "--report", str(folder), *arguments)
    yield scene
    await asyncio.to_thread(scene.join)


@asynccontextmanager
async def crashing(port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """The Editor as a process of its own, which can be killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(BUILD.parent),
        *("--mlagents-port", str(port)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    yield process
    await process.wait()


async def connect(game: UnityGame, listening: asyncio.Event, tasks: asyncio.TaskGroup) -> asyncio.Task[None]:
    starting = tasks.create_task(game.start())
    await listening.wait()
    listening.clear()
    return starting


async def test_the_run_waits_for_the_editor_and_tells_the_user(free_port, listening, tmp_path, caplog):
    game = editor(free_port)
    async with asyncio.TaskGroup() as tasks:
        starting = await connect(game, listening, tasks)
        async with pressed(free_port, tmp_path) as scene:
            await starting
            await play(game, steps=20)
            await game.close()
        assert scene.returncode == 0
    words = f"Listening on port {free_port}. Start training by pressing the Play button in the Unity Editor, "
    assert words in caplog.text
    assert reports(tmp_path)[0]["messages"] == 21


async def test_stop_in_the_editor_ends_the_run_without_a_failure(free_port, listening, tmp_path):
    game = editor(free_port)
    async with asyncio.TaskGroup() as tasks:
        starting = await connect(game, listening, tasks)
        async with pressed(free_port, tmp_path, "--misbehave", "stop") as scene:
            await starting
            with pytest.raises(GameEnded, match=rf"the Unity Editor \(port {free_port}\) has closed the connection"):
                await play(game, steps=10)
        assert scene.returncode == 0
    assert reports(tmp_path)[0]["reason"] == "Unity has closed the connection"


async def test_a_crash_of_the_editor_between_two_steps_is_noticed(free_port, listening):
    game = editor(free_port, timeout_s=5.0)
    async with asyncio.TaskGroup() as tasks:
        starting = await connect(game, listening, tasks)
        async with crashing(free_port) as process:
            await starting
            await game.request_reset()
            process.kill()
        with pytest.raises(GameBroken, match=r"the Unity Editor .* dropped the connection|hasn't finished its step"):
            await game.request_step({})


async def test_an_editor_without_play_times_out(free_port):
    with pytest.raises(
        GameBroken, match=r"the Unity Editor \(port .*hasn't connected within 0\.2 s\. Start training by pressing"
    ):
        await editor(free_port, timeout_s=0.2).start()


async def test_only_one_run_can_wait_for_the_editor(free_port, listening):
    first = editor(free_port)
    async with asyncio.TaskGroup() as tasks:
        starting = await connect(first, listening, tasks)
        with pytest.raises(GameRefused, match="The Editor uses no other port, so end the program that listens there"):
            await editor(free_port).start()
        starting.cancel()
