"""Starts Headrace's child processes and talks to them.

A child is always a new interpreter (`child`), never a fork of a process that has threads and loaded libraries, so its
state does not depend on where and when it was started. It has a lifeline, by which it ends with main and main asks what
it is doing (`parent_death`), a mark, by which leftover processes are found (`process_cleanup`), and a crash file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from headrace.pipeline.common.loop_watch import own_frames
from headrace.pipeline.common.process import let_child_find_us, start_python, use_one_thread
from headrace.pipeline.control import HostFailed
from headrace.pipeline.hosts.crash_file import RAISED, CrashFile
from headrace.pipeline.hosts.parent_death import ASK, DUMP, END, LENGTH
from headrace.pipeline.hosts.process_cleanup import end_left_behind, new_mark, sweep_after_this_process
from headrace.pipeline.hosts.protocol import crashed, how_it_ended
from headrace.pipeline.hosts.sweeper import VARIABLE
from headrace.process_tree import ProcessTree
from headrace.queues.codec import pack
from headrace.queues.platform import Segment, hand_over
from headrace.startup_context import socket_pair, startup_context

log = logging.getLogger(__name__)

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


UNKILLABLE_S = 2.0
"""Seconds after which a killed child counts as ended, even if the system still keeps it."""


class ChildProcess:
    """A child process that waits for a host, imports the host's modules meanwhile, and then runs the host.

    Create it in a thread that lasts as long as the run, because the child ends with that thread (`die_with`).

    Args:
        name: name of the host that the child will run.
        modules: modules that the child imports while it waits.

    Attributes:
        start_socket: carries start messages to the child and, if hosts share the child, notices of ended hosts back.
        pid: the child's process id.
    """

    def __init__(self, name: str, modules: Sequence[str] = ()) -> None:
        self._name, self._crash_file, self._crash_text = name, CrashFile(), ""
        self.failure: HostFailed | None = None
        """Error that the child raised outside its hosts; None if it raised no error or has not ended."""
        self._mark, (self.start_socket, theirs) = new_mark(), socket_pair()
        with theirs:
            stdin = subprocess.PIPE if sys.platform == "win32" else theirs.fileno()
            self._process, lifeline, ticket = start_child(
                "headrace.pipeline.hosts.child", name, self._crash_file, modules, self._mark, stdin=stdin
            )
            self.pid = self._process.pid
            if sys.platform == "win32" and self._process.stdin is not None:
                with suppress(OSError), self._process.stdin:  # the child has died, as its exit status will show
                    self._process.stdin.write(ticket + theirs.share(self.pid))
        self._lifeline = MainLifeline(lifeline, self.pid)
        self._ended: asyncio.Future[int] | None = None

    @property
    def alive(self) -> bool:
        """True until the child has ended."""
        return self._process.poll() is None

    @property
    def ended(self) -> asyncio.Future[int]:
        """Future that resolves to the child's exit status when the child has ended."""
        assert self._ended is not None, "it has been assigned"
        return self._ended

    async def assign(
        self, start_message: dict[str, Any], resources: Sequence[socket.socket | Segment], *, more: bool = False
    ) -> None:
        """Send the child its start message. Ignore errors from a dead child, because its exit status reports the death.

        Args:
            start_message: plain data with tickets.
            resources: the sockets and segments that the tickets stand for.
            more: True if more start messages may follow.
        """
        loop = asyncio.get_running_loop()
        first, self._ended = self._ended is None, self._ended or loop.create_future()
        try:
            with suppress(ConnectionError):
                await hand_over(self.start_socket, resources, pack(start_message))
        except BaseException:
            if first:
                self.dismiss()
            else:
                self.kill()  # the listener notices that the child has ended
            raise
        if not more:
            self.start_socket.close()
        if first:
            threading.Thread(target=self._await_end, args=(loop,), name=f"end of {self.pid}", daemon=True).start()

    async def ask(self) -> str:
        """Ask the child what it is doing, and return its answer, which includes its stack."""
        return await self._lifeline.ask()

    async def wait(self) -> int:
        """Wait for the child to end; return its exit status, which is negative if a signal killed it."""
        status = await asyncio.shield(self.ended)
        written, self._crash_text = self._crash_text, ""
        if RAISED in written:
            message = f"the process of {self._name} {how_it_ended(status)}:\n{written}"
            self.failure = HostFailed(message, written, self._name)
        elif written and crashed(status):
            log.warning("The process of %s has crashed:\n%s", self._name, written)
        return status

    def _await_end(self, loop: asyncio.AbstractEventLoop) -> None:
        status = self._process.wait()
        end_left_behind(self._process, self._mark)
        self._crash_text = self._crash_file.read_and_close()
        with suppress(RuntimeError):  # the loop is closed, so nothing waits for the result
            loop.call_soon_threadsafe(self._has_ended, status)

    def _has_ended(self, status: int) -> None:
        if not self.ended.done():
            self.ended.set_result(status)

    def kill(self) -> None:
        """Kill the child, after which everything that it has started is ended."""
        with suppress(ProcessLookupError):  # it has already ended
            self._process.kill()
        with suppress(RuntimeError):  # the loop is closed
            if self._ended is not None:  # the system keeps a killed process that waits for a frozen disk
                self._ended.get_loop().call_later(UNKILLABLE_S, self._has_ended, -9)

    def close(self) -> None:
        """Close the lifeline, which ends the child if it is still running."""
        self._lifeline.close()

    def dismiss(self) -> None:
        """End an unneeded child."""
        self.start_socket.close()
        self._lifeline.close()
        self._crash_file.read_and_close()
        self.kill()
        self._process.wait()


class MainLifeline:
    """Main's end of the lifeline.

    Args:
        sock: main's end of the socket pair.
        pid: the host's process id.
        dump: signal that makes the host write its stack; None if there is none.
        answer_s: see `ANSWER_S`.
    """

    def __init__(
        self, sock: socket.socket, pid: int, dump: signal.Signals | None = DUMP, answer_s: float = ANSWER_S
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._pid = pid
        self._dump = dump
        self._answer_s = answer_s
        self._asking = asyncio.Lock()
        """Serialises requests to hosts that share a process."""

    async def ask(self) -> str:
        """Ask the host what it is doing. Return the host's answer, which includes its stack."""
        async with self._asking:
            return await self._answer()

    async def _answer(self) -> str:
        with suppress(OSError):
            while self._sock.recv(1 << 16):  # late answers to earlier requests
                pass
        try:
            with suppress(TimeoutError):
                await asyncio.get_running_loop().sock_sendall(self._sock, ASK)
                answer = await self._read(self._answer_s)
                return answer.removesuffix(END).decode(errors="replace") or _ENDED
            if self._dump is not None:
                with suppress(TimeoutError):
                    os.kill(self._pid, self._dump)
                    dumped = await self._read(DUMP_S)
                    return f"in a call that holds the GIL\n{_turned(dumped.decode(errors='replace'))}"
        except (OSError, ValueError):  # one of the two ends was closed
            return _ENDED
        return _SILENT if self._dump is not None else _SILENT_ON_WINDOWS

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


# `multiprocessing` would need a guard in the user's script, and would pickle what it sends (docs/decisions/007).
def start_child(
    module: str,
    name: str,
    crash_file: CrashFile,
    arguments: Sequence[str],
    mark: str,
    **options: Any,
) -> tuple[ProcessTree, socket.socket, bytes]:
    """Run one of Headrace's modules in a child process that ends when its lifeline closes.

    Args:
        module: the module to run. It must take its lifeline before anything else (`parent_death`). Its command-line
            arguments are the name, one argument each for the lifeline and the crash file, and then `arguments`.
        name: the child's name in a process list.
        crash_file: main's handle on the child's crash file.
        arguments: additional arguments.
        mark: environment mark by which the child's own children are recognised (`process_cleanup`).
        options: as for `start_python`.

    Returns:
        The child, main's end of its lifeline, and the first bytes to write to its standard input.
    """
    sweep_after_this_process()
    ours, theirs = socket_pair()
    try:
        with theirs:
            options = {**crash_file.options, **options}
            if sys.platform != "win32":
                options["pass_fds"] = [*options.get("pass_fds", ()), theirs.fileno()]
            # The working directory must not come first on the path: the user may have a `random.py` there.
            line = ["-P", "-m", module, name, f"{os.getpid()}:{theirs.fileno()}", crash_file.argument, *arguments]
            child = start_python(line, child_environment() | {VARIABLE: mark}, **options)
            ticket = b""
            if sys.platform == "win32":
                ticket = theirs.share(child.pid)
                ticket = struct.pack(LENGTH, len(ticket)) + ticket
    except BaseException:
        ours.close()
        raise
    return child, ours, ticket


def child_environment() -> dict[str, str]:
    """Return a child's environment variables. They give it the same packages, and one thread for numeric libraries."""
    environment = dict(startup_context().variables)
    let_child_find_us(environment)
    use_one_thread(environment)
    return environment
