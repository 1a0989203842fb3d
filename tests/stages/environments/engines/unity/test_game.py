"""A Unity worker with the stand-in Unity, a process of its own, as its executable."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import grpc.aio
import pytest
from unity_runs import BUILD, Actor, alive, build, play, playing, reports

from headrace.stages.environments.engines.errors import GameBroken, GameEnded, GameRefused
from headrace.stages.environments.engines.game import GameSettings
from headrace.stages.environments.engines.unity.game import UnityBuild, UnityGame
from headrace.stages.environments.engines.unity.messages import (
    CLOSE,
    EXCHANGE,
    OK,
    UnityMessageProto,
)
from headrace.stages.environments.engines.unity.side_channels import SideChannels
from headrace.stages.errors import StageError

PATIENCE_S = 60.0
"""Of workers whose Unity behaves."""

MakeGame = Callable[..., UnityGame]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[MakeGame]:
    """Makes workers with the stand-in's arguments, and closes them at the end."""
    if sys.platform == "win32":
        pytest.skip("the stand-in's build is a script, and Windows starts none")
    made: list[UnityGame] = []

    def make_game(
        *arguments: str,
        executable: UnityBuild | None = None,
        port: int = 0,
        channels: SideChannels | None = None,
        seed: int = 1,
        num_areas: int = 1,
        listen: str = "localhost",
        max_message_mib: int = 512,
    ) -> UnityGame:
        game = UnityGame(
            GameSettings(len(made), port, seed, PATIENCE_S, max_message_mib),
            executable or build(tmp_path, *arguments),
            num_areas,
            lambda: channels or SideChannels(),
            listen,
        )
        made.append(game)
        return game

    yield make_game
    for game in made:
        game.timeout_s = 0.1
        await game.close()


@asynccontextmanager
async def started(game: UnityGame) -> AsyncIterator[UnityGame]:
    """A worker from its start to its orderly end."""
    await game.start()
    yield game
    await game.close()


@pytest.mark.lengthy
async def test_the_handshake_exchanges_versions_seed_and_areas(make, tmp_path):
    async with started(make("--package-version", "2.3.0-exp.3", seed=4711, num_areas=6)) as game:
        assert game.greeting is not None
        assert (game.greeting.package_version, game.greeting.communication_version) == ("2.3.0-exp.3", "1.5.0")
        assert len(game.greeting.capabilities.ListFields()) == 7
        assert game.greeting.log_path == str(tmp_path / "Player-0.log")
        await game.request_reset()
    (report,) = reports(tmp_path)
    assert (report["seed"], report["num_areas"]) == (4711, 6)


@pytest.mark.lengthy
async def test_the_connection_is_logged_in_the_words_of_ml_agents(tmp_path, caplog):
    caplog.set_level("INFO")
    async with playing(tmp_path):
        pass
    assert "Connected to Unity environment with package version 3.0.0 and communication version 1.5.0" in caplog.text


@pytest.mark.lengthy
async def test_actions_reach_their_own_agents_among_many_that_end_at_different_times(tmp_path):
    async with playing(tmp_path, "--scene", "many", "--echo") as game:
        await play(game, steps=110)
    (report,) = reports(tmp_path)
    assert (report["returncode"], report["agent_steps"]) == (0, 110 * 64)


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "arguments",
    [
        ("--scene", "crowd", "--goal-signal", "--groups", "--branches", "2", "--new-ids"),
        ("--scene", "duel", "--agents", "3"),
        ("--continuous", "2", "--branches", "2", "3", "--mask", "--behaviors", "A", "B?team=1", "--second-at", "9"),
    ],
    ids=lambda arguments: " ".join(arguments),
)
async def test_every_scene_can_be_played(tmp_path, arguments):
    async with playing(tmp_path, *arguments) as game:
        await play(game, steps=120)
    (report,) = reports(tmp_path)
    assert report["returncode"] == 0, report["reason"]
    for measures in report["measures"].values():
        assert measures == pytest.approx([1.0] * len(measures))
    assert report["measures"]


@pytest.mark.lengthy
async def test_reset_starts_episodes_without_endings(tmp_path):
    async with playing(tmp_path, "--agents", "2") as game:
        await play(game, steps=3)
        output = await game.request_reset()
    infos = output.rl_output.agentInfos["Simple?team=0"].value
    assert [(info.id, info.done, info.reward) for info in infos] == [(0, False, 0.0), (1, False, 0.0)]
    assert not output.rl_initialization_output.brain_parameters, "a behaviour is introduced only once"
    assert reports(tmp_path)[0]["resets"] == 2


@pytest.mark.lengthy
async def test_a_unity_killed_mid_step_is_noticed_with_its_signal_and_its_log(make):
    game = make("--misbehave", "die-mid-step")
    await game.start()
    with pytest.raises(GameBroken, match="ended with signal SIGKILL") as caught:
        await play(game, steps=10)
    assert "Unity worker 0 (unity_build, port " in str(caught.value)
    assert "The stand-in Unity plays the scene simple" in str(caught.value), "the end of Player-0.log"


@pytest.mark.lengthy
async def test_a_unity_that_dies_between_two_steps_is_noticed_at_the_next_step(make):
    game = make()
    await game.start()
    output = await game.request_reset()
    os.kill(game.pid, signal.SIGKILL)
    with pytest.raises(GameBroken, match="ended with signal SIGKILL"):
        await game.request_step(Actor()(output))


@pytest.mark.lengthy
async def test_a_hanging_unity_times_out_and_is_killed(make):
    game = make("--misbehave", "hang")
    await game.start()
    pid = game.pid
    output = await game.request_reset()
    with pytest.raises(GameBroken, match=r"hasn't finished its step within 0\.2 s: it hangs"):
        await _step_until_late(game, output)
    assert not alive(pid)


@pytest.mark.lengthy
async def test_a_unity_without_decision_requests_has_its_own_message(make):
    game = make("--misbehave", "never-asks")
    await game.start()
    game.timeout_s = 1.0  # its second message follows the first at once, but has to come within it
    with pytest.raises(GameBroken, match=r"no agent has requested a decision within 1 s: .*Decision Requester"):
        await game.request_reset()


@pytest.mark.lengthy
async def test_a_unity_that_never_connects_has_its_own_message_and_is_killed(make, tmp_path):
    game = make(executable=build_that_hangs(tmp_path))
    game.timeout_s = 0.3
    with pytest.raises(GameBroken, match=r"hasn't connected within 0\.3 s.*--timeout-wait"):
        await game.start()
    assert not alive(game.pid)


@pytest.mark.lengthy
async def test_another_version_is_refused_and_the_executable_killed(make):
    game = make("--misbehave", "wrong-version", "--communication-version", "API-13")
    with pytest.raises(GameRefused, match=r"speaks version API-13 of the communication .* Headrace speaks 1\.5\.0"):
        await game.start()
    assert not alive(game.pid)


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("garbage", "its 100 bytes are not a message of the protocol"),
        ("empty-message", "its message has status 0; expected 200 or 400"),
    ],
)
async def test_invalid_messages_are_refused(tmp_path, kind, words):
    async with playing(tmp_path, "--misbehave", kind) as game:
        with pytest.raises(GameBroken, match="violates the protocol") as caught:
            await play(game, steps=10)
    assert words in str(caught.value)


@pytest.mark.lengthy
async def test_large_messages_are_taken(tmp_path):
    async with playing(tmp_path, "--misbehave", "huge-message", "--huge-mib", "9") as game:
        await play(game, steps=10)
    assert reports(tmp_path)[0]["returncode"] == 0


@pytest.mark.lengthy
async def test_a_message_above_the_limit_is_named_with_its_setting(tmp_path):
    large = ("--misbehave", "huge-message", "--huge-mib", "1")
    words = r"a message above the limit of 1 MiB, set by env_settings\.max_message_mib"
    async with playing(tmp_path, *large, max_message_mib=1) as game:
        with pytest.raises(GameBroken, match=words):
            await play(game, steps=10)


@pytest.mark.lengthy
async def test_the_limit_also_holds_for_requests(tmp_path):
    class Talker(SideChannels):
        def outgoing(self) -> bytes:
            return bytes(2**20)

    words = r"the request to this worker .* has 1,048,\d+ bytes, and the limit is 1 MiB, set by"
    async with playing(tmp_path, channels=Talker(), max_message_mib=1) as game:
        with pytest.raises(GameRefused, match=words):
            await game.request_reset()


STOP = UnityMessageProto(header={"status": CLOSE}).SerializeToString()


@pytest.mark.lengthy
async def test_other_callers_do_not_disturb_a_run(tmp_path, caplog):
    async with (
        playing(tmp_path, "--agents", "3", "--echo") as game,
        grpc.aio.insecure_channel(f"localhost:{game.port}") as stranger,
    ):
        actor = Actor()
        output = await game.request_reset()
        for _ in range(50):
            for message in (STOP, b"", UnityMessageProto(header={"status": OK}).SerializeToString()):
                with pytest.raises(
                    grpc.aio.AioRpcError, match=r"another Unity is already connected to the worker, from"
                ):
                    await stranger.unary_unary(EXCHANGE)(message)
            output = await game.request_step(actor(output))
    (report,) = reports(tmp_path)
    assert (report["returncode"], report["agent_steps"]) == (0, 150)
    assert re.search(r"Port \d+ refused a call from \S+:\d+: another", caplog.text)


def build_that_hangs(folder: Path) -> UnityBuild:
    """A program that does nothing until it is killed."""
    script = folder / "hangs.sh"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    script.chmod(0o755)
    return UnityBuild(script)


def build_that_waits(folder: Path) -> UnityBuild:
    """The stand-in, which begins when the file `go` is there."""
    script = folder / "build.sh"
    wait = f'while [ ! -e "{folder}/go" ]; do sleep 0.02; done'
    script.write_text("\n".join(["#!/bin/sh", wait, f'exec "{BUILD}.x86_64" "$@"', ""]))
    script.chmod(0o755)
    return UnityBuild(script, ("--report", str(folder)), log_file=folder / "Player-0.log")


def greeting(version: str = "1.5.0") -> bytes:
    message = UnityMessageProto(header={"status": OK})
    message.unity_output.rl_initialization_output.communication_version = version
    return bytes(message.SerializeToString())


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("1.5.0", r"hasn't requested its first command.*rejects these versions.* 1\.5\.0"),
        ("2.0.0", r"speaks version 2\.0\.0 of the communication protocol"),
    ],
)
async def test_a_unity_that_rejects_the_greeting_has_its_own_message(make, free_port, tmp_path, version, words):
    game = make(executable=build_that_hangs(tmp_path), port=free_port)
    game.timeout_s = 1.5
    async with asyncio.TaskGroup() as tasks, grpc.aio.insecure_channel(f"localhost:{free_port}") as unity:
        starting = tasks.create_task(failure(game.start()))
        await unity.unary_unary(EXCHANGE)(greeting(version), wait_for_ready=True)
        assert re.search(words, await starting)


async def failure(starting: Awaitable[None]) -> str:
    with pytest.raises(StageError) as caught:
        await starting
    return str(caught.value)


@pytest.mark.lengthy
async def test_a_build_that_finds_its_port_taken_names_both_callers(make, free_port, tmp_path):
    game = make(executable=build_that_waits(tmp_path), port=free_port)
    async with (
        asyncio.TaskGroup() as tasks,
        grpc.aio.insecure_channel(f"localhost:{free_port}") as stranger,
    ):
        starting = tasks.create_task(game.start())
        await stranger.unary_unary(EXCHANGE)(greeting(), wait_for_ready=True)
        waiting = stranger.unary_unary(EXCHANGE)(UnityMessageProto(header={"status": OK}).SerializeToString())
        await starting
        (tmp_path / "go").touch()
        with pytest.raises(
            GameBroken, match=r"The call from \S+ was refused: another Unity is already connected to the worker"
        ):
            await play(game, steps=10)
        waiting.cancel()


async def test_an_address_of_another_machine_is_refused_with_the_fix(make):
    with pytest.raises(
        GameRefused, match=r"192\.0\.2\.250 is not an address of this machine\. Set env_settings\.listen"
    ):
        await make(listen="192.0.2.250").start()


@pytest.mark.lengthy
async def test_unity_connects_with_every_listen_address(tmp_path):
    for number, listen in enumerate(("localhost", "all", "127.0.0.1", "::1")):
        async with playing(tmp_path / str(number), listen=listen) as game:
            await play(game, steps=3)
        assert reports(tmp_path / str(number))[0]["agent_steps"] == 3


async def test_a_port_in_use_is_refused_before_a_process_starts(make, tmp_path):
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        with pytest.raises(GameRefused, match=rf"port {port}\) can't listen on port {port}: .*--base-port"):
            await make(port=port).start()
    assert not list(tmp_path.iterdir())


async def test_a_missing_executable_is_refused_and_its_port_released(make, tmp_path):
    game = make(executable=UnityBuild(tmp_path / "Nothing"))
    with pytest.raises(GameRefused, match="no executable at .*Nothing"):
        await game.start()
    with closing(socket.create_server(("", game.port))):
        pass


@pytest.mark.lengthy
async def test_a_cancelled_start_leaves_no_process_and_no_port(make, tmp_path):
    game = make(executable=build_that_hangs(tmp_path))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await game.start()
    assert not alive(game.pid)
    with closing(socket.create_server(("", game.port))):
        pass


@pytest.mark.lengthy
async def test_close_lets_unity_end_by_itself(make, tmp_path):
    game = make()
    await game.start()
    await game.request_reset()
    await game.close()
    await game.close()
    assert reports(tmp_path)[0]["reason"] == "the trainer has closed the connection"
    assert not alive(game.pid)


@pytest.mark.lengthy
async def test_a_unity_in_a_step_is_closed_after_its_answer(make, tmp_path):
    game = make()
    await game.start()
    actions = Actor()(await game.request_reset())
    stepping = asyncio.create_task(game.request_step(actions))
    await asyncio.sleep(0)
    stepping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stepping
    await game.close()
    assert reports(tmp_path)[0]["reason"] == "the trainer has closed the connection"


@pytest.mark.lengthy
async def test_a_unity_that_closes_the_connection_is_left_to_end_by_itself(make, tmp_path):
    game = make("--misbehave", "stop")
    await game.start()
    with pytest.raises(GameEnded, match="Unity worker 0 .* has closed the connection"):
        await play(game, steps=10)
    await game.close()
    assert not alive(game.pid)
    assert reports(tmp_path)[0]["reason"] == "Unity has closed the connection"


@pytest.mark.lengthy
async def test_a_unity_that_quits_with_return_code_0_has_ended(make):
    game = make("--misbehave", "quit-in-step")
    await game.start()
    with pytest.raises(GameEnded, match="Unity worker 0 .* quit with return code 0"):
        await play(game, steps=10)
    await game.close()


async def test_a_unity_that_exits_before_it_connects_has_broken(make):
    game = make(executable=UnityBuild(Path("/bin/true"), ()))
    with pytest.raises(
        GameBroken, match="ended with return code 0 before it announced its agents; does its scene have an agent"
    ):
        await game.start()


@pytest.mark.lengthy
async def test_close_kills_a_unity_that_does_not_end(make, caplog):
    game = make("--misbehave", "never-ends")
    await game.start()
    await game.request_reset()
    game.timeout_s = 0.2
    await game.close()
    assert not alive(game.pid)
    assert "did not end within 0.2 s after the request; killing it" in caplog.text


async def _step_until_late(game: UnityGame, output: object) -> None:
    """Steps at full patience until the last before the trouble, and then with little."""
    actor = Actor()
    output = await game.request_step(actor(output))
    game.timeout_s = 0.2
    await game.request_step(actor(output))
