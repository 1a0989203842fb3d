"""A game is started, answers, and is ended; whatever it does instead is named, with what to do, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import struct
from functools import partial

import numpy as np
import pytest
from godot_runs import build_in, game_of

from headrace.queues.messages import ActionBatch
from headrace.stages.environments.engines.errors import GameBroken, GameEnded, GameRefused
from headrace.stages.environments.engines.game import GameSettings
from headrace.stages.environments.engines.godot.game import GodotBuild, GodotGame
from headrace.stages.environments.engines.godot.messages import action_message, behaviors_of_agents

PRESS = action_message([b'{"press":1}'] * 4)


def is_gone(game):
    return game.pid is None or not os.path.exists(f"/proc/{game.pid}")


async def begun(folder, *arguments, **how):
    game = game_of(folder, *arguments, **how)
    await game.start()
    await game.request_reset()
    return game


async def test_a_game_announces_itself_answers_and_ends_in_order(tmp_path):
    game = game_of(tmp_path, "--my_key=3")
    await game.start()
    announcement = game.announcement
    assert [agent.policy for agent in announcement.agents] == ["Agent"] * 4
    assert len((await game.request_reset())["obs"]) == 4
    answer = await game.request_step(PRESS)
    assert {len(answer[key]) for key in ("obs", "reward", "done", "info")} == {4}
    assert await game.call("set_lesson_2") == ["set_lesson_2"] * 4
    await game.close()
    await game.close()
    assert is_gone(game)
    log = (tmp_path / "Godot-0.log").read_text()
    assert "--env_seed=7 --disable-render-loop --headless --speedup=1 --my_key=3" in log
    assert "lesson 2" in log


@pytest.mark.parametrize("generation", ["size", "dict", "names", "info"])
async def test_all_generations_are_understood(tmp_path, generation):
    game = game_of(tmp_path, f"--generation={generation}")
    await game.start()
    announcement = game.announcement
    assert len(announcement.agents) == 4
    assert {"obs"} == {*announcement.agents[3].observations}
    assert len((await game.request_reset())["obs"]) == 4
    assert ("info" in await game.request_step(PRESS)) == (generation == "info")
    await game.close()


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("fault", "kind", "problem"),
    [
        ("exit0", GameEnded, "quit with return code 0"),
        ("exit3", GameBroken, "ended with return code 3.*The end of .*Godot-0.log"),
        ("cut", GameBroken, "in the middle of an answer"),
        ("garbage", GameBroken, "invalid JSON"),
    ],
)
async def test_a_fault_in_a_step_is_named_and_ends_the_game(tmp_path, fault, kind, problem):
    game = await begun(tmp_path, f"--fault={fault}", "--fault_at=1")
    with pytest.raises(kind, match=f"(?s){problem}"):
        await game.request_step(PRESS)
    assert is_gone(game)
    await game.close()


async def test_a_crash_of_a_headless_game_with_images_names_the_fix(tmp_path):
    game = await begun(tmp_path, "--game=picture", "--fault=exit11", "--fault_at=1")
    with pytest.raises(GameBroken, match="return code 11; its agents observe images.*no_graphics.*xvfb-run"):
        await game.request_step(action_message([b'{"side":1}'] * 4))
    await game.close()


@pytest.mark.lengthy
async def test_a_game_that_hangs_is_killed_after_the_time_limit(tmp_path):
    game = game_of(tmp_path, "--fault=hang", "--fault_at=1", timeout_s=5)
    await game.start()
    await game.request_reset()
    game.timeout_s = 0.2
    with pytest.raises(GameBroken, match="hasn't finished its step within 0.2 s.*timeout_wait"):
        await game.request_step(PRESS)
    assert is_gone(game)


async def test_an_answer_that_comes_twice_is_not_taken_for_the_next_one(tmp_path):
    game = await begun(tmp_path, "--fault=twice", "--fault_at=1")
    await game.request_step(PRESS)
    with pytest.raises(GameBroken, match="that was not requested"):
        for _ in range(1000):
            await game.call("wait")
    await game.close()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("--fault=start", "--status=0"),
            "return code 0 before it announced its agents; does its main scene have a Sync node",
        ),
        (("--fault=type", "--fault_at=0"), "expected 'env_info'"),
        (("--agents=0",), "at least one agent"),
    ],
)
async def test_a_fault_at_the_start_is_named(tmp_path, arguments, problem):
    game = game_of(tmp_path, *arguments)
    with pytest.raises(GameBroken, match=problem):
        await game.start()
    assert is_gone(game)


@pytest.mark.lengthy
async def test_a_build_that_never_calls_is_killed(tmp_path):
    game = game_of(tmp_path, "--fault=mute", timeout_s=0.3)
    with pytest.raises(GameBroken, match=r"hasn't connected within 0.3 s.*Sync node.*--port"):
        await game.start()
    assert is_gone(game)


async def test_a_port_in_use_is_refused_with_the_fix(tmp_path):
    holder = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = holder.sockets[0].getsockname()[1]
    with pytest.raises(GameRefused, match=f"port {port} .* in use.*--base-port"):
        await GodotGame(GameSettings(0, port, 0, 5, 8), GodotBuild(build_in(tmp_path))).start()
    with pytest.raises(GameRefused, match=f"port {port} .* in use.*The editor always uses"):
        await GodotGame(GameSettings(0, port, 0, 5, 8), None).start()
    holder.close()


async def test_the_run_waits_for_the_editor_and_ends_with_it():
    game = GodotGame(GameSettings(0, 0, 0, 20, 8), None)
    starting = asyncio.create_task(game.start())
    for _ in range(1000):
        if game.port:
            break
        await asyncio.sleep(0)
    reader, writer = await asyncio.open_connection("127.0.0.1", game.port)
    for _ in ("handshake", "env_info"):
        (size,) = struct.unpack("<I", await reader.readexactly(4))
        await reader.readexactly(size)
    message = b'{"type":"env_info","obs_size":1,"action_space":{"a":{"size":2,"action_type":"discrete"}},"n_agents":1}'
    for part in (struct.pack("<I", len(message)), message[:9], message[9:]):  # the addon writes in parts
        writer.write(part)
        await writer.drain()
    await starting
    assert len(game.announcement.agents) == 1
    assert game.name == f"Godot's editor (port {game.port})"
    stepping = asyncio.create_task(game.request_step(PRESS))
    await reader.readexactly(4)
    writer.close()
    with pytest.raises(GameEnded, match="was stopped"):
        await stepping
    await game.close()


def test_the_command_line_is_what_engine_and_addon_read(tmp_path):
    build = GodotBuild(
        build_in(tmp_path),
        ("--level=4",),
        headless=False,
        speedup=2.5,
        fixed_fps=60,
        action_repeat=4,
        parameters={"gravity": 0.5},
    )
    assert build.command(11010, 2**31 + 5)[1:] == [
        *("--port=11010", "--env_seed=5", "--fixed-fps", "60", "--action_repeat=4", "--speedup=2.5"),
        *("--gravity=0.5", "--level=4"),
    ]


async def test_a_call_that_reaches_no_agent_is_warned_of_once_with_the_games_log(tmp_path, caplog):
    game = await begun(tmp_path)
    assert [await game.call(f"lacked_{number}") for number in (2, 3)] == [[], []]
    await game.close()
    assert len(caplog.messages) == 1
    assert "the game answers null to the call of 'lacked_2' (environment.calls)" in caplog.text
    assert "Nonexistent function 'lacked_2'" in caplog.text


def in_a_run(folder, *arguments, pictures="auto"):
    """A game whose agents are those of a run."""
    build = GodotBuild(build_in(folder), arguments, log_file=folder / "Godot-0.log")
    roles = partial(behaviors_of_agents, roles={}, unnamed=None, listed=())
    return GodotGame(GameSettings(0, 0, 7, 30.0), build, roles, pictures)


async def test_spaces_that_are_refused_come_with_the_games_log(tmp_path):
    game = in_a_run(tmp_path, "--game=picture", pictures="refuse")
    with pytest.raises(GameRefused, match=r"(?s)the image 'camera_2d'.*The end of .*Godot-0.log:.*--game=picture"):
        await game.start()
    await game.close()


async def test_an_observation_that_does_not_fit_comes_with_the_games_log(tmp_path):
    game = in_a_run(tmp_path, "--fault=null", "--fault_at=1")
    with pytest.raises(GameBroken, match=r"(?s)has null .*get_obs.*The end of .*Godot-0.log:.*--fault=null"):
        await game.begin()
        await game.step({"Agent": ActionBatch(np.zeros((4, 0), np.float32), np.ones((4, 1), np.int32))})
    await game.close()
