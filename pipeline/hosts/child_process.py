"""Child processes of main: each is started empty, imports what it will need, and waits for what it is to be.

Most of a start is importing, so children are started before main has imported what it needs itself, as soon as the
configuration says which there will be (`started_early`); they import side by side. A host that nobody reckoned with
gets a child when it is started. Nothing is forked from a process with threads or libraries: a child is a new
interpreter, the same wherever and whenever it was started.
"""

from __future__ import annotations

import asyncio
import logging
import socket
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
from headrace.pipeline.hosts.failures import crashed, how_it_ended
from headrace.pipeline.hosts.last_words import RAISED
from headrace.pipeline.hosts.lifeline import MainLifeline
from headrace.pipeline.hosts.prestart import end_prestarted, learner_imports, spawn, take_prestarted
from headrace.pipeline.hosts.process_cleanup import new_mark, sweeps, watch_host
from headrace.queues.packing import pack
from headrace.queues.platform import Segment, hand_over

log = logging.getLogger(__name__)

_early: dict[str, ChildProcess] = {}
"""Children that are nobody yet, by the name of the host that each is meant for; a run takes its own by name, and of two
runs in one process either may take the other's, as they are alike."""


class ChildProcess:
    """A child of this process.

    Args:
        name: of the host that it will be.
        modules: what it imports while it waits.
    """

    def __init__(self, name: str, modules: Sequence[str] = ()) -> None:
        started = take_prestarted(name) or spawn(name, modules, new_mark(name))
        self._name, self._process, self._start_socket = name, started.process, started.socket
        self.failure: HostFailed | None = None
        """What it raised outside of its hosts; known once it has ended."""
        self._words, self._said = started.words, ""
        self.lifeline = MainLifeline(started.lifeline, self.pid)
        watch_host(self._process.pid, started.mark)
        self._ended: asyncio.Future[int] | None = None

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True until it has ended."""
        return self._process.poll() is None

    @property
    def ended(self) -> asyncio.Future[int]:
        """Done when what it is has ended; its exit status."""
        assert self._ended is not None, "it is somebody"
        return self._ended

    @property
    def spoke(self) -> bool:
        """True if it has said why it ends."""
        return self._words.written

    async def be(
        self, start_message: dict[str, Any], things: Sequence[socket.socket | Segment], *, more: bool = False
    ) -> None:
        """Tell it what it is; a child that has died meanwhile shows by its exit status.

        Args:
            start_message: plain data, with tickets.
            things: what the tickets mean.
            more: other starts may follow.
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
                self.kill()  # whoever listens to it hears of its end
            raise
        if not more:
            self._start_socket.close()
        if first:
            threading.Thread(target=self._await_end, args=(loop,), name=f"end of {self.pid}", daemon=True).start()

    async def hear(self) -> bytes:
        """Return what it says on the line of its starts; nothing once that has ended."""
        with suppress(ConnectionError):
            return await asyncio.get_running_loop().sock_recv(self._start_socket, 1 << 10)
        return b""

    def let_end(self) -> None:
        """Say that no starts follow."""
        with suppress(OSError):  # it was quicker
            self._start_socket.shutdown(socket.SHUT_WR)

    def leave(self) -> None:
        """Close the line."""
        self._start_socket.close()

    async def wait(self) -> int:
        """Wait for the end of what it is; the exit status, negative for a signal."""
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
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self.ended.set_result, status)

    def kill(self) -> None:
        """Kill it; what it has started is ended then (`process_cleanup`)."""
        with suppress(ProcessLookupError):  # it was quicker
            self._process.kill()

    def dismiss(self) -> int:
        """End it, as nobody needs it; returns its exit status, negative for a signal."""
        self._start_socket.close()
        self.lifeline.close()
        self._words.take()
        self.kill()
        return self._process.wait()


def take_child(name: str) -> ChildProcess:
    """Return the child that was started for a host, or else a new one; one that says why it has ended is no better."""
    child = _early.pop(name, None)
    if child is not None and not child.alive and not child.spoke:
        how = how_it_ended(child.dismiss())
        log.warning("The process of %s %s. Starting it again; it had not begun.", name, how)
        child = None
    return child or ChildProcess(name)


@contextmanager
def started_early(config: RunConfig) -> Iterator[None]:
    """Start the children that a run will surely need; those that it never took are ended at the end."""
    try:
        with suppress(OSError):  # at a limit of the system, which whoever starts the host will name
            for name, modules in _expected(config):
                if name not in _early:
                    _early[name] = ChildProcess(name, modules)
        end_prestarted()
        yield
    finally:
        dismiss_early()


def dismiss_early() -> None:
    """End the children that were not taken: a behaviour that an environment does not have needs none."""
    while _early:
        _early.popitem()[1].dismiss()


def _expected(config: RunConfig) -> Iterator[tuple[str, list[str]]]:
    """Yield the names of hosts in processes, and what each will import: learners first, which need longest."""
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
    """Return in which process each listed behaviour learns; it has the name of its first learner."""
    behaviors = learners_of(config)
    count = most_learner_processes(config)
    return {behavior: learner_name(behaviors[number % count]) for number, behavior in enumerate(behaviors)}


def most_learner_processes(config: RunConfig) -> int:
    """Return how many processes all learners have at most; a learner with followers has one of its own."""
    learners = config.pipeline.hosts.learners
    if learners.replicas > 1:
        return max(1, len(config.behaviors))
    return usable_cores() if learners.processes == "auto" else learners.processes


def imported_in_main(config: RunConfig) -> list[str]:
    """Return what hosts in main will import."""
    in_main = HOST_KINDS[config.pipeline.hosts.learners.kind].in_main
    return [module for each in learners_of(config) for module in modules_of_learner(config, each)] if in_main else []


def learners_of(config: RunConfig) -> list[str]:
    """Return the listed behaviours that a run teaches."""
    if config.checkpoint_settings.inference:
        return []
    return [behavior for behavior, settings in config.behaviors.items() if settings.learns]


def modules_of_learner(config: RunConfig, behavior: str) -> list[str]:
    """Return what a behaviour's learner imports, as far as it is ours."""
    trainer = TRAINERS.get(config.behaviors[behavior].trainer_type)
    own = [] if trainer is None else [trainer.implementation.partition(":")[0]]
    return learner_imports(*own)
