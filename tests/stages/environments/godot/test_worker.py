"""A game is started, answers, and is ended; whatever it does instead is named, with what to do, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import struct

import pytest
from godot_runs import build_in, worker_of

from headrace.stages.environments.godot.messages import action_message
from headrace.stages.environments.godot.worker import GodotBuild, GodotWorker
from headrace.stages.environments.programs.errors import ProgramBroken, ProgramEnded, ProgramRefused
from headrace.stages.environments.programs.worker import WorkerSettings

PRESS = action_message([b'{"press":1}'] * 4)


def is_gone(worker):
    return worker.pid is None or not os.path.exists(f"/proc/{worker.pid}")


async def begun(folder, *arguments, **how):
    worker = worker_of(folder, *arguments, **how)
    await worker.start()
    await worker.reset()
    return worker


async def test_a_game_announces_itself_answers_and_ends_in_order(tmp_path):
    worker = worker_of(tmp_path, "--my_key=3")
    announcement = await worker.start()
    assert [agent.policy for agent in announcement.agents] == ["Agent"] * 4
    assert len((await worker.reset())["obs"]) == 4
    answer = await worker.step(PRESS)
    assert {len(answer[key]) for key in ("obs", "reward", "done", "info")} == {4}
    assert await worker.call("set_lesson_2") == ["set_lesson_2"] * 4
    await worker.close()
    await worker.close()
    assert is_gone(worker)
    log = (tmp_path / "Godot-0.log").read_text()
    assert "--env_seed=7 --disable-render-loop --headless --speedup=1 --my_key=3" in log
    assert "lesson 2" in log


@pytest.mark.parametrize("generation", ["size", "dict", "names", "info"])
async def test_all_generations_are_understood(tmp_path, generation):
    worker = worker_of(tmp_path, f"--generation={generation}")
    announcement = await worker.start()
    assert len(announcement.agents) == 4
    assert {"obs"} == {*announcement.agents[3].observations}
    assert len((await worker.reset())["obs"]) == 4
    assert ("info" in await worker.step(PRESS)) == (generation == "info")
    await worker.close()


async def test_a_name_beyond_ascii_arrives(tmp_path):
    worker = worker_of(tmp_path, "--game=latin")
    assert (await worker.start()).agents[0].policy == "Réd"
    await worker.close()


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("fault", "kind", "problem"),
    [
        ("exit0", ProgramEnded, "quit with return code 0"),
        ("exit3", ProgramBroken, "ended with return code 3.*The end of .*Godot-0.log"),
        ("cut", ProgramBroken, "in the middle of an answer"),
        ("close", ProgramBroken, "dropped the connection"),
        ("garbage", ProgramBroken, "invalid JSON"),
        ("binary", ProgramBroken, "max_message_mib"),
        ("type", ProgramBroken, "type 'surprise'; expected 'step'"),
    ],
)
async def test_what_goes_wrong_in_a_step_is_named_and_the_game_ended(tmp_path, fault, kind, problem):
    worker = await begun(tmp_path, f"--fault={fault}", "--fault_at=1")
    with pytest.raises(kind, match=f"(?s){problem}"):
        await worker.step(PRESS)
    assert is_gone(worker)
    await worker.close()


async def test_a_crash_of_one_that_draws_no_pictures_is_told_with_the_cure(tmp_path):
    worker = await begun(tmp_path, "--game=picture", "--fault=exit11", "--fault_at=1")
    with pytest.raises(ProgramBroken, match="return code 11; its agents observe images.*no_graphics.*xvfb-run"):
        await worker.step(action_message([b'{"side":1}'] * 4))
    await worker.close()


@pytest.mark.lengthy
async def test_a_game_that_hangs_is_killed_after_the_time_limit(tmp_path):
    worker = worker_of(tmp_path, "--fault=hang", "--fault_at=1", timeout_s=5)
    await worker.start()
    await worker.reset()
    worker.timeout_s = 0.2
    with pytest.raises(ProgramBroken, match="hasn't finished its step within 0.2 s.*timeout_wait"):
        await worker.step(PRESS)
    assert is_gone(worker)


async def test_an_answer_that_comes_twice_is_not_taken_for_the_next_one(tmp_path):
    worker = await begun(tmp_path, "--fault=twice", "--fault_at=1")
    await worker.step(PRESS)
    with pytest.raises(ProgramBroken, match="that was not requested"):
        for _ in range(1000):
            await worker.call("wait")
    await worker.close()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("--fault=start", "--status=0"),
            "return code 0 before it announced its agents; does its main scene have a Sync node",
        ),
        (("--fault=start", "--status=9"), "return code 9 before"),
        (("--fault=exit4", "--fault_at=0"), "return code 4 before"),
        (("--fault=type", "--fault_at=0"), "expected 'env_info'"),
        (("--agents=0",), "at least one agent"),
    ],
)
async def test_what_goes_wrong_at_the_start_is_named(tmp_path, arguments, problem):
    worker = worker_of(tmp_path, *arguments)
    with pytest.raises(ProgramBroken, match=problem):
        await worker.start()
    assert is_gone(worker)


@pytest.mark.lengthy
async def test_a_build_that_never_calls_is_killed(tmp_path):
    worker = worker_of(tmp_path, "--fault=mute", timeout_s=0.3)
    with pytest.raises(ProgramBroken, match=r"hasn't connected within 0.3 s.*Sync node.*--port"):
        await worker.start()
    assert is_gone(worker)


async def test_a_port_in_use_is_refused_with_the_cure(tmp_path):
    holder = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = holder.sockets[0].getsockname()[1]
    with pytest.raises(ProgramRefused, match=f"port {port} .* in use.*--base-port"):
        await GodotWorker(WorkerSettings(0, port, 0, 5, 8), GodotBuild(build_in(tmp_path))).start()
    with pytest.raises(ProgramRefused, match=f"port {port} .* in use.*The editor always uses"):
        await GodotWorker(WorkerSettings(0, port, 0, 5, 8), None).start()
    holder.close()


async def test_a_second_caller_is_turned_away_and_the_first_plays_on(tmp_path, caplog):
    worker = await begun(tmp_path)
    reader, writer = await asyncio.open_connection("127.0.0.1", worker._server.port)
    assert await reader.read() == b""
    writer.close()
    assert "Rejected a second connection to" in caplog.text
    assert (await worker.step(PRESS))["type"] == "step"
    await worker.close()


async def test_the_editor_is_waited_for_and_its_stop_is_an_end():
    worker = GodotWorker(WorkerSettings(0, 0, 0, 20, 8), None)
    starting = asyncio.create_task(worker.start())
    for _ in range(1000):
        if worker._server.port:
            break
        await asyncio.sleep(0)
    reader, writer = await asyncio.open_connection("127.0.0.1", worker._server.port)
    for _ in ("handshake", "env_info"):
        (size,) = struct.unpack("<I", await reader.readexactly(4))
        await reader.readexactly(size)
    message = b'{"type":"env_info","obs_size":1,"action_space":{"a":{"size":2,"action_type":"discrete"}},"n_agents":1}'
    for part in (struct.pack("<I", len(message)), message[:9], message[9:]):  # the addon writes in parts
        writer.write(part)
        await writer.drain()
    assert len((await starting).agents) == 1
    assert worker.name == f"Godot's editor (port {worker._server.port})"
    stepping = asyncio.create_task(worker.step(PRESS))
    await reader.readexactly(4)
    writer.close()
    with pytest.raises(ProgramEnded, match="was stopped"):
        await stepping
    await worker.close()


async def test_an_editor_that_never_calls_is_told_of():
    with pytest.raises(ProgramBroken, match="Press Play, in a scene with a Sync node"):
        await GodotWorker(WorkerSettings(0, 0, 0, 0.05, 8), None).start()


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
