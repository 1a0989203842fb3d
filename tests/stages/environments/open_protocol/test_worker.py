"""A game of the open protocol is started, answers, and is ended; whatever it does instead is named."""

from __future__ import annotations

import asyncio
import os

import pytest
from open_runs import called, free_port, worker_of

from headrace.stages.environments.open_protocol.conformance import RandomTrainer
from headrace.stages.environments.open_protocol.worker import GameProgram, OpenWorker
from headrace.stages.environments.programs.errors import ProgramBroken, ProgramEnded, ProgramRefused
from headrace.stages.environments.programs.worker import WorkerSettings


def is_gone(worker):
    return worker.pid is None or not os.path.exists(f"/proc/{worker.pid}")


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
    trainer = RandomTrainer(worker_of(tmp_path, f"--format={form}", f"--game={game}"))
    hello = await trainer.start()
    assert hello.game == game
    await trainer.reset({})
    for _ in range(30):
        await trainer.step()
    assert all(seen.returns for seen in trainer.seen.values())
    await trainer.reset({"speed": 2.0})
    await trainer.step({"speed": 3.0})
    await trainer.worker.close()
    assert is_gone(trainer.worker)
    log = (tmp_path / "Game-0.log").read_text()
    assert "--seed=7" in log
    assert 'parameters {"speed": 3.0}' in log
    assert "WRONG" not in log


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("exit0", ProgramEnded, "quit with return code 0"),
        ("exit5", ProgramBroken, "ended with return code 5"),
        ("hang", ProgramBroken, "hasn't sent its next state within 1 s"),
        ("drop", ProgramBroken, "dropped the connection without a message"),
        ("garbage", ProgramBroken, "sent invalid JSON"),
        ("say", ProgramBroken, "has failed: the level is broken"),
        ("end", ProgramEnded, "has ended: the player has left"),
        ("twice", ProgramBroken, "a message that was not requested"),
        ("late", ProgramBroken, "sent a state with the number 3; expected 4"),
        ("unnumbered", ProgramBroken, "sent a state without a number; expected 4"),
        ("nan", ProgramBroken, "null at index 1"),
        ("ids", ProgramBroken, "twice"),
        ("few", ProgramBroken, "sent 7 entries as .*expected one for each of 8 agents"),
        ("reward", ProgramBroken, "'much' at index 0 of rewards"),
        ("stranger", ProgramBroken, "which its hello did not announce"),
        ("typo", ProgramBroken, "sent reward in agents.Agent.deciding"),
    ],
)
async def test_what_goes_wrong_in_a_step_is_named_and_the_game_ended(tmp_path, fault, kind, words):
    timeout_s = 1 if fault == "hang" else 30
    trainer = RandomTrainer(worker_of(tmp_path, f"--fault={fault}", "--fault_at=3", timeout_s=timeout_s))
    await trainer.start()
    await trainer.reset({})
    with pytest.raises(kind, match=words):
        for _ in range(200):
            await trainer.step()
    await trainer.worker.close()
    assert is_gone(trainer.worker)


async def test_a_game_is_told_why_it_is_refused(tmp_path):
    for fault, words in (("version", "speaks version 99"), ("spec", "behaviors.Agent.actions")):
        worker = worker_of(tmp_path, f"--fault={fault}")
        with pytest.raises(ProgramRefused, match=words):
            await worker.start()
        assert is_gone(worker)


@pytest.mark.lengthy
async def test_a_program_that_ends_or_is_silent_before_its_hello_is_named(tmp_path):
    with pytest.raises(ProgramBroken, match=r"return code 5 before it announced its agents"):
        await worker_of(tmp_path, "--fault=start").start()
    with pytest.raises(ProgramBroken, match=r"hasn't connected within 0.5 s.*--trainer="):
        await worker_of(tmp_path, "--fault=mute", timeout_s=0.5).start()


async def test_a_missing_program_is_named():
    worker = OpenWorker(WorkerSettings(0, 0, 1, 1, 8), "tcp", GameProgram("no/such/game"))
    with pytest.raises(ProgramRefused, match=r"no game executable at no[/\\]such[/\\]game"):
        await worker.start()


async def test_a_game_that_somebody_else_starts_is_waited_for(tmp_path):
    worker = OpenWorker(WorkerSettings(0, 0, 1, 0.2, 8), "tcp", None)
    with pytest.raises(ProgramBroken, match=r"the game \(port \d+\) hasn't connected within 0.2 s"):
        await worker.start()


async def test_the_end_of_its_connection_is_the_end_of_such_a_game():
    port = free_port()
    worker = OpenWorker(WorkerSettings(0, port, 1, 30, 8), "tcp", None)
    starting = asyncio.ensure_future(worker.start())
    _, writer = await called(port)
    writer.close()
    with pytest.raises(ProgramEnded, match="was stopped"):
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
        (b"\xff\xff\xff\x0f" + b"\0" * 60, "sent a message of 268,435,455 bytes; the limit is 8 MiB"),
        (b"\x20\0\0\0hello", "has not sent a hello within 0.3 s: 5 of 32 announced bytes have arrived"),
    ],
)
async def test_bytes_that_are_no_message_are_told_with_what_they_look_like(sent, words):
    port = free_port()
    worker = OpenWorker(WorkerSettings(0, port, 1, 0.3, 8), "tcp", None)
    starting = asyncio.ensure_future(worker.start())
    _, writer = await called(port)
    writer.write(sent)
    with pytest.raises(ProgramBroken, match=words):
        await starting
    writer.close()
