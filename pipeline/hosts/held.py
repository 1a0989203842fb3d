"""A child's end of its lifeline: the first thing that every child of ours has, so that it ends when main is gone.

A thread holds it, whatever else the child is doing: it waits for the line's end, and says meanwhile what the child is
at if main asks. Until the child runs code of users, Linux kills it with main, during an import in C too. From then on
that code may have started programs, which the thread sees to as well.

To be imported before anything that takes time; what this module itself needs later, it imports then.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import struct
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.place import on_linux

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

ASK, END = b"?", b"\0"
"""What main asks, and the end of each answer."""
DUMP = getattr(signal, "SIGURG", None)
"""Makes a host write its stack even while a C call holds Python's lock; ignored where it is not handled. Windows has no
such signal."""
LENGTH = "<H"
"""Of the ticket, on Windows."""
_SET_PARENT_DEATH_SIGNAL = 1
_CLEANUP = "headrace.pipeline.hosts.process_cleanup"


def die_with(parent: int) -> None:
    """Let the system kill this process with the parent, where it can; end at once if it is gone already."""
    _die_by(signal.SIGKILL if sys.platform != "win32" else 0)
    if sys.platform != "win32" and os.getppid() != parent:
        os._exit(1)


def _die_by(number: int) -> None:
    if on_linux():
        import ctypes

        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, number)


def hold_lifeline(argument: str) -> HostLifeline:
    """Take hold of the lifeline of this process.

    Args:
        argument: main's process id and the descriptor; on Windows a ticket comes first on standard input.
    """
    parent, _, descriptor = argument.partition(":")
    if sys.platform == "win32":
        head = sys.stdin.buffer.read(struct.calcsize(LENGTH))
        if not head:  # main has died
            os._exit(1)
        return HostLifeline(socket.fromshare(sys.stdin.buffer.read(*struct.unpack(LENGTH, head))))
    die_with(int(parent))
    os.set_inheritable(int(descriptor), False)
    return HostLifeline(socket.socket(fileno=int(descriptor)))


# A thread reads the lifeline, because the event loop may hang when main dies (docs/decisions/011).
class HostLifeline:
    """A host's end: ends the process when main is gone, and what it has started with it.

    Args:
        sock: the host's end.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """The host's event loop, once it has one; it runs in the thread that makes the lifeline."""
        self._sock = sock
        self._watched = threading.get_ident()
        self._describe: Callable[[asyncio.AbstractEventLoop | None, int], str] = _describe_imports
        if DUMP is not None:
            faulthandler.register(DUMP, sock.fileno(), all_threads=False)
        threading.Thread(target=self._hold, name="lifeline", daemon=True).start()

    def let_users_code_run(self) -> None:
        """See that what users' code starts is ended too: the system would kill this process before it can."""
        from headrace.pipeline.common.loop_watch import describe_holder  # while nothing holds an import's lock
        from headrace.pipeline.hosts.process_cleanup import sweeps

        self._describe = describe_holder
        if sweeps():
            _die_by(0)

    def _hold(self) -> None:
        with suppress(OSError):
            while self._sock.recv(64):
                self._sock.sendall(self._describe(self.loop, self._watched).encode() + END)
        if cleanup := sys.modules.get(_CLEANUP):  # else no code of users has run; an import might wait for another one
            cleanup.end_what_main_left()
        os._exit(1)


def _describe_imports(_: object, thread: int) -> str:
    """Say where a process is that has not begun."""
    frame = sys._current_frames()[thread]
    return f"its imports\n  File {frame.f_code.co_filename!r}, line {frame.f_lineno}, in {frame.f_code.co_name}"
