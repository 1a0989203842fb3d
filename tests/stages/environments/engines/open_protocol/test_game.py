"""A game of the open protocol is started, answers, and is ended; whatever it does instead is named."""

from __future__ import annotations

import asyncio
import os

import pytest
from open_runs import called, free_port, game_of

from headrace.stages.environments.engines.errors import GameBroken, GameEnded, GameRefused
from headrace.stages.environments.engines.game import GameSettings
from headrace.stages.environments.engines.open_protocol.conformance import RandomTrainer
from headrace.stages.environments.engines.open_protocol.game import OpenGame


def is_gone(game):
    return game.pid is None or not os.path.exists(f"/proc/{game.pid}")


@pytest.mark.parametrize(
    ("game", "form"),
    [
        ("switch", "json"),
        ("reach", "msgpack"),
        ("picture", "msgpack"),
        ("together", "json"),
    ],
)
async def test_a_game_plays_in_both_formats(tmp_path, form, game):
    trainer = RandomTrainer(game_of(tmp_path, f"--format={form}", f"--game={game}"))
    await trainer.start()
    assert trainer.game.hello.game == game
    await trainer.reset({})
    for _ in range(30):
        await trainer.step()
    assert all(seen.returns for seen in trainer.seen.values())
    await trainer.reset({"speed": 2.0})
    await trainer.step({"speed": 3.0})
    await trainer.game.close()
    assert is_gone(trainer.game)
    log = (tmp_path / "Game-0.log").read_text()
    assert "--seed=7" in log
    assert 'parameters {"speed": 3.0}' in log
    assert "WRONG" not in log


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("exit0", GameEnded, "quit with return code 0"),
        ("hang", GameBroken, "hasn't sent its next state within 1 s"),
        ("garbage", GameBroken, "sent invalid JSON"),
        ("say", GameBroken, "has failed: the level is broken"),
        ("twice", GameBroken, "a message that was not requested"),
        ("late", GameBroken, "sent a state with the number 3; expected 4"),
        ("ids", GameBroken, "twice"),
        ("stranger", GameBroken, "which its hello did not announce"),
    ],
)
async def test_a_fault_in_a_step_is_named_and_ends_the_game(tmp_path, fault, kind, words):
    timeout_s = 1 if fault == "hang" else 30
    trainer = RandomTrainer(game_of(tmp_path, f"--fault={fault}", "--fault_at=3", timeout_s=timeout_s))
    await trainer.start()
    await trainer.reset({})
    with pytest.raises(kind, match=words):
        for _ in range(200):
            await trainer.step()
    await trainer.game.close()
    assert is_gone(trainer.game)


async def test_a_refused_game_receives_the_reason(tmp_path):
    for fault, words in (("version", "speaks version 99"), ("spec", "behaviors.Agent.actions")):
        game = game_of(tmp_path, f"--fault={fault}")
        with pytest.raises(GameRefused, match=words):
            await game.start()
        assert is_gone(game)


@pytest.mark.lengthy
async def test_a_program_that_ends_or_is_silent_before_its_hello_is_named(tmp_path):
    with pytest.raises(GameBroken, match=r"return code 5 before it announced its agents"):
        await game_of(tmp_path, "--fault=start").start()
    with pytest.raises(GameBroken, match=r"hasn't connected within 0.5 s.*--trainer="):
        await game_of(tmp_path, "--fault=mute", timeout_s=0.5).start()


async def test_the_run_waits_for_a_game_that_the_user_starts(tmp_path):
    game = OpenGame(GameSettings(0, 0, 1, 0.2, 8), "tcp", None)
    with pytest.raises(GameBroken, match=r"the game \(port \d+\) hasn't connected within 0.2 s"):
        await game.start()


async def test_a_game_that_the_user_started_ends_with_its_connection():
    port = free_port()
    game = OpenGame(GameSettings(0, port, 1, 30, 8), "tcp", None)
    starting = asyncio.ensure_future(game.start())
    _, writer = await called(port)
    writer.close()
    with pytest.raises(GameEnded, match="was stopped"):
        await starting


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (
            b"GET / HTTP/1.1",
            r"542,393,671 bytes \(by the length 47 45 54 20, little-endian\) above the .*on this port really a game",
        ),
        (b"\xff\xff\xff\x0f" + b"\0" * 60, r"sent a message of 268,435,455 bytes \(.*\) above the limit of 8 MiB"),
        (b"\x20\0\0\0hello", "has not sent a hello within 0.3 s: 5 of 32 announced bytes have arrived"),
    ],
)
async def test_bytes_that_are_not_a_message_are_named(sent, words):
    port = free_port()
    game = OpenGame(GameSettings(0, port, 1, 0.3, 8), "tcp", None)
    starting = asyncio.ensure_future(game.start())
    _, writer = await called(port)
    writer.write(sent)
    with pytest.raises(GameBroken, match=words):
        await starting
    writer.close()
