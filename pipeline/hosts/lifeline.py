"""The lifeline between main and a process host: a socket pair beside the control channel, held by a thread of the host.

It works whatever the host's event loop is doing. Its end tells the host that main is gone; over it, main asks what a
silent host is doing.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import sys
import threading
from contextlib import suppress

from headrace.pipeline.common.loop_watch import describe_holder, own_frames
from headrace.pipeline.hosts.process_cleanup import end_group
from headrace.queues.platform import on_linux

ANSWER_S = 2.0
"""Seconds in which a host answers, unless it is stopped, or a C call holds Python's lock."""
DUMP_S = 0.5
"""The same for the stack that the system makes it write; it has no end mark."""
_ASK, _END = b"?", b"\0"
_ENDED = "its process has just ended"
_DUMP = getattr(signal, "SIGURG", None)
"""Makes a host write its stack even while a C call holds Python's lock; ignored where it is not handled. Windows has no
such signal."""
_SILENT = "its process does not run: it was stopped, or the machine has no time for it"
_SILENT_ON_WINDOWS = (
    "its process does not answer: it is in a call that holds Python's lock, which can't be looked into on Windows, it "
    "was stopped, or the machine has no time for it"
)


def die_with(parent: int) -> None:
    """In a host: let the system kill this process with the parent, where it can; end at once if it is gone already."""
    if on_linux():
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if sys.platform != "win32" and os.getppid() != parent:
        os._exit(1)


class HostLifeline:
    """A host's end: ends the process when main is gone, and where nothing sweeps (`process_cleanup`) its group with it.

    Args:
        sock: the host's end.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """The host's event loop, once it has one; it runs in the thread that makes the lifeline."""
        self._sock = sock
        self._watched = threading.get_ident()
        if _DUMP is not None:
            faulthandler.register(_DUMP, sock.fileno(), all_threads=False)
        threading.Thread(target=self._hold, name="lifeline", daemon=True).start()

    def _hold(self) -> None:
        with suppress(OSError):
            while self._sock.recv(64):
                self._sock.sendall(describe_holder(self.loop, self._watched).encode() + _END)
        end_group()
        os._exit(1)


class MainLifeline:
    """Main's end.

    Args:
        sock: main's end.
        pid: the host's process.
    """

    def __init__(self, sock: socket.socket, pid: int) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._pid = pid
        self._asking = asyncio.Lock()
        """Hosts that share a process are asked one after the other."""

    async def ask(self) -> str:
        """Return what the host is doing, in words and with its stack."""
        async with self._asking:
            return await self._ask()

    async def _ask(self) -> str:
        with suppress(OSError):
            while self._sock.recv(1 << 16):  # answers that came too late
                pass
        try:
            with suppress(TimeoutError):
                await asyncio.get_running_loop().sock_sendall(self._sock, _ASK)
                answer = await self._read(ANSWER_S)
                return answer.removesuffix(_END).decode(errors="replace") or _ENDED
            if _DUMP is not None:
                with suppress(TimeoutError):
                    os.kill(self._pid, _DUMP)
                    dumped = await self._read(DUMP_S)
                    return f"in a call that holds Python's lock\n{_turned(dumped.decode(errors='replace'))}"
        except (OSError, ValueError):  # its end, or main's, was closed
            return _ENDED
        return _SILENT if _DUMP is not None else _SILENT_ON_WINDOWS

    async def _read(self, seconds: float) -> bytes:
        """Read an answer to its end, or what there is of it by then.

        Raises:
            TimeoutError: if there is nothing.
        """
        loop, answer = asyncio.get_running_loop(), bytearray()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not answer.endswith(_END):
                    answer += await loop.sock_recv(self._sock, 1 << 16) or _END
        if not answer:
            raise TimeoutError
        return bytes(answer)

    def close(self) -> None:
        """Let go: what is left of the host ends."""
        self._sock.close()


def _turned(dump: str) -> str:
    """Turn a dump of faulthandler, which begins with the innermost call, into the order of a traceback."""
    lines = [line for line in dump.splitlines() if line.startswith("  File ")]
    return "\n".join(own_frames(lines[::-1]))
