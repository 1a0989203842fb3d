"""A Unity executable as a process: how it is started, how its end is noticed, and what is killed with it."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import pytest
from unity_runs import alive

from headrace.stages.environments.engines.errors import GameRefused
from headrace.stages.environments.engines.process import GameProcess, describe_exit

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")
needs_sh = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no sh, no FIFOs and no right to run a file")


async def launch(*command: str) -> tuple[GameProcess, asyncio.Future[int]]:
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    return await GameProcess.launch(list(command), False, ended.set_result), ended


async def test_the_end_of_a_process_is_reported_with_its_return_code():
    process, ended = await launch(sys.executable, "-c", "raise SystemExit(3)")
    assert await ended == 3
    assert process.returncode == 3
    assert await process.exited(timeout_s=0.0)


async def test_a_process_that_runs_hasnt_exited():
    process, ended = await launch(*SLEEP)
    assert not await process.exited(timeout_s=0.0)
    assert process.returncode is None
    process.kill()
    assert await ended != 0


@pytest.mark.skipif(sys.platform == "win32", reason="there it has a job")
async def test_it_has_a_session_of_its_own():
    process, ended = await launch(*SLEEP)
    assert os.getsid(process.pid) == process.pid
    process.kill()
    await ended


@needs_sh
async def test_what_a_process_has_started_is_killed_with_it(tmp_path):
    os.mkfifo(tmp_path / "pid")
    process, ended = await launch("sh", "-c", f"sleep 600 & echo $! > {tmp_path / 'pid'}; wait")
    grandchild = int(await asyncio.to_thread((tmp_path / "pid").read_text))
    assert alive(grandchild)
    process.kill()
    await ended
    await _until_dead(grandchild)


@needs_sh
async def test_what_a_process_has_left_behind_is_killed_when_it_ends(tmp_path):
    os.mkfifo(tmp_path / "pid")
    _, ended = await launch("sh", "-c", f"sleep 600 & echo $! > {tmp_path / 'pid'}")
    grandchild = int(await asyncio.to_thread((tmp_path / "pid").read_text))
    await ended
    await _until_dead(grandchild)


async def test_no_thread_of_ours_is_left_when_a_process_has_ended():
    before = set(threading.enumerate())
    process, ended = await launch(sys.executable, "-c", "")
    await ended
    assert await process.exited(0.0)
    assert set(threading.enumerate()) == before


def test_an_event_loop_that_ends_before_its_process_hears_nothing():
    before = set(threading.enumerate())

    async def start():
        return await GameProcess.launch(
            [sys.executable, "-c", "import time; time.sleep(60)"], False, lambda code: told.append(code)
        )

    told: list[int] = []
    process = asyncio.run(start())
    process.kill()
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert not told


async def test_killing_what_has_ended_does_nothing():
    process, ended = await launch(sys.executable, "-c", "")
    await ended
    process.kill()
    assert process.returncode == 0


@needs_sh
async def test_a_file_without_the_right_to_run_is_refused_with_the_cure(tmp_path):
    (tmp_path / "game").write_text("#!/bin/sh\n")
    with pytest.raises(GameRefused, match=r"can't be started.*chmod \+x"):
        await launch(str(tmp_path / "game"))


async def test_a_file_that_is_no_program_is_refused(tmp_path):
    (tmp_path / "game").write_bytes(b"MZ\x90\0 a program for Windows")
    (tmp_path / "game").chmod(0o755)
    with pytest.raises(GameRefused, match="isn't a program for this machine"):
        await launch(str(tmp_path / "game"))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "return code 0"),
        (3, "return code 3"),
        (-11, "signal SIGSEGV"),
        (-99, "signal 99"),
        (0xC0000005, "return code 0xC0000005 (access violation)"),
        (0xC0000135, "return code 0xC0000135 (a DLL was not found)"),
        (0xC0000999, "return code 0xC0000999"),
    ],
)
def test_an_ending_is_a_return_code_or_a_signal(code, words):
    assert describe_exit(code) == words


async def _until_dead(pid: int) -> None:
    """A killed process that isn't our child can be watched by its descriptor."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, gone.set)
    try:
        async with asyncio.timeout(30):
            await gone.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    assert not alive(pid)
