"""A Unity executable as a process: how it is started, how its end is noticed, and what is killed with it."""

from __future__ import annotations

import asyncio
import os
import sys

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


@pytest.mark.skipif(sys.platform == "win32", reason="there it has a job")
async def test_a_process_has_its_own_session():
    process, ended = await launch(*SLEEP)
    assert os.getsid(process.pid) == process.pid
    process.kill()
    await ended


@needs_sh
async def test_killing_a_process_kills_its_children(tmp_path):
    os.mkfifo(tmp_path / "pid")
    process, ended = await launch("sh", "-c", f"sleep 600 & echo $! > {tmp_path / 'pid'}; wait")
    grandchild = int(await asyncio.to_thread((tmp_path / "pid").read_text))
    assert alive(grandchild)
    process.kill()
    await ended
    await _until_dead(grandchild)


@needs_sh
async def test_the_end_of_a_process_kills_its_children(tmp_path):
    os.mkfifo(tmp_path / "pid")
    _, ended = await launch("sh", "-c", f"sleep 600 & echo $! > {tmp_path / 'pid'}")
    grandchild = int(await asyncio.to_thread((tmp_path / "pid").read_text))
    await ended
    await _until_dead(grandchild)


@needs_sh
async def test_a_file_that_is_not_executable_is_refused_with_the_fix(tmp_path):
    (tmp_path / "game").write_text("#!/bin/sh\n")
    with pytest.raises(GameRefused, match=r"can't be started.*chmod \+x"):
        await launch(str(tmp_path / "game"))


async def test_a_file_that_is_not_a_program_is_refused(tmp_path):
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
        (0xC0000005, "return code 0xC0000005 (access violation)"),
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
