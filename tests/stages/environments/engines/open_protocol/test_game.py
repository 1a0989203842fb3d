"""A game of the open protocol is started, answers, and is ended; whatever it does instead is named."""

from __future__ import annotations

import asyncio
import os

import pytest
from open_runs import called, free_port, game_of

from headrace.stages.environments.engines.errors import GameBroken, GameEnded, GameRefused
from headrace.stages.environments.engines.game import GameSettings
from headrace.stages.environments.engines.open_protocol.conformance import RandomTrainer
from headrace.stages.environments.engines.open_protocol.game import OpenBuild, OpenGame


def is_gone(game):
    return game.pid is None or not os.path.exists(f"/proc/{game.pid}")


@pytest.mark.parametrize(
    ("game", "form"),
    [
        ("switch", "json"),
        ("reach", "msgpack"),
        ("masked", "json"),
        ("picture", "json"),
        ("picture", "msgpack"),
        ("duel", "msgpack"),
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
        ("exit5", GameBroken, "ended with return code 5"),
        ("hang", GameBroken, "hasn't sent its next state within 1 s"),
        ("drop", GameBroken, "dropped the connection without a message"),
        ("garbage", GameBroken, "sent invalid JSON"),
        ("say", GameBroken, "has failed: the level is broken"),
        ("end", GameEnded, "has ended: the player has left"),
        ("twice", GameBroken, "a message that was not requested"),
        ("late", GameBroken, "sent a state with the number 3; expected 4"),
        ("unnumbered", GameBroken, "sent a state without a number; expected 4"),
        ("nan", GameBroken, "null at index 1"),
        ("ids", GameBroken, "twice"),
        ("few", GameBroken, "sent 7 entries as .*expected one for each of 8 agents"),
        ("reward", GameBroken, "'much' at index 0 of rewards"),
        ("stranger", GameBroken, "which its hello did not announce"),
        ("typo", GameBroken, "sent reward in agents.Agent.deciding"),
    ],
)
async def test_what_goes_wrong_in_a_step_is_named_and_the_game_ended(tmp_path, fault, kind, words):
    timeout_s = 1 if fault == "hang" else 30
    trainer = RandomTrainer(game_of(tmp_path, f"--fault={fault}", "--fault_at=3", timeout_s=timeout_s))
    await trainer.start()
    await trainer.reset({})
    with pytest.raises(kind, match=words):
        for _ in range(200):
            await trainer.step()
    await trainer.game.close()
    assert is_gone(trainer.game)


async def test_a_game_is_told_why_it_is_refused(tmp_path):
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


async def test_a_missing_program_is_named():
    game = OpenGame(GameSettings(0, 0, 1, 1, 8), "tcp", OpenBuild("no/such/game"))
    with pytest.raises(GameRefused, match=r"no game executable at no[/\\]such[/\\]game"):
        await game.start()


async def test_a_game_that_somebody_else_starts_is_waited_for(tmp_path):
    game = OpenGame(GameSettings(0, 0, 1, 0.2, 8), "tcp", None)
    with pytest.raises(GameBroken, match=r"the game \(port \d+\) hasn't connected within 0.2 s"):
        await game.start()


async def test_the_end_of_its_connection_is_the_end_of_such_a_game():
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
            b"\0\0\0\5hello",
            r"sent the bytes 00 00 00 05 \(5 as a big-endian number\) instead of the length",
        ),
        (
            b"GET / HTTP/1.1",
            r"the text 'GET '\) instead of the length of a message .*on this port really a game",
        ),
        (b"\xff\xff\xff\x0f" + b"\0" * 60, "sent a message of 268,435,455 bytes above the limit of 8 MiB"),
        (b"\x20\0\0\0hello", "has not sent a hello within 0.3 s: 5 of 32 announced bytes have arrived"),
    ],
)
async def test_bytes_that_are_no_message_are_told_with_what_they_look_like(sent, words):
    port = free_port()
    game = OpenGame(GameSettings(0, port, 1, 0.3, 8), "tcp", None)
    starting = asyncio.ensure_future(game.start())
    _, writer = await called(port)
    writer.write(sent)
    with pytest.raises(GameBroken, match=words):
        await starting
    writer.close()
