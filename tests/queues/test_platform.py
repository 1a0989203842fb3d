from __future__ import annotations

import errno
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from queue_child import child_options

from headrace.queues.platform import connected_pair, create_segment, write_ticket

CHILD = """
import ast, sys
from headrace.queues.platform import open_segment, open_socket
tickets = ast.literal_eval(sys.stdin.read())
memory = open_segment(tickets["segment"], 4096).map()
sock = open_socket(tickets["socket"])
sock.sendall(memory[:5])
memory[:5] = sock.recv(5)
sock.sendall(b"done")
"""


@pytest.fixture(params=["fast", "plain"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without the fast paths."""
    monkeypatch.setenv("HEADRACE_PLATFORM", request.param)


FORGETFUL = """
import json, subprocess, sys
from headrace.queues.platform import open_segment, open_socket
tickets = json.load(sys.stdin)
segment, sock = open_segment(tickets["segment"], 4096), open_socket(tickets["socket"])
look = f"import os\\nfor it in ({segment.handle}, {sock.fileno()}):\\n  try: print(os.fstat(it))\\n  except OSError: pass"
game = subprocess.run([sys.executable, "-c", look], close_fds=False, capture_output=True, text=True, check=True)
sock.sendall(game.stdout.encode() or b"nothing")
"""


@pytest.mark.lengthy
@pytest.mark.skipif(sys.platform == "win32", reason="there nothing is inherited")
def test_processes_started_by_a_child_inherit_no_descriptors_of_it():
    ours, theirs = socket.socketpair()
    segment = create_segment(4096)
    child = subprocess.Popen(
        [sys.executable, "-c", FORGETFUL], stdin=subprocess.PIPE, text=True, **child_options(theirs, segment)
    )
    tickets = {"segment": write_ticket(segment, child.pid), "socket": write_ticket(theirs, child.pid)}
    child.communicate(json.dumps(tickets))
    assert (child.returncode, ours.recv(100)) == (0, b"nothing")
    for thing in (ours, theirs, segment):
        thing.close()


@pytest.mark.lengthy
@pytest.mark.usefixtures("kind")
def test_a_child_shares_the_memory_and_the_socket_that_it_was_given():
    ours, theirs = socket.socketpair()
    segment = create_segment(4096)
    memory = segment.map()
    memory[:5] = b"hello"
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, text=True, **child_options(theirs, segment)
    ) as child:
        tickets = {"socket": write_ticket(theirs, child.pid), "segment": write_ticket(segment, child.pid)}
        assert child.stdin is not None
        child.stdin.write(repr(tickets))
        child.stdin.close()
        theirs.close()
        segment.close()
        with ours:
            assert ours.recv(5) == b"hello"
            ours.sendall(b"world")
            assert ours.recv(4) == b"done"
    assert memory[:5] == b"world"


@pytest.mark.windows
def test_memory_for_which_there_is_no_room_is_refused_with_what_to_do():
    with pytest.raises(OSError, match="enlarge the paging file"):
        create_segment(1 << 46).map()


@pytest.mark.windows
def test_unused_shared_memory_takes_no_space():
    segments = [create_segment(1 << 46) for _ in range(100)]
    for each in segments:
        each.close()


TAKES_ANOTHERS = """
import socket, subprocess, sys
from headrace.queues.platform import open_socket, write_ticket
ours, theirs = socket.socketpair()
with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
    try:
        open_socket(write_ticket(theirs, child.pid))
    except OSError as error:
        print(error)
    child.kill()
"""


@pytest.mark.windows
def test_a_socket_whose_ticket_is_another_process_s_is_refused():
    # In a process of its own: Wine takes a handle with that number, whatever it is of, and closes it.
    command = [sys.executable, "-c", TAKES_ANOTHERS]
    assert (
        "WinError"
        in subprocess.run(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True, check=True).stdout
    )


@pytest.mark.usefixtures("kind")
def test_memory_has_no_name_that_could_stay_behind():
    segment = create_segment(4096)
    mine = f"headrace-{os.getpid()}-*"
    assert [*Path(tempfile.gettempdir()).glob(mine), *Path("/dev/shm").glob(mine)] == []
    segment.close()


@pytest.mark.usefixtures("kind")
def test_a_mapping_outlives_its_handle_and_a_duplicate_is_closed_on_its_own():
    segment = create_segment(4096)
    copy = segment.duplicate()
    first = segment.map()
    segment.close()
    segment.close()
    second = copy.map()
    copy.close()
    first[10:12] = b"ab"
    assert second[10:12] == b"ab"


@pytest.mark.skipif(sys.platform == "win32", reason="its memory is no file")
def test_disk_space_is_reserved_even_if_the_system_has_no_call_for_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_PLATFORM", "plain")
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    size = 3 * 2**16 + 5
    segment = create_segment(size)
    status = os.fstat(int(segment.handle))
    assert (status.st_size, status.st_blocks * 512 >= size) == (size, True)
    segment.close()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="room can't be set aside here")
def test_more_memory_than_there_is_fails_when_it_is_made_and_not_when_it_is_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_PLATFORM", "plain")
    gc.collect()  # what earlier tests left to the collector is not to be closed in between
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=r"No space left|File too large"):
        create_segment(1 << 50)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="room is set aside otherwise")
@pytest.mark.parametrize(
    ("number", "cure"), [(errno.ENOSPC, "set TMPDIR to another folder"), (errno.EFBIG, r"\(ulimit -f\)")]
)
def test_a_folder_without_room_for_shared_memory_is_named_with_what_to_do(monkeypatch, number, cure):
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setenv("HEADRACE_PLATFORM", "plain")
    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(OSError, match=f"{os.strerror(number)}: can't create a queue of 1,048,576 bytes .*{cure}"):
        create_segment(1 << 20)


def test_a_default_timeout_of_sockets_is_not_that_of_a_pair_which_a_child_takes_as_it_is():
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.001)
    try:
        ours, theirs = connected_pair()
    finally:
        socket.setdefaulttimeout(before)
    with ours, theirs:
        assert [each.gettimeout() for each in (ours, theirs)] == [None, None]
