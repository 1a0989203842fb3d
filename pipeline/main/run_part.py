"""The seam of parts of a run (`pipeline/common/run_parts.py` lists them): what main tells each, and what it may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from headrace.pipeline.common.run_parts import RUN_PARTS, wanted_sides
from headrace.pipeline.control.messages import ControlMessage
from headrace.pipeline.flow.control import FlowControl
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.behavior import BehaviorState
from headrace.pipeline.main.guarded import GuardedTasks
from headrace.pipeline.main.launcher import ActorSlot, Broadcaster, Launcher
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.main.running_hosts import RunningHosts
from headrace.pipeline.main.supervision import Supervisor
from headrace.pipeline.reporting.reporter import Reporter
from headrace.pipeline.reporting.statistics import StatisticsCollector
from headrace.pipeline.reporting.timers import Timers
from headrace.pipeline.roles.stages import Runner, StageHost
from headrace.queues.messages import PolicyUpdate
from headrace.stages.trainer.report import TrainerReport

T = TypeVar("T")


class Ending(Protocol):
    """What is used of `headrace.pipeline.main.shutdown.Shutdown` before there is one."""

    begun: bool

    @property
    def learners_ended(self) -> bool:
        """True if the run is ending and no trainer will send a policy any more."""

    def finish(self) -> None:
        """End the run in order."""

    def learner_started(self) -> None:
        """A learner was started, maybe after the run's end had begun."""

    def moved(self) -> None:
        """There is a sign of progress."""


class Run(Protocol):
    """What parts, and main's helpers, may use of their run."""

    plan: RunPlan
    tasks: GuardedTasks
    launcher: Launcher
    running: RunningHosts
    broadcaster: Broadcaster
    flow: FlowControl
    supervisor: Supervisor
    reporter: Reporter
    statistics: StatisticsCollector
    timers: Timers
    stages: StageHost
    """Main's own."""

    @property
    def shutdown(self) -> Ending:
        """Its end."""

    @property
    def parts(self) -> RunParts:
        """What only some runs have."""

    @property
    def behaviors(self) -> Mapping[str, BehaviorState]:
        """The open behaviours, by name."""

    def end_host(self, host: HostHandle, why: str) -> None:
        """End a host that is not to blame itself, so that another one may take its place."""


class RunPart:
    """One part of a run in main's event loop. What a part does not override does nothing.

    Args:
        run: the run.
    """

    receives: ClassVar[tuple[type[ControlMessage], ...]] = ()
    """The messages of hosts that come to it."""
    host_name: ClassVar[str] = ""
    """Of the host that it starts before the actors."""

    def __init__(self, run: Run) -> None:
        self.run = run

    async def start(self) -> None:
        """Start what has to be there before the actors."""

    async def actor_started(self, slot: ActorSlot) -> None:
        """An actor was started, maybe in the place of a dead one."""

    def actor_replaced(self, name: str) -> None:
        """An actor is about to be started in the place of a dead one."""

    async def learner_started(self, state: BehaviorState, learner: HostHandle) -> list[Runner]:
        """A learner was started; returns what main has to run for it."""
        return []

    async def learns(self, behavior: str, slot: ActorSlot) -> None:
        """An actor has agents of a behaviour that learns; again for one that is known, and for each of its teams."""

    def policy_came(self, behavior: str, policy: PolicyUpdate | None) -> None:
        """A trainer has sent a policy; None behind its last one."""

    def receive(self, host: HostHandle, message: Any) -> None:
        """Receive one of the messages in `receives`."""

    def reported(self, report: TrainerReport) -> None:
        """A trainer has reported; flow control does not know of it yet."""

    def summarised(self, report: TrainerReport) -> None:
        """A trainer's report is about to be shown: the last moment for statistics that belong to it."""

    def at_rest(self) -> None:
        """All actors of a deterministic run stand still."""

    def checkpoint_begins(self) -> None:
        """A checkpoint begins: barriers are about to be put into the streams."""

    def host_failed(self, why: str) -> None:
        """A host of the part's role is about to end."""

    async def host_ended(self, host: HostHandle, status: int, how: str) -> bool:
        """A host of the part's role has ended; return True if another one is there in its place.

        Args:
            host: the host.
            status: its exit status.
            how: the same in words.
        """
        return False

    def fewer_hosts(self, at_once: bool) -> None:
        """Some host has ended for good.

        Args:
            at_once: the run ends before it is done.
        """

    def progress(self) -> Mapping[str, Any]:
        """Return the part's state in checkpoints; names are unique among all parts."""
        return {}

    def lessons(self) -> Mapping[str, int]:
        """Return the present lessons, for `training_status.json`."""
        return {}

    def league_reports(self) -> Mapping[str, dict[str, Any]]:
        """Return the report of each league, by behaviour, for `league.json`, its picture and the live page."""
        return {}

    def close(self) -> None:
        """All hosts have ended."""

    def results(self, behavior: str) -> Mapping[str, Any]:
        """Return fields of a behaviour's `BehaviorResult`."""
        return {}

    def report(self) -> Mapping[str, Any]:
        """Write what is made of the run at its end, in a thread; returns fields of its `RunResult`."""
        return {}


class RunParts:
    """The parts of one run, in the order of their table.

    Args:
        run: the run.
    """

    def __init__(self, run: Run) -> None:
        self._parts: dict[str, RunPart] = {
            name: part(run) for name, part in wanted_sides(run.plan.config, "main").items()
        }

    def __iter__(self) -> Iterator[RunPart]:
        return iter(self._parts.values())

    def get(self, name: str) -> Any:
        """Return a part by its name; None if the run does not have it."""
        return self._parts.get(name)

    def of_role(self, role: str) -> RunPart | None:
        """Return the part that sees to the ends of hosts of a role; None if main does."""
        part = next((self._parts.get(name) for name, kind in RUN_PARTS.items() if role in kind.roles), None)
        return part if part is not None and type(part).host_ended is not RunPart.host_ended else None

    def receive(self, host: HostHandle, message: Any) -> None:
        """Pass a message on to the parts that receive it."""
        for part in self:
            if isinstance(message, part.receives):
                part.receive(host, message)

    async def learner_started(self, state: BehaviorState, learner: HostHandle) -> list[Runner]:
        """A learner was started; returns what main has to run for it."""
        return [runner for part in self for runner in await part.learner_started(state, learner)]

    def tell(self, what: Callable[[RunPart], object]) -> None:
        """Call something on each part."""
        for part in self:
            what(part)

    def merged(self, take: Callable[[RunPart], Mapping[str, T]]) -> dict[str, T]:
        """Merge what each part returns."""
        return {name: value for part in self for name, value in take(part).items()}
