"""The process that runs one or more hosts: waits for start messages, and starts a host for each.

Hosts that share a process share its event loop: each waits only for its own queues, but only one of them computes at a
time, as on a shared core. When a host ends, normally or with an exception, the others continue. The process sends the
ended host's exit status to main over the socket on which start messages arrive. When the process ends, all its hosts
end.
"""

from __future__ import annotations

import asyncio
import ctypes
import io
import logging
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from headrace.paths import on_linux
from headrace.pipeline.common.output import EveryRecord, complain
from headrace.pipeline.common.process import follow_path_of_main
from headrace.pipeline.common.run_parts import host_role
from headrace.pipeline.control import ControlEnd, LogLine, SocketControl
from headrace.pipeline.hosts.links import ProcessEdges
from headrace.pipeline.hosts.parent_death import HostLifeline
from headrace.pipeline.hosts.protocol import HostEdges, HostPlan, HostWork, describe_failure
from headrace.queues.codec import unpack
from headrace.queues.platform import open_socket, take_over
from headrace.stages.errors import StageError, is_failure
from headrace.stages.loading import load_attribute
from headrace.startup_context import keep_startup_context

NOTICE = struct.Struct("<IB")
"""Format of the notice that a host has ended: the host's number and exit status."""
LINK = ("socket", "segment")
"""Keys of a link's ticket: the tickets for its socket and its shared memory."""


class NoTerminal(io.TextIOBase):
    """Standard input of a host, which refuses questions to a person, for example by `breakpoint()` and `input()`."""

    def readline(self, *_: object) -> str:  # type: ignore[override]
        """Raise an error that says what to do instead."""
        raise StageError(
            "breakpoint() or input() needs a terminal, which this process lacks; run this part in the main process: "
            "--set pipeline.hosts.actors.kind=inline for environments, pipeline.hosts.learners.kind=inline for trainers"
        )


class StartChannel:
    """The child's end of the socket that carries start messages to the child, and notices of ended hosts to main.

    The socket is standard input; on Windows, a ticket for the socket arrives on standard input.

    Raises:
        EOFError: if main died before it wrote the ticket.
    """

    def __init__(self) -> None:
        if sys.platform == "win32":
            ticket = sys.stdin.buffer.read()
            if not ticket:
                raise EOFError("there is no ticket")
            self._sock = open_socket(ticket)
        else:
            self._sock = socket.socket(fileno=os.dup(0))
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)  # programs started here inherit the null device, not the socket
            os.close(nothing)
            sys.stdin = NoTerminal()

    def receive(self) -> dict[str, Any]:
        """Wait for the next start message, and return it with tickets that are valid in this process.

        Raises:
            EOFError: if no more messages will come, or main died before it had sent an entire message.
        ConnectionError: if main has died.
        """
        data, handles = take_over(self._sock)
        start_message: dict[str, Any] = unpack(data)
        for tickets, names in (
            (start_message, ("orders", "reports")),
            *((t, LINK) for t in start_message["links"].values()),
        ):
            tickets.update((name, handles.get(tickets[name], tickets[name])) for name in names)
        return start_message

    def tell(self, number: int, status: int) -> None:
        """Notify main that a host has ended."""
        with suppress(ConnectionError):  # main has died, so the lifeline ends this process
            self._sock.sendall(NOTICE.pack(number, status))


def run_host_process(lifeline: HostLifeline) -> int:
    """Wait for the first start message and run its host; return the exit status."""
    try:
        channel = StartChannel()
        start_message = channel.receive()
    except (EOFError, ConnectionError):  # main has died, or no longer needs the host
        return 1
    lifeline.let_users_code_run()
    follow_path_of_main(start_message["path"])
    sys.argv[:] = start_message["plan"]["argv"]
    keep_startup_context()
    prepare_for_training(start_message["plan"]["role"])
    # On Windows the default loop would bind each socket to this process forever, so no replacement could use it.
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(_live(start_message, channel, lifeline))


async def _live(start_message: dict[str, Any], channel: StartChannel, lifeline: HostLifeline) -> int:
    """Run the host described by the first start message, and the hosts described by any later messages."""
    lifeline.loop = asyncio.get_running_loop()
    if "number" in start_message:
        await serve_together(start_message, channel)
        return 0
    return await run_host(start_message)


async def run_host(start_message: dict[str, Any]) -> int:
    """Run the host that a start message describes; return the host's exit status."""
    plan = HostPlan(**start_message["plan"])
    control = await SocketControl.open(open_socket(start_message["orders"]), open_socket(start_message["reports"]))
    log_to_main(plan, control)
    edges = ProcessEdges(start_message["links"])
    ended_well = await serve(plan, control, edges)
    if ended_well:
        await edges.close()
    if "number" in start_message:  # otherwise the process ends
        await edges.abandon()
    return 0 if ended_well else 1


async def serve_together(first: dict[str, Any], channel: StartChannel) -> None:
    """Run several hosts in this process until main sends no more start messages and all hosts have ended."""
    loop, starts = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any] | None]()

    def receive() -> None:
        with suppress(EOFError, ConnectionError, RuntimeError):  # the loop has ended
            while True:
                loop.call_soon_threadsafe(starts.put_nowait, channel.receive())
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(starts.put_nowait, None)

    async def live(start_message: dict[str, Any]) -> None:
        channel.tell(start_message["number"], await run_host(start_message))

    threading.Thread(target=receive, name="starts", daemon=True).start()
    async with asyncio.TaskGroup() as hosts:
        start_message: dict[str, Any] | None = first
        while start_message is not None:
            hosts.create_task(live(start_message))
            start_message = await starts.get()


# Logging in a host outside main: records go to main over the host's control channel. If several hosts share a process,
# each record uses the channel of the host whose task logged it. If a thread that belongs to no host logged the record,
# it uses the first host's channel.

_CHANNEL: ContextVar[ControlEnd | None] = ContextVar("channel of the host's log", default=None)


class ControlLogHandler(logging.Handler):
    """Sends log records to main, which shows them to the user."""

    def __init__(self, control: ControlEnd) -> None:
        super().__init__()
        self.setFormatter(EveryRecord())
        self._control = control
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record to main, or write it to standard error in a fork, which must not use the channel."""
        try:
            text = self.format(record)
            if os.getpid() != self._pid:
                complain(f"[{record.levelname}] {text}")
                return
            (_CHANNEL.get() or self._control).send(LogLine(record.levelno, record.name, text))
        except Exception:
            self.handleError(record)


def log_to_main(plan: HostPlan, control: ControlEnd) -> None:
    """Send main all log records from this task, from tasks that it starts, and from threads that belong to no host."""
    _CHANNEL.set(control)
    root = logging.getLogger()
    if not any(isinstance(handler, ControlLogHandler) for handler in root.handlers):
        root.addHandler(ControlLogHandler(control))
    root.setLevel(logging.DEBUG if plan.config.get("debug") else logging.INFO)


def prepare_for_training(role: str) -> None:
    """In a process that trains, limit torch to one thread, and keep freed memory for the next tensors."""
    if role in ("learner", "follower"):
        import torch

        torch.set_num_threads(1)
        keep_freed_memory()


_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # constants from glibc's malloc.h
_ALWAYS, _OF_OLDER = 1 << 30, 1 << 25  # older versions of glibc accept no more than this
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Make the process keep freed memory instead of returning it to the system; return True on success.

    The system zeroes each page that it hands out. An update on images allocates tensors of tens of megabytes that live
    for milliseconds, and zeroing takes a sixth of the update's time. Only glibc has a setting for this.
    """
    if not on_linux():
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl
        return False
    kept = mallopt(_MMAP_THRESHOLD, _ALWAYS) or mallopt(_MMAP_THRESHOLD, _OF_OLDER)
    return bool(kept and mallopt(_TRIM_THRESHOLD, _NEVER))


# Runs a host from its plan: the single entry point for hosts in main's process and in other processes.


def build_host(plan: HostPlan, control: ControlEnd, edges: HostEdges) -> HostWork:
    """Create the host object for the plan's role."""
    work: HostWork = load_attribute(plan.host_class or host_role(plan.role).implementation, None, "host")(
        plan, control, edges
    )
    return work


async def serve(
    plan: HostPlan,
    control: ControlEnd,
    edges: HostEdges,
    build: Callable[[HostPlan, ControlEnd, HostEdges], HostWork] = build_host,
) -> bool:
    """Run a host until it has nothing left to do; report its end to main, whatever the reason.

    Returns:
        True if the host succeeded.
    """
    try:
        host = build(plan, control, edges)
    except BaseException as error:
        if not is_failure(error):
            raise
        control.send(describe_failure(plan.name, error))
        await control.drain()
        control.close()
        return False
    try:
        return await host.run()
    finally:
        await control.drain()
        control.close()
