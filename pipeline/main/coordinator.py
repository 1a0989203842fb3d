"""Main: handles messages from hosts, and starts and ends the run.

This module decides nothing about learning. The other modules in this folder serve every run: `launcher` starts and
connects hosts and sends messages to actors, `behavior_start` starts a behaviour when it first appears, `pipeline/flow/`
grants credits, `checkpointing` assembles checkpoints, `shutdown` ends the run, `behavior` holds the stages in main, and
`host_watch` starts actors, listens to hosts, and handles hosts that end or fall silent. Features that only some runs
have are parts (`common/run_parts.py`). This module wires all of them and dispatches each message.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from headrace.pipeline.common.graph import MAIN
from headrace.pipeline.control import messages as control
from headrace.pipeline.flow.control import FlowControl
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.behavior_start import BehaviorStarter
from headrace.pipeline.main.checkpointing import Checkpointing
from headrace.pipeline.main.controls import RunControls
from headrace.pipeline.main.guarded import GuardedTasks
from headrace.pipeline.main.host_watch import HostWatch
from headrace.pipeline.main.launcher import Broadcaster, Launcher
from headrace.pipeline.main.run_part import RunParts
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.main.running_hosts import RunningHosts
from headrace.pipeline.main.shutdown import SOURCES_SHARE, EarlyEnd, Shutdown
from headrace.pipeline.main.supervision import Supervisor
from headrace.pipeline.reporting.progress import Progress, ProgressSnapshot
from headrace.pipeline.reporting.reporter import Reporter
from headrace.pipeline.reporting.statistics import StatisticsCollector
from headrace.pipeline.reporting.writers import open_writers
from headrace.pipeline.roles.runtime import plain_statistics
from headrace.pipeline.roles.stages import StageHost
from headrace.queues.specs import BehaviorSpec
from headrace.stages.activity import COMPUTING
from headrace.stages.trainer.report import TrainerReport

OF_ENVIRONMENTS = "headrace.stages.environments."
"""Prefix of the loggers for warnings about the environment, which are the same in every actor; restarts are logged
elsewhere.
"""
EVERY_S = 1.0
"""Seconds between checks of progress, heartbeats and overdue checkpoints."""


class Coordinator:
    """A run's main host, which wires its helpers and dispatches messages. Leaving its async context ends all hosts.

    Args:
        plan: the run.
        console: True to log one line per summary.
        progress: the live table.

    Attributes:
        starter: starts behaviours and holds the run's self-play.
        shutdown: ends the run and records its failure.
        checkpointing: the run's checkpoints.
        controls: the controls that users have over the run.
        early_end: ends the run before it is done.
        plan, tasks, stages and so on: see `headrace.pipeline.main.run_part.Run`.
    """

    shutdown: Shutdown
    _hosts: HostWatch

    def __init__(self, plan: RunPlan, console: bool, progress: Progress) -> None:
        self.plan = plan
        self._first_to_warn: dict[str, str] = {}
        self.tasks = GuardedTasks(lambda failure: self.shutdown.fail(failure))
        self.parts = RunParts(self)
        self.statistics = StatisticsCollector(plan.seed)
        training = not plan.playing
        writers = open_writers(plan.config, plan.folder.path, plan.resumes) if training else []
        self.reporter = Reporter(
            self.statistics, writers, progress, plan.elapsed_before_s, training, console, waits=plan.folder.waits
        )
        self.running = RunningHosts(plan.config, self.tasks.group, lambda host: self._hosts.listen_to(host))
        self.launcher = Launcher(plan, self.running, self.parts.learner_started)
        self.broadcaster = Broadcaster(self.launcher)
        replayed, grant = bool(plan.replay_edge), self.broadcaster.grant
        self.flow = FlowControl(plan.config, replayed, grant, lambda: self.parts.tell(lambda part: part.at_rest()))
        self.supervisor = Supervisor(plan.config.env_settings, plan.config.pipeline.supervision)
        folder, receive = plan.folder.path, self._on_message_of_stage
        self.stages = StageHost(MAIN, folder, plan.seed, None, self.statistics, plan.resumed, receive)
        self.starter = BehaviorStarter(self, self._on_trainer_report)
        self.behaviors = self.starter.behaviors
        self.checkpointing = Checkpointing(self)
        self.shutdown = Shutdown(self)
        self.early_end = EarlyEnd(plan, self.shutdown)
        self.controls = RunControls(self)
        self._hosts = HostWatch(self)

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
        """End a host that is not at fault, so that a new one can replace it."""
        self._hosts.end(host, why)

    async def run(self, stop: asyncio.Event, on_progress: Callable[[ProgressSnapshot], object] | None) -> None:
        """Run until all trainers are done, `stop` is set or something fails; then end all hosts."""
        with self.reporter.showing():
            background = [
                self.tasks.start(self._watch_clock(on_progress)),
                self.tasks.start(self.early_end.watch(stop)),
            ]
            try:
                await self._hosts.start()
                await self.running.wait_all()
            finally:
                for task in background:
                    task.cancel()
        for part in self.parts:
            await part.settle()
        self.parts.tell(lambda part: part.close())
        if self.shutdown.failure is None:
            self.checkpointing.close()
        self.checkpointing.look()
        if not self.plan.playing and not self.plan.folder.waits:
            self.reporter.finish()
            self.checkpointing.write_status(final=True)
            self.checkpointing.check_exports()

    # Messages from hosts. --------------------------------------------------------------------------------------------

    async def on_message(self, host: HostHandle, message: control.ControlMessage) -> None:
        """Handle a message from a host."""
        match message:
            case TrainerReport():
                self._on_trainer_report(message)
            case control.CreditRequest():
                self.flow.requested(message)
            case control.StatisticsReport():
                self._hosts.alive(host, message)
            case control.Preparing():
                self.supervisor.preparing(host.plan.name, time.monotonic(), message.begins)
            case control.CreditsReturned() | control.PartSaved() | control.PartFailed():
                self._on_message_of_stage(message)
            case control.BehaviorSeen():
                await self.starter.agents_seen(host, BehaviorSpec.from_plain(dict(message.spec)))
                self._go_on()
            case control.LearnerReady():
                self._hosts.learners.ready(host, message)
                self.parts.tell(lambda part: part.learner_ready(message.behavior))
                self._go_on()
            case control.Exported() | control.ExportFailed():
                self.checkpointing.exported(message)
            case control.LogLine():
                self._on_log_line(host, message)
            case control.EpochEnded():
                self.reporter.record_epoch(message)
            case control.SourceEnded():
                self.shutdown.source_ended(host.plan.name)
            case control.HostFailed():
                self._hosts.failed(host, message)
            case _:
                self.parts.receive(host, message)

    def _go_on(self) -> None:
        """Let a resumed run write to its folder once the state of all its known behaviours is restored."""
        states = self.behaviors.values()
        if (
            self.plan.folder.waits
            and not self.shutdown.failure
            and states
            and all(each.was_ready or not each.settings.learns for each in states)
        ):
            self.checkpointing.go_on()
            self.reporter.go_on()

    def _on_log_line(self, host: HostHandle, line: control.LogLine) -> None:
        """Log a host's record; log a warning about the environment only once, although every actor sends it."""
        name = host.plan.name
        shared = line.level == logging.WARNING and line.logger.startswith(OF_ENVIRONMENTS)
        if not shared or self._first_to_warn.setdefault(line.text, name) == name:
            logging.getLogger(line.logger).log(line.level, "%s", line.text)

    def _on_trainer_report(self, report: TrainerReport) -> None:
        behaviors = self.behaviors
        state = behaviors[report.behavior]
        self.checkpointing.look()
        checkpoint_due = state.receive_report(report)
        self.early_end.check_rating(state)
        state.path.on_report(report)
        self.parts.tell(lambda part: part.reported(report))
        # First, so that in a deterministic run no actor gets credits to continue before the checkpoint.
        learners = [other for other in behaviors.values() if other.settings.learns]
        if all(other.done for other in learners or behaviors.values()):
            self.shutdown.finish()
        elif checkpoint_due and state.settings.learns and not self.checkpointing.busy and not self.shutdown.begun:
            self.checkpointing.begin()
        if state.settings.learns:
            self.flow.trainer_reported(report)
        self.parts.tell(lambda part: part.summarised(report))
        self.reporter.record_report(report)

    def _on_message_of_stage(self, message: control.ControlMessage) -> None:
        if isinstance(message, control.CreditsReturned):
            self.flow.returned(message)
        elif isinstance(message, control.PartSaved | control.PartFailed):
            self.checkpointing.receive(message)

    # Periodic checks. ----------------------------------------------------------------------------------------------

    async def _watch_clock(self, on_progress: Callable[[ProgressSnapshot], object] | None) -> None:
        cpu_s = time.thread_time()
        while True:
            await asyncio.sleep(EVERY_S)
            now, before_s, cpu_s = time.monotonic(), cpu_s, time.thread_time()
            self.stages.timings.add(COMPUTING, cpu_s - before_s)
            self.checkpointing.look()
            if not self.shutdown.begun:  # then the limits of `shutdown` apply
                self.checkpointing.check_time(now)
                self.early_end.check_time(now)
            queues = [plain_statistics(end.statistics()) for end in self.launcher.ends.values()]
            self.reporter.add_statistics({}, queues, MAIN)
            self.reporter.shares.add(MAIN, *self.stages.timings.drain())
            self.reporter.show()
            if on_progress is not None and self.shutdown.failure is None:  # the failure may come from `on_progress`
                with self.tasks.failing():
                    on_progress(self.reporter.snapshot())
            self._hosts.silence.look(now)
