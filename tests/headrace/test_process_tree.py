"""Programs end with what they have started: nobody holds the pipe any more that all of them have inherited."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from headrace.process_tree import ProcessTree, describe_status

SLEEPS = "import time; time.sleep(300)"
STARTS_ONE = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {SLEEPS!r}])
print("started", flush=True)
"""
MAKES_ONE = f"""
import sys, time
from headrace.process_tree import ProcessTree, end_children_with_this_process
TREE
made = ProcessTree([sys.executable, "-c", {STARTS_ONE + SLEEPS!r}], shows=True)
time.sleep(300)
"""
PLAIN = MAKES_ONE.replace("TREE", "")
OWN_JOB = (
    MAKES_ONE.replace("TREE", "end_children_with_this_process()")
    .replace("made = ProcessTree(", "made = (")
    .replace("], shows=True)", "])\nimport subprocess; subprocess.Popen(made)")
)


def started(code: str) -> ProcessTree:
    tree = ProcessTree([sys.executable, "-c", code], shows=False, stdout=subprocess.PIPE)
    assert tree.stdout is not None
    assert tree.stdout.readline().strip() == b"started"
    return tree


def assert_all_end(tree: ProcessTree) -> None:
    with tree:
        assert tree.stdout is not None
        assert not tree.stdout.read()


def test_kill_all_kills_the_children_of_a_running_program():
    tree = started(STARTS_ONE + SLEEPS)
    tree.kill_all()
    assert_all_end(tree)
    assert tree.returncode == (1 if sys.platform == "win32" else -signal.SIGKILL)


def test_kill_all_kills_the_children_of_an_ended_program():
    tree = started(STARTS_ONE)
    assert tree.wait() == 0
    tree.kill_all()
    assert_all_end(tree)


@pytest.mark.windows
@pytest.mark.parametrize("code", [PLAIN, OWN_JOB], ids=["a tree of its own", "its own job"])
def test_on_windows_it_ends_with_its_maker_in_whatever_way(code):
    tree = started(code)
    tree.kill()
    assert_all_end(tree)


def test_a_windows_exit_status_is_formatted_in_hexadecimal_with_its_meaning():
    assert describe_status(1) == "1"
    assert describe_status(0xC000013A) == "0xC000013A (Ctrl-C, Ctrl-Break or a closed console)"
    assert describe_status(0xC0000001) == "0xC0000001"
