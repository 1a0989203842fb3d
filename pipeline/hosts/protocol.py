"""The boundary between main and its hosts: the interface that every kind of host implements, local or remote.

Main requests its ends of queues by name. What an end is depends on the kind: an object in the same event loop, a link
that a process received when it started, or a network address. Only the code for that kind and the host know the
difference; the host reads the end's address from the `OpenEdge` message.

This module also converts a host's errors to messages for main, and describes how processes ended.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from headrace.config import ConfigError, RunConfig
from headrace.config.tables import import_plugins, plugin_modules
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.common.graph import ACTOR
from headrace.pipeline.common.run_parts import host_role
from headrace.pipeline.control import ControlEnd, HostFailed
from headrace.pipeline.run_folder.checkpoint import CheckpointError
from headrace.process_tree import describe_status
from headrace.queues.ends import Receiver, Sender
from headrace.queues.errors import QueueClosed, SpecError
from headrace.stages.environments.given import carried, take_over
from headrace.stages.errors import StageError, describe_error, raised_in_user_code
from headrace.stages.loop import StageFailure
from headrace.startup_context import shortened


class HostHandle(Protocol):
    """A running host, as seen by main."""

    @property
    def plan(self) -> HostPlan:
        """The plan from which the host was started."""

    @property
    def control(self) -> ControlEnd:
        """Main's end of the host's control channel."""

    @property
    def may_hang(self) -> bool:
        """True if the host can hang while main continues; if so, main kills the host when it falls silent."""

    @property
    def unplaced(self) -> bool:
        """True while no machine has room for the host, which is not silent in the meantime."""

    async def receiver(self, name: str, newest: bool = True) -> Receiver[Any]:
        """Open main's end of a queue from this host, and let the host open the other end.

        Args:
            name: the queue's name.
            newest: if True, a new item replaces one that is waiting; otherwise items queue up to the limit set in the
                YAML.

        Raises:
            LookupError: if the host can open no more queues.
        """

    async def sender(self, name: str, newest: bool = False) -> Sender[Any]:
        """Open main's end of a queue to this host, and let the host open the other end.

        Args:
            name: the queue's name.
            newest: if True, a new item replaces one that is waiting; otherwise items queue up to the limit set in the
                YAML.

        Raises:
            LookupError: if the host can open no more queues.
        """

    def rule_out_successor(self) -> None:
        """Stop keeping queues open for a replacement, so that peers notice when this host ends."""

    async def wait(self) -> int:
        """Wait for the host to end; return its exit status: 0 for success, negative if a signal killed it."""

    async def describe(self) -> str:
        """Describe what the host is doing, with its stack, even if it hangs."""

    def kill(self) -> None:
        """End the host immediately."""

    def close(self) -> None:
        """Close the control channel and release everything that main holds for this host."""


class Feed(Protocol):
    """The consuming end of a queue that hosts of one kind fill. Main or a host opens it once."""

    async def open(self) -> Receiver[Any]:
        """Open the queue's consuming end in main."""


class HostFactory(Protocol):
    """Starts hosts of one kind."""

    def __init__(self, config: RunConfig, tasks: asyncio.TaskGroup) -> None: ...

    async def start(self, plan: HostPlan, feed: Feed | None = None, replaces: HostHandle | None = None) -> HostHandle:
        """Start a host.

        Args:
            plan: the host's plan.
            feed: queue that other hosts fill directly; those hosts must be of this kind, unless the new host runs in
                main.
            replaces: a dead host of this kind and role, whose outgoing queues the new host takes over; a learner also
                takes over the incoming queues.
        """

    def gather(self, name: str, hosts: Sequence[Any]) -> Feed:
        """Create one queue that several hosts of this kind fill, and let the hosts open their ends."""

    def close(self) -> None:
        """Release the factory's own resources; no method is called after this one."""


class HostWork(Protocol):
    """A host's work, as defined by its role."""

    async def run(self) -> bool:
        """Run to completion and report the outcome to main; return True for success."""


class HostEdges(Protocol):
    """Opens, in the host, the queue ends that main names. The address format depends on the kind of host."""

    async def open_sender(self, name: str, address: Mapping[str, Any]) -> Sender[Any]:
        """Open the producing end of a queue."""

    async def open_receiver(self, name: str, address: Mapping[str, Any]) -> Receiver[Any]:
        """Open the consuming end of a queue."""

    def reconnect(self, name: str) -> None:
        """Restart one of this host's outgoing queues for the consumer that replaces a dead one."""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The plan for one host of a run."""

    role: str
    """Name of a role in `pipeline/common/run_parts.py`."""
    name: str
    """The host's name, unique in the run: `actor-0`, `learner-Ball`, …"""
    config: Mapping[str, Any]
    config_path: str | None
    run_folder: str
    seed: int
    """The run's seed, from which the host derives its own seeds."""
    replica: int = 0
    source: int = 0
    """For an actor: its source id, which is different for each incarnation."""
    incarnation: int = 0
    """Number that is higher for each replacement of the host; 0 if a lost host of this kind can't live on."""
    behavior: str = ""
    """For a learner, and its followers and shards: the behaviour name."""
    spec: Mapping[str, Any] | None = None
    """For a learner, and its followers and shards: the behaviour spec."""
    rendezvous: tuple[str, int] = ("", 0)
    """For a follower: the learner's address and port; the follower's rank is `replica`."""
    resume: bool = False
    """True to restore this host's state from the run's newest checkpoint."""
    resumed_at: int = -1
    explicit: Sequence[str] = ()
    """For a learner: hyperparameters set on the command line, which override the values in the checkpoint at
    `resumed_at`.
    """
    lost_version: int = -1
    """For a learner that replaces a lost one: the highest policy version that the lost learner may have sent."""
    replay_edge: str = ""
    """For a replay host: the edge at which its streams were recorded."""
    run_id: str = ""
    environment_checksum: str = ""
    """For the evaluation host: checksum of the settings of the run's environments."""
    host_class: str = ""
    """`module:Class` of a `Host` that replaces the role's own class; used in tests."""

    plugins: Sequence[str] = field(default_factory=plugin_modules)
    """Modules that have added kinds to the configuration's tables; the host imports them."""
    argv: Sequence[str] = field(default_factory=lambda: [*sys.argv])
    """Main's command line. A script's modules that the host imports may read it, as with `multiprocessing`."""
    given: Mapping[str, bytes] = field(default_factory=dict)
    """For hosts in other processes: the serialised function that creates the caller's environment object."""

    def to_plain(self) -> dict[str, Any]:
        """Return the plan as plain data for msgpack."""
        makes_environments = host_role(self.role).placed_as in ("actors", "evaluation") or self._asks_for_rewards()
        return {**asdict(self), "given": carried(self.config) if makes_environments else {}}

    def _asks_for_rewards(self) -> bool:
        """Return True if the trainer relabels goals in hindsight, which requires the environment to compute rewards."""
        block = (self.config.get("behaviors") or {}).get(self.behavior) or self.config.get("default_settings") or {}
        return bool((block.get("hyperparameters") or {}).get("hindsight"))

    def load_config(self) -> RunConfig:
        """Return the run's configuration, after importing the plugins."""
        take_over(self.given)
        import_plugins(self.plugins)
        return RunConfig.from_plain(self.config, Path(self.config_path) if self.config_path else None)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Path(self.run_folder)


def root_cause(group: BaseExceptionGroup[Any]) -> BaseException:
    """Return the failure that caused the others, which is the first one that is not about a closed queue."""
    leaves = list(_leaves(group))
    causes = [leaf for leaf in leaves if not isinstance(leaf, QueueClosed)]
    named = [leaf for leaf in causes if isinstance(leaf, StageFailure)]
    return (named or causes or leaves)[0]


def describe_failure(host: str, error: BaseException) -> HostFailed:
    """Return the message that reports a host's failure to main."""
    stage = error.stage if isinstance(error, StageFailure) else ""
    cause = error.cause if isinstance(error, StageFailure) else error
    settings_are_wrong = isinstance(cause, ConfigError | CheckpointError | RunError)  # raised in any stage
    # An actor's own errors name the environment at fault, which says more than the actor's name.
    named = stage == ACTOR and isinstance(cause, StageError | SpecError)
    blamed = cause if settings_are_wrong or named else error
    plain = settings_are_wrong or isinstance(error, StageError | SpecError)
    return HostFailed(
        shortened(str(blamed)) if plain else describe_error(error),
        shortened("".join(traceback.format_exception(cause))),
        stage or host,
        cause.key if isinstance(cause, StageError) else (),
        raised_in_user_code(cause),
    )


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


_WINDOWS_CRASH = 0x8000_0000
"""Lowest exit status that Windows itself uses when it ends a process."""


def how_it_ended(status: int) -> str:
    """Describe how a process ended, given its exit status, which is negative if a signal killed it."""
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {describe_status(status)}"


def crashed(status: int) -> bool:
    """Return True if a process crashed: it neither exited by itself nor was killed from outside."""
    return status >= _WINDOWS_CRASH or (status < 0 and -status not in (signal.SIGTERM, getattr(signal, "SIGKILL", 9)))
