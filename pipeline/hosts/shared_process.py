"""Main's side of a process that several hosts share."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Sequence
from typing import Any

from headrace.pipeline.control.messages import HostFailed
from headrace.pipeline.hosts.child_process import ChildProcess
from headrace.pipeline.hosts.host_process import NOTICE
from headrace.pipeline.hosts.lifeline import MainLifeline
from headrace.queues.platform import Segment

LAST_WORDS_S = 1.0
"""Seconds within which a dead process's sockets close, unless its forks still hold them."""


# A learner process costs 200 MB and a second of imports; more processes than cores gain nothing (docs/decisions/010).
class SharedProcess:
    """A process that accepts more hosts as long as at least one is running in it.

    Args:
        child: a child without a host.
        tasks: the group for the task that receives notices of ended hosts.
    """

    def __init__(self, child: ChildProcess, tasks: asyncio.TaskGroup) -> None:
        self._child = child
        self._tasks = tasks
        self._numbers = itertools.count()
        self._ends: dict[int, asyncio.Future[int]] = {}
        """Futures for the hosts' exit statuses, keyed by host number."""
        self._taking_in = asyncio.Lock()
        self._begun = False
        self._over = False

    @property
    def pid(self) -> int:
        """Id of the shared process."""
        return self._child.pid

    @property
    def failure(self) -> HostFailed | None:
        """Error that the process raised outside its hosts; None if it raised no error or has not ended."""
        return self._child.failure

    @property
    def open(self) -> bool:
        """True while the process accepts hosts."""
        return not self._over and self._child.alive

    async def take_in(
        self, start_message: dict[str, Any], things: Sequence[socket.socket | Segment]
    ) -> SharedProcessHost:
        """Start a host in the process; the arguments are those of `ChildProcess.be`."""
        number = next(self._numbers)
        self._ends[number] = asyncio.get_running_loop().create_future()
        try:
            async with self._taking_in:
                if not self._begun:
                    await self._begin({**start_message, "number": number}, things)
                else:
                    await self._child.be({**start_message, "number": number}, things, more=True)
        except BaseException:
            del self._ends[number]
            self._over = True  # the other hosts' owners notice that the process has ended
            raise
        return SharedProcessHost(self, self._child.lifeline, self._ends[number])

    async def _begin(self, start_message: dict[str, Any], things: Sequence[socket.socket | Segment]) -> None:
        await self._child.be(start_message, things, more=True)
        self._begun = True
        self._tasks.create_task(self._hear())

    async def _hear(self) -> None:
        """Receive notices of ended hosts until the process has ended, which also ends all hosts still in it."""
        notices = self._tasks.create_task(self._take_notices())
        try:
            status = await self._child.wait()
            await asyncio.wait([notices], timeout=LAST_WORDS_S)
            for end in self._ends.values():
                if not end.done():
                    end.set_result(status)
        finally:
            self._over = True
            notices.cancel()
            self._child.lifeline.close()
            self._child.leave()

    async def _take_notices(self) -> None:
        heard = bytearray()
        while some := await self._child.hear():
            heard += some
            while len(heard) >= NOTICE.size:
                number, status = NOTICE.unpack_from(heard)
                del heard[: NOTICE.size]
                self._ends[number].set_result(status)
            if not self._over and all(end.done() for end in self._ends.values()):
                self._over = True
                self._child.let_end()

    def kill(self) -> None:
        """Kill the process and all its hosts."""
        self._over = True
        self._child.kill()


class SharedProcessHost:
    """One host in a shared process; used in place of a `ChildProcess` and its lifeline."""

    def __init__(self, process: SharedProcess, lifeline: MainLifeline, end: asyncio.Future[int]) -> None:
        self._process = process
        self._lifeline = lifeline
        self.ended = end
        """Future that resolves to the exit status when the host or the process has ended."""

    @property
    def pid(self) -> int:
        """Id of the shared process."""
        return self._process.pid

    @property
    def failure(self) -> HostFailed | None:
        """Error that the process raised outside its hosts; None if it raised no error or has not ended."""
        return self._process.failure

    async def wait(self) -> int:
        """Wait for the host or the process to end; return the exit status, which is negative if a signal killed it."""
        return await asyncio.shield(self.ended)

    def kill(self) -> None:
        """Kill the process if the host has not ended yet."""
        if not self.ended.done():
            self._process.kill()

    async def ask(self) -> str:
        """Ask the process what it is doing, and return its answer."""
        return await self._lifeline.ask()

    def close(self) -> None:
        """Do nothing: the process and its lifeline are released when the process ends."""
