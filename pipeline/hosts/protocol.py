"""The seam between main and its hosts: what every kind of host offers, whether it is near or far.

Main names queues and asks for its ends of them. How an end comes about (an object in the same event loop, a link that a
process was started with, an address in a network) is known to the kind alone, and to the host, which finds it in the
message `OpenEdge`.
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
    """A running host as main sees it."""

    @property
    def plan(self) -> HostPlan:
        """The plan that it was started with."""

    @property
    def control(self) -> ControlEnd:
        """Main's end of its control channel."""

    @property
    def may_hang(self) -> bool:
        """True if it can hang while main goes on: main kills such a host when it falls silent."""

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
        """Keep nothing for a replacement any more: when this host ends, its peers see it."""

    async def wait(self) -> int:
        """Wait for its end; 0 if it ended well, negative for a signal."""

    async def describe(self) -> str:
        """Say what it is doing, with its stack, whatever it is doing."""

    def kill(self) -> None:
        """End it at once."""

    def close(self) -> None:
        """Close the control channel and give up whatever main holds of this host."""


class Feed(Protocol):
    """The consuming end of a queue into which several hosts of one kind put; opened once, by main or another host."""

    async def open(self) -> Inlet[Any]:
        """Open it in main."""


class HostFactory(Protocol):
    """One kind of host."""

    def __init__(self, config: RunConfig, tasks: asyncio.TaskGroup) -> None: ...

    async def start(self, plan: HostPlan, feed: Feed | None = None, replaces: HostHandle | None = None) -> HostHandle:
        """Start a host.

        Args:
            plan: the host.
            feed: what other hosts put straight into this one; a kind that does not run in main gets feeds of its own
                kind only.
            replaces: a dead host of this kind and role: the new one puts into the same queues, and if it is a learner
                it gets from the same ones.
        """

    def gather(self, name: str, hosts: Sequence[Any]) -> Feed:
        """Join hosts of this kind, which are let open their ends: all of them put into one queue."""

    def close(self) -> None:
        """End what its hosts lived in; the last call."""


class HostWork(Protocol):
    """The work of a host: what its role makes of it."""

    async def run(self) -> bool:
        """Run to the end, and report to main how it ended; True if it ended well."""


class HostEdges(Protocol):
    """The host's side: opens the queue ends that main names, by addresses that belong to the kind of host."""

    async def open_outlet(self, name: str, address: Mapping[str, Any]) -> Outlet[Any]:
        """Open the producing end of a queue."""

    async def open_inlet(self, name: str, address: Mapping[str, Any]) -> Inlet[Any]:
        """Open the consuming end of a queue."""

    def renew(self, name: str) -> None:
        """Begin a queue anew, if its producing end is here: another consumer takes the place of a dead one."""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """One host of a run."""

    role: str
    """One of `pipeline/common/run_parts.py`."""
    name: str
    """Unique among the run's hosts: `actor-0`, `learner-Ball`, …"""
    config: Mapping[str, Any]
    config_path: str | None
    run_folder: str
    seed: int
    """The run's seed; the host derives its own from it."""
    replica: int = 0
    source: int = 0
    """Of an actor: its incarnation."""
    behavior: str = ""
    """Of a learner, its followers and shards: the behaviour name."""
    spec: Mapping[str, Any] | None = None
    """Of a learner, its followers and shards: the behaviour spec."""
    rendezvous: tuple[str, int] = ("", 0)
    """Of a follower: address and port at which it finds the learner; its rank is `replica`."""
    resume: bool = False
    """Take up this host's parts of the run's newest checkpoint."""
    resumed_at: int = -1
    explicit: Sequence[str] = ()
    """Of a learner: hyperparameters that the command has set, whatever the checkpoint at `resumed_at` says."""
    lost_version: int = -1
    """Of a learner in the place of a lost one: the highest version of a policy that the lost one may have sent."""
    replay_edge: str = ""
    """Of a replay host: where its streams were recorded."""
    run_id: str = ""
    best: Mapping[str, float] = field(default_factory=dict)
    """Of the evaluation host: the best mean return of each behaviour name so far."""
    host_class: str = ""
    """`module:Class` of a `Host` in the place of the role's own; what every kind of host must do is tested by one."""

    plugins: Sequence[str] = field(default_factory=plugin_modules)
    """Modules that have added kinds to tables, which the configuration may name."""
    given: Mapping[str, bytes] = field(default_factory=dict)
    """For another process: what makes the environment that the run's caller gave as an object."""

    def to_plain(self) -> dict[str, Any]:
        """For msgpack."""
        makes_environments = host_role(self.role).placed_as in ("actors", "evaluation") or self._asks_for_rewards()
        return {**asdict(self), "given": carried(self.config) if makes_environments else {}}

    def _asks_for_rewards(self) -> bool:
        """Return True if its trainer learns in hindsight, for which the environment computes rewards."""
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
