"""The boundary between main and its hosts: the interface of every kind of host, local or remote.

Main asks for its ends of queues by name. Only the kind knows what an end is (an object in the same event loop, a link
with which a process was started, a network address), and the host, which reads it from the message `OpenEdge`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from headrace.config import RunConfig
from headrace.config.tables import import_plugins, plugin_modules
from headrace.pipeline.common.run_parts import host_role
from headrace.pipeline.control.channel import ControlEnd
from headrace.queues.ends import Inlet, Outlet
from headrace.stages.environments.given import carried, take_over


class HostHandle(Protocol):
    """A running host, seen from main."""

    @property
    def plan(self) -> HostPlan:
        """The plan with which it was started."""

    @property
    def control(self) -> ControlEnd:
        """Main's end of its control channel."""

    @property
    def may_hang(self) -> bool:
        """True if it can hang while main continues; main kills a host like this when it falls silent."""

    async def inlet(self, name: str, newest: bool = True) -> Inlet[Any]:
        """Open main's end of a queue from this host, and let the host open the other.

        Args:
            name: of the queue.
            newest: a new item replaces one that waits; else items wait in line, as many as the YAML allows.

        Raises:
            LookupError: if it has no queue left.
        """

    async def outlet(self, name: str, newest: bool = False) -> Outlet[Any]:
        """Open main's end of a queue to this host, and let the host open the other.

        Args:
            name: of the queue.
            newest: a new item replaces one that waits; else items wait in line, as many as the YAML allows.

        Raises:
            LookupError: if it has no queue left.
        """

    def settle(self) -> None:
        """Stop keeping queues for a replacement, so that peers see this host's end."""

    async def wait(self) -> int:
        """Wait for the host to end; return 0 for success, a negative status for a signal."""

    async def describe(self) -> str:
        """Describe what the host is doing, with its stack, even if it hangs."""

    def kill(self) -> None:
        """End the host immediately."""

    def close(self) -> None:
        """Close the control channel and release everything main holds for this host."""


class Feed(Protocol):
    """The consuming end of a queue with several producing hosts of one kind; main or another host opens it once."""

    async def open(self) -> Inlet[Any]:
        """Open the consuming end in main."""


class HostFactory(Protocol):
    """One kind of host."""

    def __init__(self, config: RunConfig, tasks: asyncio.TaskGroup) -> None: ...

    async def start(self, plan: HostPlan, feed: Feed | None = None, replaces: HostHandle | None = None) -> HostHandle:
        """Start a host.

        Args:
            plan: the host's plan.
            feed: queue from other hosts directly into this one; outside main, only from hosts of the same kind.
            replaces: a dead host of this kind and role, whose outgoing queues the new one takes over; a learner also
                takes over the incoming ones.
        """

    def gather(self, name: str, hosts: Sequence[Any]) -> Feed:
        """Create one queue into which several hosts of this kind put, and tell them to open their ends."""

    def close(self) -> None:
        """Release the factory's own resources; nothing is called after this."""


class HostWork(Protocol):
    """The work of a host, as its role defines it."""

    async def run(self) -> bool:
        """Run to completion and report the outcome to main; return True for success."""


class HostEdges(Protocol):
    """The host's side: opens the queue ends that main names; the address format depends on the kind of host."""

    async def open_outlet(self, name: str, address: Mapping[str, Any]) -> Outlet[Any]:
        """Open the producing end of a queue."""

    async def open_inlet(self, name: str, address: Mapping[str, Any]) -> Inlet[Any]:
        """Open the consuming end of a queue."""

    def renew(self, name: str) -> None:
        """Restart a queue produced here, with the consumer that replaces a dead one."""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """One host of a run."""

    role: str
    """A role from `pipeline/common/run_parts.py`."""
    name: str
    """Unique among the run's hosts: `actor-0`, `learner-Ball`, …"""
    config: Mapping[str, Any]
    config_path: str | None
    run_folder: str
    seed: int
    """The run's seed; the host derives its own from it."""
    replica: int = 0
    source: int = 0
    """For an actor, its incarnation."""
    behavior: str = ""
    """For a learner, its followers and shards, the behaviour name."""
    spec: Mapping[str, Any] | None = None
    """For a learner, its followers and shards, the behaviour spec."""
    rendezvous: tuple[str, int] = ("", 0)
    """For a follower, the learner's address and port; the follower's rank is `replica`."""
    resume: bool = False
    """True to restore this host's parts from the run's newest checkpoint."""
    resumed_at: int = -1
    explicit: Sequence[str] = ()
    """For a learner, hyperparameters set by the command, which override the checkpoint at `resumed_at`."""
    lost_version: int = -1
    """For a learner that replaces a lost one, the highest policy version that the lost one may have sent."""
    replay_edge: str = ""
    """For a replay host, the edge at which its streams were recorded."""
    run_id: str = ""
    best: Mapping[str, float] = field(default_factory=dict)
    """For the evaluation host, the best mean return of each behaviour name so far."""
    host_class: str = ""
    """`module:Class` of a `Host` that replaces the role's own; used in tests of every kind of host."""

    plugins: Sequence[str] = field(default_factory=plugin_modules)
    """Modules that have added kinds to the configuration's tables."""
    given: Mapping[str, bytes] = field(default_factory=dict)
    """For hosts in other processes, the serialised function that makes the caller's environment object."""

    def to_plain(self) -> dict[str, Any]:
        """Return the plan as plain data for msgpack."""
        makes_environments = host_role(self.role).placed_as in ("actors", "evaluation") or self._asks_for_rewards()
        return {**asdict(self), "given": carried(self.config) if makes_environments else {}}

    def _asks_for_rewards(self) -> bool:
        """Return True if its trainer relabels goals in hindsight, for which the environment computes rewards."""
        block = (self.config.get("behaviors") or {}).get(self.behavior) or self.config.get("default_settings") or {}
        return bool((block.get("hyperparameters") or {}).get("hindsight"))

    def load_config(self) -> RunConfig:
        """The run's configuration."""
        take_over(self.given)
        import_plugins(self.plugins)
        return RunConfig.from_plain(self.config, Path(self.config_path) if self.config_path else None)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.run_folder)
