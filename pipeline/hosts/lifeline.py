"""Main's end of the lifeline between main and a process host: a socket pair in addition to the control channel.

The lifeline works whatever the host's event loop is doing (`held`). When it closes, the host knows that main is gone.
Main also uses it to ask what a silent host is doing.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress

from headrace.pipeline.common.loop_watch import own_frames
from headrace.pipeline.hosts.held import ASK, DUMP, END

ANSWER_S = 2.0
"""Seconds to wait for a host's answer, which arrives in time unless the host is stopped or a C call holds the GIL."""
DUMP_S = 0.5
"""Seconds to wait for a stack that the host writes on a signal. A stack has no end mark, so main can't tell when it is
complete."""
_ENDED = "its process has just ended"
_SILENT = "its process is not running: the process was stopped, or the machine is too busy"
_SILENT_ON_WINDOWS = (
    "its process does not respond: it is in a call that holds the GIL (which can't be inspected on Windows), it was "
    "stopped, or the machine is too busy"
)


class MainLifeline:
    """Main's end of the lifeline.

    Args:
        sock: main's end of the socket pair.
        pid: the host's process id.
    """

    def __init__(self, sock: socket.socket, pid: int) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._pid = pid
        self._asking = asyncio.Lock()
        """Serialises requests to hosts that share a process."""

    async def ask(self) -> str:
        """Ask the host what it is doing. Return the host's answer, which includes its stack."""
        async with self._asking:
            return await self._ask()

    async def _ask(self) -> str:
        with suppress(OSError):
            while self._sock.recv(1 << 16):  # late answers to earlier requests
                pass
        try:
            with suppress(TimeoutError):
                await asyncio.get_running_loop().sock_sendall(self._sock, ASK)
                answer = await self._read(ANSWER_S)
                return answer.removesuffix(END).decode(errors="replace") or _ENDED
            if DUMP is not None:
                with suppress(TimeoutError):
                    os.kill(self._pid, DUMP)
                    dumped = await self._read(DUMP_S)
                    return f"in a call that holds the GIL\n{_turned(dumped.decode(errors='replace'))}"
        except (OSError, ValueError):  # one of the two ends was closed
            return _ENDED
        return _SILENT if DUMP is not None else _SILENT_ON_WINDOWS

    async def _read(self, seconds: float) -> bytes:
        """Read an answer up to its end mark, or whatever arrives within the time limit.

        Raises:
            TimeoutError: if nothing arrives.
        """
        loop, answer = asyncio.get_running_loop(), bytearray()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not answer.endswith(END):
                    answer += await loop.sock_recv(self._sock, 1 << 16) or END
        if not answer:
            raise TimeoutError
        return bytes(answer)

    def close(self) -> None:
        """Close the lifeline, which ends any of the host's processes that are still running."""
        self._sock.close()


def _turned(dump: str) -> str:
    """Reverse a faulthandler dump (innermost call first) into traceback order."""
    lines = [line for line in dump.splitlines() if line.startswith("  File ")]
    return "\n".join(own_frames(lines[::-1]))
