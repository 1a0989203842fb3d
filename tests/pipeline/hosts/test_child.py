"""The entry of a process host."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys

import msgpack
import pytest

MESSAGE = msgpack.packb({"plan": {"name": "actor-0", "role": "actor"}, "orders": 0, "reports": 0, "links": {}})
START = struct.pack("<II", 0, len(MESSAGE)) + MESSAGE


@pytest.mark.lengthy
@pytest.mark.skipif(sys.platform == "win32", reason="there it gets a ticket")
@pytest.mark.parametrize(
    "received", [b"", START[:1], START[:8], START[:-1]], ids=["nothing", "a byte", "no message", "all but a byte"]
)
def test_a_host_whose_main_dies_before_sending_a_plan_ends_silently(received):
    (ours, theirs), (lifeline, their_lifeline) = socket.socketpair(), socket.socketpair()
    with theirs, their_lifeline:
        child = subprocess.Popen(
            [
                *(sys.executable, "-m", "headrace.pipeline.hosts.child"),
                *("actor-0", f"{os.getpid()}:{their_lifeline.fileno()}", ""),
            ],
            pass_fds=[their_lifeline.fileno()],
            stdin=theirs.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    with lifeline, ours:
        ours.sendall(received)
    assert (*child.communicate(), child.returncode) == (b"", b"", 1)


@pytest.mark.parametrize("call", ["breakpoint()", "input()", "import pdb; pdb.set_trace(); 1"])
def test_a_question_to_a_person_says_that_only_main_has_a_terminal(call):
    code = f"import sys; from headrace.pipeline.hosts.run_host import NoTerminal; sys.stdin = NoTerminal(); {call}; print(1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert "--set pipeline.hosts.actors.kind=inline for environments" in done.stderr.splitlines()[-1]
