"""Process hosts: a host in a process of its own, started without fork or pickle.

The child is `python -m pipeline.hosts.child`; its plan, and tickets for its control socket and links, reach it as one
msgpack message on its standard input. It ends when it has no work left, or when main's end of the control channel
closes: so nothing stays behind when main is killed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack

from pipeline.common.threads import use_one_thread
from pipeline.control.channel import SocketControl
from pipeline.hosts.edges import HostLinks
from pipeline.hosts.plan import HostPlan
from queues.links import child_options_of
from queues.platform import write_ticket


class ProcessHost:
    """A running process host."""

    def __init__(
        self, plan: HostPlan, control: SocketControl, process: asyncio.subprocess.Process, links: HostLinks
    ) -> None:
        self.plan = plan
        self.control = control
        self.links: HostLinks | None = links
        self._process = process

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the process's end; its exit status, negative for a signal."""
        return await self._process.wait()

    def kill(self) -> None:
        """Kill the process."""
        with suppress(ProcessLookupError):  # it was quicker
            self._process.kill()


async def start_process(plan: HostPlan, links: HostLinks) -> ProcessHost:
    """Start a host process; returns when it has its plan."""
    ours, theirs = socket.socketpair()
    ends = list(links.born_with.values())
    with theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pipeline.hosts.child",
            plan.name,  # for people: so that a list of processes says which one it is
            stdin=asyncio.subprocess.PIPE,
            env=child_environment(),
            start_new_session=True,  # Ctrl-C in a terminal is for main alone, which drains
            **child_options_of(ends, theirs),
        )
        birth: dict[str, Any] = {
            "plan": plan.to_plain(),
            "control": write_ticket(theirs, process.pid),
            "links": {name: end.ticket(process.pid) for name, end in links.born_with.items()},
        }
        assert process.stdin is not None, "asked for with PIPE"
        process.stdin.write(msgpack.packb(birth, use_bin_type=True))
        with suppress(ConnectionError):  # it died already; its exit status tells
            await process.stdin.drain()
        process.stdin.close()
    reader, writer = await asyncio.open_connection(sock=ours)
    return ProcessHost(plan, SocketControl(reader, writer), process, links)


def child_environment() -> dict[str, str]:
    """The child finds the same packages, and its numeric libraries use one thread unless the user said otherwise."""
    environment = dict(os.environ)
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *environment.get("PYTHONPATH", "").split(os.pathsep)]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    use_one_thread(environment)
    return environment
