"""The lifeline of a process host: it dies with main, and says what it is doing, whatever it is doing."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys

import pytest

from headrace.pipeline.hosts.spawn import MainLifeline

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the hosts of this test are started with pass_fds")

HOST = """
import ctypes, socket, subprocess, sys
from headrace.pipeline.hosts.parent_death import HostLifeline

def computes():
    print("begins", flush=True)
    while True:
        pass

def holds_the_lock():
    print("begins", flush=True)
    while True:
        ctypes.PyDLL(None).sleep(1000)

subprocess.Popen(["sleep", "1000"])
HostLifeline(socket.socket(fileno=int(sys.argv[1]))).let_users_code_run()
globals()[sys.argv[2]]()
"""


@pytest.fixture
def start():
    """Starts a host that does something for ever; returns it and main's lifeline once it has a child of its own."""
    begun = []

    def start(what, **how):
        ours, theirs = socket.socketpair()
        with theirs:
            host = subprocess.Popen(
                [sys.executable, "-c", HOST, str(theirs.fileno()), what],
                pass_fds=[theirs.fileno()],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "HEADRACE_PLATFORM": "plain"},  # no sweeper
                start_new_session=True,
            )
        begun.append((host, ours))
        assert host.stdout.readline()
        return host, MainLifeline(ours, host.pid, **how)

    yield start
    for host, ours in begun:
        ours.close()
        host.send_signal(signal.SIGKILL)
        host.wait(60)
        host.stdout.close()


@pytest.mark.lengthy
def test_a_host_whose_main_is_gone_ends_at_once_with_all_that_it_has_started(start):
    host, lifeline = start("computes")
    lifeline.close()
    assert host.wait(60) == -signal.SIGKILL
    assert host.stdout.read() == ""  # the child, which had the same pipe, is gone as well


@pytest.mark.lengthy
def test_a_host_that_computes_says_in_which_line_and_otherwise_that_it_was_stopped_or_has_ended(start):
    host, lifeline = start("computes")
    answer = asyncio.run(lifeline.ask())
    assert answer.startswith("Headrace itself\n")
    assert "in computes" in answer

    host.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, host.pid, os.WSTOPPED)
    assert "the process was stopped" in asyncio.run(lifeline.ask())
    host.send_signal(signal.SIGCONT)
    assert "in computes" in asyncio.run(lifeline.ask())

    os.killpg(host.pid, signal.SIGKILL)
    host.wait(60)
    assert "has just ended" in asyncio.run(lifeline.ask())


@pytest.mark.lengthy
def test_a_host_in_a_call_that_holds_the_lock_is_reported(start):
    _, lifeline = start("holds_the_lock")
    answers = (asyncio.run(lifeline.ask()) for _ in itertools.count())
    answer = next(answer for answer in answers if answer.startswith("in a call that holds the GIL\n"))
    assert "in holds_the_lock" in answer


@pytest.mark.lengthy
def test_if_a_host_can_not_show_its_stack_a_call_that_holds_the_lock_is_named_as_a_cause(start):
    _, lifeline = start("holds_the_lock", dump=None, answer_s=0.1)
    answers = (asyncio.run(lifeline.ask()) for _ in itertools.count())
    answer = next(answer for answer in answers if "in holds_the_lock" not in answer)
    assert "a call that holds the GIL (which can't be inspected on Windows)" in answer
