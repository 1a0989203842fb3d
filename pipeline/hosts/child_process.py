"""Main's child processes: each imports its modules, then waits for a message that assigns its host.

Imports take most of a child's start. Main therefore starts children before its own imports, as soon as the
configuration shows which ones are needed (`started_early`), and all processes import in parallel. If the need for a
host could not be foreseen, its child starts together with the host. A child is always a new interpreter, never a fork
of a process that has threads and loaded libraries, so its state does not depend on where and when it was started.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS
from headrace.config.trainers import TRAINERS
from headrace.pipeline.common.graph import actor_names, acts, learner_name
from headrace.pipeline.common.process import usable_cores
from headrace.pipeline.control.messages import HostFailed
from headrace.pipeline.hosts.birth import child_environment, start_child
from headrace.pipeline.hosts.failures import crashed, how_it_ended
from headrace.pipeline.hosts.last_words import RAISED, LastWords
from headrace.pipeline.hosts.lifeline import MainLifeline
from headrace.pipeline.hosts.process_cleanup import new_mark, sweeps, watch_host
from headrace.queues.packing import pack
from headrace.queues.platform import Segment, hand_over
from headrace.surroundings import socket_pair

log = logging.getLogger(__name__)

_early: dict[str, ChildProcess] = {}
"""Unassigned children, keyed by the name of the intended host. A run takes children by name. If two runs in one process
need the same name, either may take the child, because unassigned children are interchangeable.
"""


class ChildProcess:
    """A child process started by this process.

    Args:
        name: name of the host that the child will run.
        modules: modules that the child imports while it waits.
    """

    def __init__(self, name: str, modules: Sequence[str] = ()) -> None:
        self._name, self._words, self._said = name, LastWords(), ""
        self.failure: HostFailed | None = None
        """Error that the child raised outside its hosts; None if it raised no error or has not ended."""
        mark, (self._start_socket, theirs) = new_mark(name), socket_pair()
        with theirs:
            stdin = subprocess.PIPE if sys.platform == "win32" else theirs.fileno()
            module, environment = "headrace.pipeline.hosts.child", child_environment()
            started = start_child(module, name, self._words, modules, environment, mark, stdin=stdin)
            self._process, lifeline, ticket = started
            if sys.platform == "win32" and self._process.stdin is not None:
                with suppress(OSError), self._process.stdin:  # the child has died, as its exit status will show
                    self._process.stdin.write(ticket + theirs.share(self.pid))
        self.lifeline = MainLifeline(lifeline, self.pid)
        watch_host(self.pid, mark)
        self._ended: asyncio.Future[int] | None = None

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True until the child has ended."""
        return self._process.poll() is None

    @property
    def ended(self) -> asyncio.Future[int]:
        """Future that resolves to the child's exit status when the child has ended."""
        assert self._ended is not None, "it has been assigned"
        return self._ended

    @property
    def spoke(self) -> bool:
        """True if the child has written why it is ending."""
        return self._words.written

    async def be(
        self, start_message: dict[str, Any], things: Sequence[socket.socket | Segment], *, more: bool = False
    ) -> None:
        """Send the child its start message. Ignore errors from a dead child, because its exit status reports the death.

        Args:
            start_message: plain data with tickets.
            things: the sockets and segments that the tickets stand for.
            more: True if more start messages may follow.
        """
        loop = asyncio.get_running_loop()
        first, self._ended = self._ended is None, self._ended or loop.create_future()
        try:
            with suppress(ConnectionError):
                await hand_over(self._start_socket, things, pack(start_message))
        except BaseException:
            if first:
                self.dismiss()
            else:
                self.kill()  # the listener notices that the child has ended
            raise
        if not more:
            self._start_socket.close()
        if first:
            threading.Thread(target=self._await_end, args=(loop,), name=f"end of {self.pid}", daemon=True).start()

    async def hear(self) -> bytes:
        """Return bytes that the child sends over the socket for start messages; empty once the socket is closed."""
        with suppress(ConnectionError):
            return await asyncio.get_running_loop().sock_recv(self._start_socket, 1 << 10)
        return b""

    def let_end(self) -> None:
        """Announce that no more start messages will follow."""
        with suppress(OSError):  # the child has already closed it
            self._start_socket.shutdown(socket.SHUT_WR)

    def leave(self) -> None:
        """Close the socket for start messages."""
        self._start_socket.close()

    async def wait(self) -> int:
        """Wait for the child to end; return its exit status, which is negative if a signal killed it."""
        status = await asyncio.shield(self.ended)
        words, self._said = self._said, ""
        if RAISED in words:
            self.failure = HostFailed(
                f"the process of {self._name} {how_it_ended(status)}:\n{words}", words, self._name
            )
        elif words and crashed(status):
            log.warning("The process of %s has crashed:\n%s", self._name, words)
        return status

    def _await_end(self, loop: asyncio.AbstractEventLoop) -> None:
        status = self._process.wait()
        if not sweeps():
            self._process.kill_all()
        self._said = self._words.take()
        with suppress(RuntimeError):  # the loop is closed, so nothing waits for the result
            loop.call_soon_threadsafe(self.ended.set_result, status)

    def kill(self) -> None:
        """Kill the child, after which `process_cleanup` ends the processes that the child has started."""
        with suppress(ProcessLookupError):  # it has already ended
            self._process.kill()

    def dismiss(self) -> int:
        """End an unneeded child; return its exit status, which is negative if a signal killed it."""
        self._start_socket.close()
        self.lifeline.close()
        self._words.take()
        self.kill()
        return self._process.wait()


def take_child(name: str) -> ChildProcess:
    """Return the child started early for a host; start a new one if none exists or it died without giving a reason."""
    child = _early.pop(name, None)
    if child is not None and not child.alive and not child.spoke:
        how = how_it_ended(child.dismiss())
        log.warning("The process of %s %s before it started working. Restarting it.", name, how)
        child = None
    return child or ChildProcess(name)


# Imports take most of a start, so children import while main does (docs/decisions/009).
@contextmanager
def started_early(config: RunConfig) -> Iterator[None]:
    """Start the children that a run is certain to need; at the end of the context, end those that were never used."""
    try:
        with suppress(OSError):  # at a system limit, which the host's own start will report
            for name, modules in _expected(config):
                if name not in _early:
                    _early[name] = ChildProcess(name, modules)
        yield
    finally:
        dismiss_early()


def dismiss_early() -> None:
    """End unused children, such as those for behaviours that are listed but missing from the environment."""
    while _early:
        _early.popitem()[1].dismiss()


def _expected(config: RunConfig) -> Iterator[tuple[str, list[str]]]:
    """Yield each process host's name and the modules it imports; learners come first, because they take longest."""
    hosts = config.pipeline.hosts
    if hosts.learners.kind == "process":
        needed: dict[str, list[str]] = {}
        for behavior, process in learner_processes(config).items():
            needed.setdefault(process, []).extend(modules_of_learner(config, behavior))
        yield from ((process, [*dict.fromkeys(modules)]) for process, modules in needed.items())
    if hosts.actors.kind == "process":
        for name in actor_names(config):
            yield name, [f"headrace.pipeline.roles.{'actor' if acts(config) else 'replay'}"]


def learner_processes(config: RunConfig) -> dict[str, str]:
    """Return the learner process's name for each listed behaviour; a process is named after its first learner."""
    behaviors = learners_of(config)
    count = most_learner_processes(config)
    return {behavior: learner_name(behaviors[number % count]) for number, behavior in enumerate(behaviors)}


def most_learner_processes(config: RunConfig) -> int:
    """Return the maximum number of learner processes; a learner with followers does not share its process."""
    learners = config.pipeline.hosts.learners
    if learners.replicas > 1:
        return max(1, len(config.behaviors))
    return usable_cores() if learners.processes == "auto" else learners.processes


def imported_in_main(config: RunConfig) -> list[str]:
    """Return the modules that main imports for the learner hosts in its own process."""
    in_main = HOST_KINDS[config.pipeline.hosts.learners.kind].in_main
    return [module for each in learners_of(config) for module in modules_of_learner(config, each)] if in_main else []


def learners_of(config: RunConfig) -> list[str]:
    """Return the listed behaviours that the run trains."""
    if config.checkpoint_settings.inference:
        return []
    return [behavior for behavior, settings in config.behaviors.items() if settings.learns]


def modules_of_learner(config: RunConfig, behavior: str) -> list[str]:
    """Return the modules that a behaviour's learner imports: torch and Headrace's own."""
    trainer = TRAINERS.get(config.behaviors[behavior].trainer_type)
    own = [] if trainer is None else [trainer.implementation.partition(":")[0]]
    return ["torch", "headrace.pipeline.roles.learner", *own]
