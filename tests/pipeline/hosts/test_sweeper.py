"""What a dead process has left is found by its mark, its session or its parent; nothing else is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from headrace.pipeline.hosts.sweeper import VARIABLE, Sweep, processes_here

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd and /proc")

UNMARKED = {name: value for name, value in os.environ.items() if name != VARIABLE}


@pytest.fixture
def begin():
    """Starts a program that does nothing, with a mark or without one; it is ended with its test."""
    begun = []

    def begin(mark=None, session=False, **options):
        environment = UNMARKED if mark is None else {**UNMARKED, VARIABLE: mark}
        begun.append(subprocess.Popen(["sleep", "600"], env=environment, start_new_session=session, **options))
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.wait()


def poll(sweep):
    """One scan; returns True if nothing remains."""
    return sweep.poll(processes_here())


def ended_host():
    """The process id of a session's leader that has ended, and of a program that it has left in its session."""
    code = "import subprocess; print(subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL).pid)"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=UNMARKED, start_new_session=True, stdout=subprocess.PIPE
    ) as host:
        return host.pid, int(host.stdout.read())


def test_a_program_with_the_mark_or_one_behind_it_is_ended(begin):
    mine, behind = begin("run"), begin("run/actor-0/1")
    assert not poll(Sweep(-1, "run"))
    assert [mine.wait(), behind.wait()] == [-signal.SIGTERM] * 2
    assert poll(Sweep(-1, "run"))


def test_a_mark_that_begins_with_the_same_letters_is_another(begin):
    others = [begin("run/actor-0/10"), begin("run/actor-0"), begin("run"), begin()]
    assert poll(Sweep(-1, "run/actor-0/1"))
    assert [process.poll() for process in others] == [None] * 4


def test_a_program_without_a_mark_is_found_in_the_session_of_its_host(begin):
    host, left = ended_host()
    sweep = Sweep(host, "run/actor-0/1")
    while not poll(sweep):
        pass
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE


def test_unmarked_children_of_a_marked_program_are_ended(begin):
    """Ray's agents write their titles over their environments."""
    code = (
        "import subprocess; print(subprocess.Popen(['sleep', '600'], env={}, start_new_session=True).pid, flush=True)"
    )
    marked = subprocess.Popen(
        [sys.executable, "-c", f"{code}; input()"],
        env={**UNMARKED, VARIABLE: "run"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with marked:
        started, other = psutil.Process(int(marked.stdout.readline())), begin(session=True)
        sweep = Sweep(-1, "run")
        while not poll(sweep):
            pass
        assert marked.wait() == -signal.SIGTERM
    assert not started.is_running() or started.status() == psutil.STATUS_ZOMBIE
    assert other.poll() is None


def test_a_session_whose_leader_is_alive_is_not_that_of_the_dead_host(begin):
    """Its number was given out again."""
    other = begin(session=True)
    assert poll(Sweep(other.pid, "run/actor-0/1"))
    assert other.poll() is None


def test_a_fork_of_main_is_known_by_the_pipe_to_the_sweeper(begin):
    """It has main's environment without a mark, and sometimes its own session."""
    reading, writing = os.pipe()
    try:
        fork, other = begin(session=True, pass_fds=[writing]), begin()
        sweep = Sweep(-1, "run", os.readlink(f"/proc/self/fd/{reading}"))
        assert not poll(sweep)
        assert fork.wait() == -signal.SIGTERM
        assert poll(sweep)
        assert other.poll() is None
    finally:
        os.close(reading)
        os.close(writing)
