"""A child ends with main from its first moment on, with all that it has started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import psutil
import pytest

from headrace.pipeline.hosts.crash_file import CrashFile
from headrace.pipeline.hosts.process_cleanup import mark_of, sweep_after_this_process
from headrace.pipeline.hosts.spawn import start_child

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a job ends children there")

NEVER_ENDS = """
import ctypes, pathlib
pathlib.Path(__file__).with_suffix(".begun").touch()
ctypes.{library}(None).sleep(1000)  # PyDLL: no thread of Python runs meanwhile
"""
HOST = """
import subprocess, sys, time
from headrace.pipeline.hosts.parent_death import open_lifeline
open_lifeline(sys.argv[2]).let_users_code_run()
print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid, flush=True)
time.sleep(600)
"""
MAIN = """
import os, signal, subprocess
from headrace.pipeline.hosts.spawn import start_child
from headrace.pipeline.hosts.crash_file import CrashFile
from headrace.pipeline.hosts.process_cleanup import new_mark
host, *_ = start_child("a_host", "host", CrashFile(), [], new_mark(), stdout=subprocess.PIPE)
print(host.pid, host.stdout.readline().decode(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def until(condition, what):
    """Wait for what another process does."""
    ended = subprocess.Popen(["sleep", "60"])
    try:
        while not condition():
            assert ended.poll() is None, what
            os.sched_yield()
    finally:
        ended.kill()
        ended.wait()


@contextmanager
def child(*modules):
    """A child that waits for its start message, and main's end of its lifeline."""
    (start_socket, theirs), crash_file = socket.socketpair(), CrashFile()
    with theirs:
        line = ("headrace.pipeline.hosts.child", "nobody", crash_file, modules, "mark")
        process, lifeline, _ = start_child(*line, stdin=theirs.fileno())
    with start_socket, lifeline:
        yield process, lifeline
        process.kill()
        process.wait()
        crash_file.read_and_close()


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.lengthy
def test_a_child_that_imports_ends_as_soon_as_its_lifeline_does(tmp_path, monkeypatch):
    (tmp_path / "never_ends.py").write_text(NEVER_ENDS.format(library="CDLL"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with child("never_ends") as (process, lifeline):
        until((tmp_path / "never_ends.begun").exists, "the import")
        lifeline.close()
        assert process.wait(60) == 1


@pytest.mark.lengthy
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread alone sees to it")
def test_a_child_that_holds_pythons_lock_in_an_import_ends_with_main(tmp_path):
    (tmp_path / "never_ends.py").write_text(NEVER_ENDS.format(library="PyDLL"))
    code = (
        "import os, sys; from headrace.pipeline.hosts.spawn import ChildProcess\n"
        "child = ChildProcess('nobody', ['never_ends']); print(child.pid, flush=True)\n"
        "sys.stdin.read(); os._exit(0)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    line = [sys.executable, "-c", code]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as main:
        pid = int(main.stdout.readline())
        until((tmp_path / "never_ends.begun").exists, "the import")
        main.kill()
    until(lambda: gone(pid), "the end of the child")


@pytest.mark.lengthy
@pytest.mark.skipif(sys.platform != "linux", reason="there is a sweeper on Linux alone")
def test_a_host_and_its_game_in_a_separate_session_end_with_main(tmp_path):
    (tmp_path / "a_host.py").write_text(HOST)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    main = subprocess.run([sys.executable, "-c", MAIN], stdout=subprocess.PIPE, env=environment, check=False)
    assert main.returncode == -signal.SIGKILL
    host, game = map(int, main.stdout.split())
    until(lambda: gone(host) and gone(game), "the end of host and game")


@pytest.mark.lengthy
@pytest.mark.skipif(sys.platform != "linux", reason="there is a sweeper on Linux alone")
def test_a_sweeper_that_was_killed_is_started_again_with_the_next_host():
    sweep_after_this_process()
    until(sweepers, "the sweeper")  # a process has no arguments until its program is loaded, and none once it ends
    (first,) = sweepers()
    sweep_after_this_process()
    assert sweepers() == [first]
    first.kill()
    until(lambda: first.status() == psutil.STATUS_ZOMBIE, "the end of the sweeper")
    sweep_after_this_process()
    until(sweepers, "the next sweeper")
    assert len(sweepers()) == 1


def sweepers() -> list[psutil.Process]:
    """Those of this process."""
    return [
        each
        for each in psutil.Process().children()
        if each.status() != psutil.STATUS_ZOMBIE and mark_of(os.getpid()) in each.cmdline()
    ]
