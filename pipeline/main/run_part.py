"""The interface between main and the parts of a run (listed in `pipeline/common/run_parts.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from headrace.pipeline.common.run_parts import RUN_PARTS, wanted_sides
from headrace.pipeline.control import ControlMessage
from headrace.pipeline.flow import FlowControl
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.behavior import BehaviorState
from headrace.pipeline.main.launcher import ActorSlot, Broadcaster, Launcher, RunningHosts
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.main.supervision import GuardedTasks, Supervisor
from headrace.pipeline.reporting.reporter import Reporter
from headrace.pipeline.reporting.statistics import StatisticsCollector
from headrace.pipeline.roles.stages import Runner, StageHost
from headrace.queues.messages import PolicyUpdate
from headrace.stages.trainer.report import TrainerReport

T = TypeVar("T")


class Ending(Protocol):
    """The interface of `headrace.pipeline.main.shutdown.Shutdown` that parts use."""

    begun: bool

    @property
    def learners_ended(self) -> bool:
        """True if the run is ending and no trainer will send another policy."""

    def finish(self) -> None:
        """End the run cleanly."""

    def learner_started(self) -> None:
        """Handle a learner that has started, possibly after the run's end has begun."""

    def moved(self) -> None:
        """Record a sign of progress, which restarts the grace time."""


class Run(Protocol):
    """A run's interface for its parts and main's helpers."""

    plan: RunPlan
    tasks: GuardedTasks
    launcher: Launcher
    running: RunningHosts
    broadcaster: Broadcaster
    flow: FlowControl
    supervisor: Supervisor
    reporter: Reporter
    statistics: StatisticsCollector
    stages: StageHost
    """Contexts, hooks and saved states for main's own stages."""

    @property
    def shutdown(self) -> Ending:
        """The object that ends the run."""

    @property
    def parts(self) -> RunParts:
        """The run's parts: features that only some runs have."""

    @property
    def behaviors(self) -> Mapping[str, BehaviorState]:
        """The open behaviours, keyed by name."""


class RunPart:
    """One part of a run in main's event loop. Methods that a part does not override do nothing.

    Args:
        run: the run.
    """

    receives: ClassVar[tuple[type[ControlMessage], ...]] = ()
    """Types of the messages from hosts that the part receives."""

    def __init__(self, run: Run) -> None:
        self.run = run

    async def start(self) -> None:
        """Start everything that must exist before the actors start."""

    async def actor_started(self, slot: ActorSlot) -> None:
        """Handle a started actor, which may replace a dead one."""

    def actor_replaced(self, name: str) -> None:
        """Prepare for an actor that is about to replace a dead one."""

    async def learner_started(self, state: BehaviorState, learner: HostHandle) -> list[Runner]:
        """Handle a learner that has started; return the runners that main needs for it."""
        return []

    def learner_ready(self, behavior: str) -> None:
        """Handle a learner that can now receive messages; it may replace a lost one."""

    async def learns(self, behavior: str, slot: ActorSlot) -> None:
        """Handle an actor that has agents with a learning behaviour; may be called again for the same team."""

    def policy_came(self, behavior: str, policy: PolicyUpdate | None) -> None:
        """Handle a policy from a trainer, or None after the trainer's last policy."""

    def receive(self, host: HostHandle, message: Any) -> None:
        """Handle a message of a type in `receives`."""

    def reported(self, report: TrainerReport) -> None:
        """Handle a trainer's report before flow control does."""

    def summarised(self, report: TrainerReport) -> None:
        """Add statistics that belong to a trainer's report, just before the report is shown."""

    def at_rest(self) -> None:
        """Do what must wait until all actors of a deterministic run are idle."""

    def checkpoint_begins(self) -> None:
        """Handle the start of a checkpoint, just before barriers are put into the streams."""

    def checkpoint_ended(self) -> None:
        """Handle the end of a checkpoint, complete or not.

        There is no call if the run's last checkpoint has replaced it.
        """

    def host_failed(self, why: str) -> None:
        """Handle the failure of one of the part's own hosts, which is about to end."""

    async def host_ended(self, host: HostHandle, status: int, how: str) -> bool:
        """Handle the end of one of the part's own hosts; return True if a new host replaces it.

        Args:
            host: the host.
            status: its exit status.
            how: description of the status.
        """
        return False

    def fewer_hosts(self, at_once: bool) -> None:
        """Handle the end of any host that won't be replaced.

        Args:
            at_once: True if the run is ending before it is done.
        """

    def progress(self) -> Mapping[str, Any]:
        """Return the part's state for checkpoints, keyed by names that are unique among all parts."""
        return {}

    def lessons(self) -> Mapping[str, int]:
        """Return each parameter's current lesson number, for `training_status.json`."""
        return {}

    def league_reports(self) -> Mapping[str, dict[str, Any]]:
        """Return each league's report, keyed by behaviour name, for `league.json`, its chart and the live page."""
        return {}

    async def finish(self) -> None:
        """Wait for pending writes, and warn of what is missing, after all hosts have ended."""

    def results(self, behavior: str) -> Mapping[str, Any]:
        """Return the part's fields for a behaviour's `BehaviorResult`."""
        return {}

    def report(self) -> Mapping[str, Any]:
        """Write the part's final files; return its fields for the `RunResult`. Called in a thread."""
        return {}


class RunParts:
    """The parts of one run, in the order of the `RUN_PARTS` table.

    Args:
        run: the run.

    Attributes:
        all: the parts.
    """

    def __init__(self, run: Run) -> None:
        self._parts: dict[str, RunPart] = {
            name: part(run) for name, part in wanted_sides(run.plan.config, "main").items()
        }
        self.all = tuple(self._parts.values())

    def get(self, name: str) -> Any:
        """Return the part with this name; None if the run does not have it."""
        return self._parts.get(name)

    def of_role(self, role: str) -> RunPart | None:
        """Return the part that handles the end of hosts with this role; None if main handles it."""
        part = next((self._parts.get(name) for name, kind in RUN_PARTS.items() if role in kind.roles), None)
        return part if part is not None and type(part).host_ended is not RunPart.host_ended else None

    def receive(self, host: HostHandle, message: Any) -> None:
        """Pass a message to the parts that receive its type."""
        for part in self.all:
            if isinstance(message, part.receives):
                part.receive(host, message)

    async def learner_started(self, state: BehaviorState, learner: HostHandle) -> list[Runner]:
        """Notify all parts of a learner that has started; return the runners that main needs for it."""
        return [runner for part in self.all for runner in await part.learner_started(state, learner)]

    def at_rest(self) -> None:
        """Notify all parts that all actors of a deterministic run are idle."""
        for part in self.all:
            part.at_rest()

    def merged(self, take: Callable[[RunPart], Mapping[str, T]]) -> dict[str, T]:
        """Merge the mappings that `take` returns for the parts."""
        return {name: value for part in self.all for name, value in take(part).items()}
