"""A run's hosts: starts them, finds them, and leaves none behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS
from headrace.pipeline.common.process import ProcessUsage
from headrace.pipeline.hosts.protocol import Feed, HostFactory, HostHandle, HostPlan
from headrace.stages.loading import load_attribute

log = logging.getLogger(__name__)


class RunningHosts:
    """All hosts that a run has started, including those that have ended. A replacement takes the dead host's name.

    Args:
        config: the run's configuration.
        tasks: the group that owns the tasks of hosts in main's event loop.
        on_start: called with each started host, to which the function must listen.
    """

    def __init__(self, config: RunConfig, tasks: asyncio.TaskGroup, on_start: Callable[[HostHandle], None]) -> None:
        self._config = config
        self._tasks = tasks
        self._on_start = on_start
        self._factories: dict[str, HostFactory] = {}
        self._hosts: dict[str, HostHandle] = {}
        self._usage: dict[str, ProcessUsage] = {}
        self._in_process: dict[int, set[str]] = {}
        """Names of the hosts started in each process."""
        self._ended: set[str] = set()
        self._killed: set[str] = set()
        self._dismissed: set[str] = set()
        self._all_ended = asyncio.Event()

    def factory(self, kind: str) -> HostFactory:
        """Return the factory for a kind of host."""
        if kind not in self._factories:
            factory = load_attribute(HOST_KINDS[kind].implementation, None, "host kind")
            self._factories[kind] = factory(self._config, self._tasks)
        return self._factories[kind]

    async def start(
        self, kind: str, plan: HostPlan, feed: Feed | None = None, replaces: HostHandle | None = None
    ) -> HostHandle:
        """Start a host; the arguments are those of `HostFactory.start`."""
        host = self._hosts[plan.name] = await self.factory(kind).start(plan, feed, replaces)
        if (pid := getattr(host, "pid", None)) is not None:
            self._in_process.setdefault(pid, set()).add(plan.name)
        self._ended.discard(plan.name)
        self._killed.discard(plan.name)
        self._dismissed.discard(plan.name)
        if replaces is not None:
            replaces.close()
        self._on_start(host)
        return host

    def note_usage(self, name: str, usage: ProcessUsage) -> None:
        """Store the CPU time and memory that a host has reported for its process."""
        self._usage[name] = usage

    def usage(self, name: str) -> ProcessUsage | None:
        """Return the CPU time and memory that a host last reported; None before its first report."""
        return self._usage.get(name)

    def sharers(self, host: HostHandle) -> list[str]:
        """Return the names of the other hosts in a host's process that have not ended."""
        inside = self._in_process.get(getattr(host, "pid", -1), set())
        return sorted(inside - {host.plan.name} - self._ended)

    def current(self, host: HostHandle) -> bool:
        """Return True if a host has not been replaced by another with the same name."""
        return self._hosts.get(host.plan.name) is host

    def get(self, name: str) -> HostHandle | None:
        """Return the current host with this name; None if there is none."""
        return self._hosts.get(name)

    def all(self) -> list[HostHandle]:
        """Return all hosts that have not been replaced, including those that have ended."""
        return [*self._hosts.values()]

    def mark_ended(self, name: str) -> None:
        """Record that a host has ended without a replacement, and release everything that main holds for it."""
        self._ended.add(name)
        if name in self._hosts:
            self._hosts[name].close()
        if self._ended >= self._hosts.keys():
            self._all_ended.set()

    def has_ended(self, name: str) -> bool:
        """Return True if the host with this name has ended."""
        return name in self._ended

    async def wait_all(self) -> None:
        """Wait until every host has ended."""
        if not self._hosts:  # the first host failed to start
            self._all_ended.set()
        await self._all_ended.wait()

    @property
    def unended(self) -> set[str]:
        """Names of the hosts that have not ended."""
        return self._hosts.keys() - self._ended

    def was_killed(self, name: str) -> bool:
        """Return True if the host with this name was killed because it did not end by itself."""
        return name in self._killed

    def was_dismissed(self, name: str) -> bool:
        """Return True if main ended the host with this name, so that no last message is expected."""
        return name in self._dismissed

    def kill(self, names: Iterable[str], waited_s: float) -> None:
        """Kill these hosts, except those that have already ended."""
        left = sorted(self.unended.intersection(names) - self._killed)
        self._killed.update(left)
        if left:
            them = "it" if len(left) == 1 else "them"
            log.warning("%s did not end within %.0f s; killing %s.", ", ".join(left), waited_s, them)
        for name in left:
            self._hosts[name].kill()

    def until_all_ended(self, look: Callable[[], None], every_s: float) -> None:
        """Call `look` every `every_s` seconds until all hosts have ended."""
        self._tasks.create_task(self._look_until(look, every_s))

    async def _look_until(self, look: Callable[[], None], every_s: float) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await self._all_ended.wait()
                    return
            look()

    def dismiss_all(self, seconds: float) -> None:
        """End all hosts, even busy ones, with the processes they started; kill those that remain after `seconds`."""
        for name, host in self._hosts.items():
            if name not in self._ended:
                self._dismissed.add(name)
                host.control.close()
        if not self._hosts:
            self._all_ended.set()
        self.until_all_ended(lambda: self.kill(self.unended, seconds), seconds)

    def close(self) -> None:
        """Kill all hosts and release everything that connected main to them."""
        for host in self._hosts.values():
            host.kill()
        for host in self._hosts.values():
            host.close()

    def leave(self) -> None:
        """Release the host factories' resources, after all hosts and their connections to main are closed."""
        for factory in self._factories.values():
            factory.close()
