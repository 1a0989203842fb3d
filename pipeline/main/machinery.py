"""What every run is made of: its helpers in main, each with what it needs of the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import Context
from types import TracebackType
from typing import Any, Self

from headrace.pipeline.common.graph import MAIN, actor_names
from headrace.pipeline.control import messages as control
from headrace.pipeline.flow.control import FlowControl
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.actors import Actors
from headrace.pipeline.main.behavior_start import BehaviorStarter
from headrace.pipeline.main.broadcast import Broadcaster
from headrace.pipeline.main.checkpointing import Checkpointing
from headrace.pipeline.main.controls import RunControls
from headrace.pipeline.main.guarded import GuardedTasks
from headrace.pipeline.main.host_watch import HostWatch, SilenceWatch
from headrace.pipeline.main.launcher import Launcher
from headrace.pipeline.main.lost_learners import LostLearners
from headrace.pipeline.main.run_part import RunParts
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.main.running_hosts import RunningHosts
from headrace.pipeline.main.shutdown import SOURCES_SHARE, EarlyEnd, Shutdown
from headrace.pipeline.main.supervision import Supervisor
from headrace.pipeline.reporting.progress import Progress
from headrace.pipeline.reporting.reporter import Reporter
from headrace.pipeline.reporting.statistics import StatisticsCollector
from headrace.pipeline.reporting.timers import Timers
from headrace.pipeline.reporting.writers import open_writers
from headrace.pipeline.roles.stages import StageHost
from headrace.stages.trainer.report import TrainerReport


class RunMachinery(ABC):
    """All that every run is made of, wired; an async context manager that leaves no host behind.

    What derives from it says what follows from what: it has the methods that are called from here.

    Args:
        plan: the run.
        console: whether to log a line per summary.
        progress: the live table.

    Attributes:
        plan, tasks, launcher, running, broadcaster, supervisor, reporter, statistics, behaviors: see `Run`.
        parts: what only some runs have.
        starter: starts behaviours, and knows the run's self-play.
        shutdown: the run's end, and what failed.
        checkpointing: its checkpoints.
        flow: flow control.
        controls: what users may do to it.
        early_end: ends it before it is done.
        checkpoint_written: called when a checkpoint is whole.
    """

    def __init__(self, plan: RunPlan, console: bool, progress: Progress) -> None:
        self.checkpoint_written: Callable[[], None] = lambda: None
        self.plan = plan
        self.tasks = GuardedTasks(self._fail)
        self.parts = RunParts(self)
        self.statistics = StatisticsCollector(plan.seed)
        self._timers = timers = Timers()
        training, supervision = not plan.playing, plan.config.pipeline.supervision
        writers = open_writers(plan.config, plan.folder.path, timers, plan.resumes) if training else []
        self.reporter = Reporter(self.statistics, writers, progress, plan.elapsed_before_s, training, console)
        self.running = RunningHosts(plan.config, self.tasks.group, self._listen_later)
        self.launcher = Launcher(plan, self.running, self.parts.learner_started)
        self.broadcaster = Broadcaster(self.launcher)
        replayed, grant = bool(plan.replay_edge), self.broadcaster.grant
        self.flow = FlowControl(plan.config, replayed, grant, lambda: self.parts.tell(lambda part: part.at_rest()))
        self.supervisor = Supervisor(plan.config.env_settings, supervision)
        folder, receive = plan.folder.path, self._on_message_of_stage
        stages = StageHost(MAIN, folder, plan.seed, None, self.statistics, plan.resumed, receive)
        calls = self.tasks.run, self.parts, self._on_trainer_report
        self.starter = BehaviorStarter(plan, self.launcher, self.broadcaster, stages, self.reporter, *calls)
        self.behaviors = behaviors = self.starter.behaviors
        self.checkpointing = Checkpointing(
            plan, behaviors, timers, self._progress, self._lessons, stages, self._checkpoint_ended
        )
        self.shutdown = Shutdown(
            behaviors,
            self.running,
            self.broadcaster,
            actor_names(plan.config),
            self.checkpointing,
            (lambda: self._begin_checkpoint(then_stop=True)) if training else None,
            self.checkpointing.save_now,
            supervision.grace_s,
            plan.deterministic,
        )
        self.early_end = EarlyEnd(plan, self.shutdown)
        self.controls = RunControls(
            plan, self.broadcaster, behaviors, self.checkpointing, self.shutdown, self._begin_checkpoint
        )
        self._watch_hosts(stages)

    def _watch_hosts(self, stages: StageHost) -> None:
        """Make what starts actors, and what sees to hosts that end or are silent."""
        self._actors = Actors(
            self.launcher,
            self.running,
            self.parts,
            self.flow,
            self.checkpointing,
            self.controls,
            self.shutdown,
            self.tasks,
        )
        self._lost_learners = LostLearners(
            self.plan, self.launcher, self.starter, self.checkpointing, self.flow, self.reporter
        )
        self._hosts = HostWatch(
            self.tasks,
            self.running,
            self.launcher,
            self.supervisor,
            self.shutdown,
            self.parts,
            self._actors.restart,
            self._lost_learners,
            self._on_message,
            self._fewer_hosts,
            self._timers,
        )
        self._silence = SilenceWatch(
            self.supervisor,
            self.running,
            self.tasks.group,
            stages,
            self.shutdown.fail,
            self.parts.of_role,
            self._hosts.may_replace,
        )

    async def __aenter__(self) -> Self:
        await self.tasks.group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.running.close()
            self.launcher.close_ends()
            self.reporter.close()
            if error is None:
                await self.tasks.end_runners(self.plan.config.pipeline.supervision.grace_s * SOURCES_SHARE)
            await self.tasks.group.__aexit__(kind, error, trace)
        finally:
            self.running.leave()

    def end_host(self, host: HostHandle, why: str) -> None:
        """End a host that is not to blame itself, so that another one may take its place."""
        self._hosts.end(host, why)

    def _listen_later(self, host: HostHandle) -> None:
        self._silence.started(host)
        apart = Context()  # what it takes is no part of the time of whatever started it
        self.tasks.group.create_task(self._hosts.listen(host), name=f"listening to {host.plan.name}", context=apart)

    def _fail(self, failure: control.HostFailed) -> None:
        self.shutdown.fail(failure)

    def _progress(self) -> dict[str, Any]:
        """Return main's state for checkpoints."""
        return {
            "elapsed_s": self.reporter.elapsed_s,
            "seed": self.plan.seed,
            **self.parts.merged(lambda part: part.progress()),
            "brains": self.starter.brain_league.state_dict(),
        }

    def _lessons(self) -> dict[str, int]:
        return self.parts.merged(lambda part: part.lessons())

    # What follows from what. ---------------------------------------------------------------------------------------

    @abstractmethod
    async def _on_message(self, host: HostHandle, message: control.ControlMessage) -> None:
        """A host has sent a message."""

    @abstractmethod
    def _on_message_of_stage(self, message: control.ControlMessage) -> None:
        """A stage in main has something to say, as those of hosts do."""

    @abstractmethod
    def _on_trainer_report(self, report: TrainerReport) -> None:
        """A trainer, or what stands in its place, has reported."""

    @abstractmethod
    def _fewer_hosts(self) -> None:
        """Some host has ended for good."""

    @abstractmethod
    def _begin_checkpoint(self, then_stop: bool = False) -> None:
        """A checkpoint is due; the sources stop behind it if they are to."""

    @abstractmethod
    def _checkpoint_ended(self, problem: str | None) -> None:
        """A checkpoint is whole, or could not be written."""
