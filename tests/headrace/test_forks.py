"""A fork of code of users runs that code alone: it ends where it would come back to ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.paths import ROOT

SCRIPT = '''
import asyncio, atexit, os, sys, threading
from headrace.queues.files import once_released
from headrace.startup_context import keep_startup_context

keep_startup_context()
atexit.register(lambda: print("atexit", os.getpid() == PARENT, flush=True))
PARENT = os.getpid()

def child(then):
    pid = os.fork()
    if pid == 0:
        then()
    return pid

def raises():
    raise ValueError("in the child")

def calls_ours():
    once_released(lambda: None, None)
    sys.exit(5)

def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def of_ours(then):
    """A function of ours calls users' code, and goes on."""
    try:
        pid = once_released(lambda: child(then), None)
        went_on.append(os.getpid())
        return ended(pid)
    finally:
        went_on.append(os.getpid())

went_on = []
STATUSES = {
    "returns": of_ours(lambda: None),
    "raises": of_ours(raises),
    "exits": of_ours(lambda: sys.exit(3)),
    "exits well": of_ours(sys.exit),
    "interrupts": of_ours(lambda: exec("raise KeyboardInterrupt")),
    "calls ours": of_ours(calls_ours),
    "ends itself": of_ours(lambda: os._exit(7)),
    "forks again": of_ours(lambda: os._exit(ended(child(raises)))),
}

def steps():
    pids.append(child(lambda: None))
    return
    yield

async def in_an_executor():
    return await asyncio.to_thread(child, raises)

STATUSES["executor"] = ended(asyncio.run(in_an_executor()))
pids = []
try:
    once_released(steps().__next__, None)
except StopIteration:
    STATUSES["generator"] = ended(pids.pop())
thread = threading.Thread(target=lambda: pids.append(child(raises)))
thread.start()
thread.join()
STATUSES["thread"] = ended(pids[0])
assert set(went_on) == {PARENT}
print(STATUSES, flush=True)
'''


@pytest.mark.lengthy
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_child_ends_on_return_and_runs_none_of_headraces_code(tmp_path):
    script = tmp_path / "forking.py"
    script.write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": ROOT}
    command = [sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment)
    said, at_exit = done.stdout.splitlines()
    assert at_exit == "atexit True", "the parent's alone"
    assert eval(said) == {
        "returns": 0,
        "raises": 1,
        "exits": 3,
        "exits well": 0,
        "interrupts": 1,
        "calls ours": 5,
        "ends itself": 7,
        "forks again": 1,
        "executor": 1,
        "generator": 0,
        "thread": 1,
    }
    where = f"forked at {script}:{SCRIPT[: SCRIPT.index('os.fork()')].count(chr(10)) + 1}"
    assert (
        f"{where}, returned from the code that forked it, so Headrace ended it: end forked processes with os._exit()."
        in done.stderr
    )
    assert f"{where}, raised:" in done.stderr
    assert done.stderr.count("ValueError: in the child") == 4
    assert Path(__file__).name not in done.stderr
