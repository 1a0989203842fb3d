"""A child's end of its lifeline, a socket pair with main: the child ends when main is gone.

A thread waits for the lifeline to close, whatever else the child is doing. Until then, the thread answers main's
questions about what the child is doing. On Linux, the kernel also kills the child when main dies, even while a C call
holds the GIL; the sweeper then ends what the child has started (`process_cleanup`). Elsewhere, the thread does.

Import this module before anything slow; it postpones its own slow imports.
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

from headrace.paths import has_process_handles

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

ASK, END = b"?", b"\0"
"""Main's request, and the mark at the end of each answer."""
DUMP = getattr(signal, "SIGURG", None)
"""Signal that makes a host write its stack even while a C call holds the GIL; ignored if no handler is installed. None
on Windows, which lacks this signal.
"""
LENGTH = "<H"
"""`struct` format for the length of the ticket on Windows."""
_SET_PARENT_DEATH_SIGNAL = 1
"""Option of Linux's `prctl`."""


def die_with(parent: int) -> None:
    """Make the kernel kill this process when its parent ends, if supported; exit now if the parent is already gone.

    To the kernel, the parent is the thread that has started this process, so that thread must last as long as main.
    """
    if has_process_handles():  # otherwise the lifeline's thread ends this process's group, which the kernel can't
        import ctypes

        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if sys.platform != "win32" and os.getppid() != parent:
        os._exit(1)


def open_lifeline(argument: str) -> HostLifeline:
    """Open this process's end of the lifeline.

    Args:
        argument: main's process id and the lifeline's descriptor; on Windows, the lifeline instead arrives as a ticket
            at the start of standard input.
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
    """The host's end of the lifeline, which ends this process when main is gone.

    Args:
        sock: the host's end of the socket pair.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """The host's event loop, which runs in the thread that creates the lifeline; None until the host has started
        one.
        """
        self._sock = sock
        self._watched = threading.get_ident()
        self._describe: Callable[[asyncio.AbstractEventLoop | None, int], str] = _describe_imports
        if DUMP is not None:
            faulthandler.register(DUMP, sock.fileno(), all_threads=False)
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def let_users_code_run(self) -> None:
        """From now on, describe what the process does by stages and the user's code instead of imports.

        Call this before the user's code can hold an import lock.
        """
        from headrace.pipeline.common.loop_watch import describe_holder

        self._describe = describe_holder

    def _watch(self) -> None:
        with suppress(OSError):
            while self._sock.recv(64):
                self._sock.sendall(self._describe(self.loop, self._watched).encode() + END)
        if sys.platform != "win32" and not has_process_handles():
            with suppress(OSError):
                os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)


def _describe_imports(_: object, thread: int) -> str:
    """Describe which import a process is running before its work begins."""
    frame = sys._current_frames()[thread]
    return f"its imports\n  File {frame.f_code.co_filename!r}, line {frame.f_lineno}, in {frame.f_code.co_name}"
