"""Main: answers the messages of hosts, and sees to it that the run begins and ends.

It decides nothing about learning. Its parts each have a module: `launcher` starts and joins hosts, `behavior_start`
starts a behaviour when it is first seen, `broadcast` sends messages and policies to actors, `flow_control` gives them
credits, `curricula` decides on lessons, `checkpointing` gathers checkpoints, `shutdown` ends the run, `reporting`
informs people, `trajectory_path` holds the stages that live in main, `host_ends` says what follows from a host's end.
What is left here is the dispatch of messages: which message causes what, and when.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from types import TracebackType
from typing import Any

from headrace.pipeline.common.graph import INFERENCE, MAIN, actor_names, decides_centrally
from headrace.pipeline.common.process import ProcessUsage
from headrace.pipeline.control import messages as control
from headrace.pipeline.control.credits import CreditRequest
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.hosts.runtime import describe_failure, plain_statistics
from headrace.pipeline.hosts.stages import StageHost
from headrace.pipeline.main.behavior_start import BehaviorStarter
from headrace.pipeline.main.broadcast import Broadcaster
from headrace.pipeline.main.central_inference import CentralInference
from headrace.pipeline.main.checkpointing import Checkpointing
from headrace.pipeline.main.controls import RunControls
from headrace.pipeline.main.curricula import MeasuredProgress
from headrace.pipeline.main.early_end import EarlyEnd
from headrace.pipeline.main.evaluation import Evaluation
from headrace.pipeline.main.flow_control import FlowControl
from headrace.pipeline.main.host_ends import HostEnds
from headrace.pipeline.main.launcher import ActorSlot, Launcher
from headrace.pipeline.main.lost_learners import LostLearners
from headrace.pipeline.main.own_game import OwnGameLink
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.main.running_hosts import RunningHosts
from headrace.pipeline.main.scores import ScoreBoard
from headrace.pipeline.main.shutdown import SOURCES_SHARE, Shutdown
from headrace.pipeline.main.silence import SilenceWatch
from headrace.pipeline.main.supervision import Supervisor
from headrace.pipeline.reporting.progress import Progress, ProgressSnapshot
from headrace.pipeline.reporting.reporter import Reporter
from headrace.pipeline.reporting.statistics import StatisticsCollector
from headrace.pipeline.reporting.timers import Timers
from headrace.pipeline.reporting.writers import open_writers
from headrace.pipeline.run_folder.training_status import ExportEntry
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import is_failure
from headrace.stages.trainer.report import TrainerReport

log = logging.getLogger(__name__)

EVERY_S = 1.0
"""Seconds between two looks at the clock: progress, heartbeats, overdue checkpoints."""


class Coordinator:
    """One run's main host; an async context manager that leaves no host behind.

    Args:
        plan: the run.
        console: whether to log a line per summary.
        progress: the live table.

    Attributes:
        starter: the behaviours that were seen, and the run's self-play.
        shutdown: the run's end, and what failed.
        checkpointing: its checkpoints.
        evaluation: plays its policies beside training.
        flow: flow control.
        running: the hosts.
        controls: what users may do to it.
        scores: those of what is only played.
        own_game: the way between the page and the persons in its own game.
        reporter: informs people.
        early_end: ends it before it is done.
        checkpoint_written: called when a checkpoint is whole.
    """

    def __init__(self, plan: RunPlan, console: bool, progress: Progress) -> None:
        self.checkpoint_written: Callable[[], None] = lambda: None
        self._plan = plan
        self._config = plan.config
        self._curricula = plan.curricula()
        self._collector = StatisticsCollector(plan.seed)
        self._timers = timers = Timers()
        training = not plan.playing
        writers = open_writers(plan.config, plan.folder.path, timers, plan.resumes) if training else []
        self.reporter = Reporter(self._collector, writers, progress, plan.elapsed_before_s, training, console)
        self._tasks = asyncio.TaskGroup()
        self.running = RunningHosts(plan.config, self._tasks, self._listen_later)
        self._launcher = Launcher(plan, self.running)
        self._broadcaster = Broadcaster(self._launcher)
        self.flow = FlowControl(plan, self._broadcaster, self._advance_lessons)
        self._supervisor = Supervisor(plan.config.env_settings, plan.config.pipeline.supervision)
        self.evaluation = Evaluation(plan, self._launcher, self._supervisor)
        stages = StageHost(
            MAIN, plan.folder.path, plan.seed, None, self._collector, plan.resumed, self._on_message_of_stage
        )
        calls = self._run_guarded, self.evaluation, self._on_trainer_report
        self.starter = BehaviorStarter(plan, self._launcher, self._broadcaster, stages, self.reporter, *calls)
        behaviors = self.starter.behaviors
        self.checkpointing = Checkpointing(
            plan, behaviors, timers, self._progress, self._lessons, stages, self._checkpoint_ended
        )
        self.shutdown = Shutdown(
            behaviors,
            self.running,
            self._broadcaster,
            actor_names(plan.config),
            self.checkpointing,
            None if plan.playing else lambda: self._begin_checkpoint(then_stop=True),
            self.checkpointing.save_now,
            plan.config.pipeline.supervision.grace_s,
            plan.deterministic,
        )
        self.early_end = EarlyEnd(plan, self.shutdown)
        self.controls = RunControls(
            plan, self._broadcaster, behaviors, self.checkpointing, self.shutdown, self._begin_checkpoint
        )
        self.own_game = OwnGameLink(self._broadcaster)
        self.scores = ScoreBoard(plan.config)
        self._lost_learners = LostLearners(
            plan, self._launcher, self.starter, self.checkpointing, self.flow, self.reporter
        )
        self._host_ends, self._silence = self._watches(stages)
        self._runners: list[asyncio.Task[None]] = []

    def _watches(self, stages: StageHost) -> tuple[HostEnds, SilenceWatch]:
        """Make what sees to hosts that end, and to those that are silent."""
        ends = HostEnds(
            self.running,
            self._launcher,
            self._supervisor,
            self.shutdown,
            self.evaluation,
            self._restart_actor,
            self._lost_learners,
        )
        fails = self.shutdown.fail, self.evaluation.fail
        return ends, SilenceWatch(
            self._supervisor, self.running, self._tasks, stages, *fails, may_replace=ends.may_replace
        )

    async def __aenter__(self) -> Coordinator:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.running.close()
            self._launcher.close_ends()
            self.reporter.close()
            if error is None:
                await self._end_runners()
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            self.running.leave()

    async def _end_runners(self) -> None:
        """Let main's stages end, as their queues have; one that awaits something else for ever is cancelled."""
        patience_s = self._config.pipeline.supervision.grace_s * SOURCES_SHARE
        _, left = await asyncio.wait(self._runners, timeout=patience_s) if self._runners else ((), ())
        for task in left:
            log.warning("%s did not end within %.0f s and is cancelled.", task.get_name(), patience_s)
            task.cancel()

    async def run(self, stop: asyncio.Event, on_progress: Callable[[ProgressSnapshot], object] | None) -> None:
        """Run until all trainers are done, `stop` is set or something fails; then end all hosts."""
        with self.reporter.showing():
            background = [
                self._tasks.create_task(self._guard(self._watch_clock(on_progress))),
                self._tasks.create_task(self._guard(self.early_end.watch(stop))),
            ]
            try:
                await self._start()
                await self.running.wait_all()
            finally:
                for task in background:
                    task.cancel()
        self.evaluation.report_loss()
        if self.shutdown.failure is None:
            self.checkpointing.close()
        if not self._plan.playing:
            self.reporter.finish()
            self.checkpointing.write_status(final=True)

    # Starting. -----------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        for text in self._curricula.describe():
            log.info("%s", text)
        names = actor_names(self._config)
        if decides_centrally(self._config):
            with self._failing():
                self._broadcaster.central = await CentralInference.start(self._launcher, self._run_guarded)
            if self._broadcaster.central is None:
                self.running.mark_ended(INFERENCE)
                return
        for replica, name in enumerate(names):
            with self._failing():
                await self._start_actor(replica, name)
                continue
            self.running.mark_ended(name)  # nobody else will, and if it was the first, no other host's end will come
            self._end_inference()
            return

    async def _start_actor(self, replica: int, name: str, old: ActorSlot | None = None) -> None:
        slot = await self._launcher.start_actor(replica, name, old)
        self.flow.ledger.add_source(slot.source)
        if self._broadcaster.central is not None:
            await self._broadcaster.central.join(slot)
        if self._curricula:  # it waits for them before it builds its environments
            slot.handle.control.send(self._curricula.current_parameters())
        if old is not None:
            self.checkpointing.repeat_announcement(slot.handle)
        self.controls.source_started(slot.handle)
        self.own_game.source_started(slot.handle)
        if self.shutdown.begun:  # all others were sent it before this one was there
            slot.handle.control.send(control.Stop())

    async def _restart_actor(self, slot: ActorSlot) -> None:
        self.flow.sources_removed((*slot.former, slot.source))
        self.scores.actor_replaced(slot.handle.plan.name)
        self.shutdown.source_replaced(slot.handle.plan.name)
        await self._start_actor(slot.replica, slot.handle.plan.name, slot)

    def _listen_later(self, host: HostHandle) -> None:
        self._silence.started(host)
        apart = Context()  # what it takes is no part of the time of whatever started it
        self._tasks.create_task(self._listen(host), name=f"listening to {host.plan.name}", context=apart)

    def _run_guarded(self, runner: Coroutine[Any, Any, None]) -> None:
        self._runners.append(self._tasks.create_task(self._guard(runner), name="a queue of main"))

    async def _guard(self, runner: Coroutine[Any, Any, None]) -> None:
        with self._failing():
            await runner

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """The one door to what main runs: whatever is raised within ends the run, as a failure with a name."""
        try:
            yield
        except BaseException as error:
            if not is_failure(error):
                raise
            self.shutdown.fail(describe_failure(MAIN, error))

    # Messages of hosts. ----------------------------------------------------------------------------------------------

    async def _listen(self, host: HostHandle) -> None:
        """Listen to a host until its end, and see to what its end means."""
        said_goodbye = False
        with self._failing():
            async for message in host.control.receive():
                if not self._host_ends.may_replace(host):
                    host.settle()
                if isinstance(message, control.HostFinished | control.HostFailed):
                    said_goodbye = True
                    self._supervisor.ended(host.plan.name)  # its end is waited for otherwise
                # Listening goes on after a failure: this host's end has still to be seen.
                with self._failing(), self._timers.timer(type(message).__name__):
                    await self._on_message(host, message)
            status = await host.wait()
            if not self.running.current(host) or not await self._host_ends.see(host, status, said_goodbye):
                return
            self._end_inference()
            if self.shutdown.learners_ended:
                self.evaluation.end(at_once=bool(self.early_end.ended_by) or self.shutdown.failure is not None)
            return
        if self.running.current(host):  # also if its replacement could not be started
            host.settle()
            self.running.mark_ended(host.plan.name)
            self.shutdown.host_ended(host.plan.name, "was not replaced", in_order=False)

    def _end_inference(self) -> None:
        """Let the host that decides for the actors end, once the run ends and none of them is left."""
        left = self.running.unended.intersection(actor_names(self._config))
        if self._broadcaster.central is not None and self.shutdown.begun and not left:
            self._broadcaster.central.end()

    async def _on_message(self, host: HostHandle, message: control.ControlMessage) -> None:
        match message:
            case TrainerReport():
                self._on_trainer_report(message)
            case CreditRequest():
                self.flow.requested(message)
            case control.StatisticsReport():
                self._supervisor.alive(host.plan.name, time.monotonic(), message.silent_s)
                self.reporter.add_statistics(message.statistics, message.queues, host.plan.name)
                self._timers.add_work(message.timings)
                if message.memory:
                    usage = ProcessUsage(time.monotonic(), message.cpu_s, message.memory)
                    self.running.note_usage(host.plan.name, usage)
                slot = self._launcher.slot_of(host)
                if slot is not None:
                    self.starter.heartbeat(slot)
            case control.CreditsReturned() | control.PartSaved() | control.PartFailed():
                self._on_message_of_stage(message)
            case control.BehaviorSeen():
                await self._on_behavior_seen(host, BehaviorSpec.from_plain(dict(message.spec)))
            case control.LearnerReady():
                self._lost_learners.goes_on(host, message)
                self.controls.learner_ready(message)
                state = self.starter.behaviors[message.behavior]
                state.ready = state.was_ready = True
                self.flow.learner_ready(message)
            case control.Exported() | control.PolicyKept():
                self._on_policy(message)
            case control.LogLine():
                logging.getLogger(message.logger).log(message.level, "%s", message.text)
            case control.Evaluated() | control.EpochEnded() | control.Scored():
                self._on_score(host, message)
            case control.SourceEnded():
                self.shutdown.source_ended(host.plan.name)
            case control.ShowAnnounced() | control.PictureTaken():
                self.own_game.tell(message)
            case control.HostFailed() | control.FollowerLost():
                self._host_ends.told(host, message)

    async def _on_behavior_seen(self, host: HostHandle, spec: BehaviorSpec) -> None:
        slot = self._launcher.slot_of(host)
        if slot is None:
            return
        if self.shutdown.begun:
            await self.starter.drain_unlearned(spec.name)
            return
        log.info("Connected new brain: %s", spec.behavior_id)
        learns = self._config.behavior_settings(spec.name).learns and not self._plan.playing
        if not learns and spec.name not in self.starter.behaviors:
            self.flow.ledger.open_unbounded(spec.name)  # nobody learns from its steps
        await self.starter.agents_seen(slot, spec)
        if self.shutdown.begun:  # while its learner was started: nobody else will tell this learner to end
            self.shutdown.learner_started()

    def _on_trainer_report(self, report: TrainerReport) -> None:
        behaviors = self.starter.behaviors
        state = behaviors[report.behavior]
        checkpoint_due = state.receive_report(report)
        self.early_end.check_rating(state)
        state.path.on_report(report)
        self._curricula.record(report)
        if not self._plan.deterministic:
            self._advance_lessons()
        # First, so that in a deterministic run nobody is given credits for going on before the checkpoint.
        learners = [other for other in behaviors.values() if other.settings.learns]
        if all(other.done for other in learners or behaviors.values()):
            self.shutdown.finish()
        elif checkpoint_due and state.settings.learns and not self.checkpointing.busy and not self.shutdown.begun:
            self._begin_checkpoint()
        if state.settings.learns:
            self.flow.trainer_reported(report)
        for parameter, lesson in self._lessons().items():
            self._collector.add(report.behavior, f"Environment/Lesson Number/{parameter}", float(lesson), "last")
        self.reporter.record_report(report)

    def _on_message_of_stage(self, message: control.ControlMessage) -> None:
        if isinstance(message, control.CreditsReturned):
            self.flow.returned(message)
        elif isinstance(message, control.PartSaved | control.PartFailed):
            self.checkpointing.receive(message)

    def _on_policy(self, message: control.Exported | control.PolicyKept) -> None:
        if isinstance(message, control.PolicyKept):
            if self._broadcaster.central is not None:
                self._broadcaster.send_to_actors(self._broadcaster.central.note_kept(message))
            return
        file, beside = (message.file, ()) if message.onnx is None else (message.onnx, (message.file,))
        entry = ExportEntry(message.step, file, message.reward, time.time(), beside).within(self._plan.folder.path)
        self.starter.behaviors[message.behavior].add_export(entry)
        log.info("Exported %s", entry.file_path)

    def _on_score(self, host: HostHandle, message: control.Evaluated | control.EpochEnded | control.Scored) -> None:
        if isinstance(message, control.Scored):
            if self.scores.receive(host.plan.name, message):
                self.shutdown.finish()
            return
        if isinstance(message, control.EpochEnded):
            self.reporter.record_epoch(message)
            return
        self.evaluation.record(message)
        self.shutdown.moved()
        self.reporter.record_evaluation(message)

    # Lessons. ------------------------------------------------------------------------------------------------------

    def _lessons(self) -> Mapping[str, int]:
        return self._curricula.lessons

    def _advance_lessons(self) -> None:
        """Let the lessons begin that have become due; a recording does not change with them.

        In a deterministic run while all stand still: what is known then does not depend on who was how quick.
        """
        begun = None if self._plan.playing or self._plan.replay_edge else self._curricula.advance(self._measures)
        if begun is not None:
            self._broadcaster.send_to_sources(begun)

    def _measures(self, behavior: str) -> MeasuredProgress | None:
        state = self.starter.behaviors.get(behavior)
        return MeasuredProgress(state.step, state.settings.max_steps, state.elo) if state is not None else None

    # Checkpoints. --------------------------------------------------------------------------------------------------

    def _begin_checkpoint(self, then_stop: bool = False) -> None:
        if self._plan.deterministic:
            self.flow.pause()  # until it has ended, nobody steps: who resumes from it starts at the same point
        if self.starter.self_play is not None:
            self.starter.self_play.begin_checkpoint()
        self.checkpointing.begin(self._launcher.sources(), then_stop)

    def _checkpoint_ended(self, problem: str | None) -> None:
        self.shutdown.checkpoint_ended(problem)
        self.flow.resume()
        if problem is None:
            self.checkpoint_written()

    def _progress(self) -> dict[str, Any]:
        if self._plan.deterministic:
            self._advance_lessons()  # before those who resume from here would
        return {
            "elapsed_s": self.reporter.elapsed_s,
            "seed": self._plan.seed,
            **self.evaluation.progress(),
            "curricula": self._curricula.state_dict(),
            "brains": self.starter.brain_league.state_dict(),
        }

    # The clock. ----------------------------------------------------------------------------------------------------

    async def _watch_clock(self, on_progress: Callable[[ProgressSnapshot], object] | None) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            now = time.monotonic()
            if not self.shutdown.begun:  # then its limits hold
                self.checkpointing.check_time(now)
                self.early_end.check_time(now)
            queues = [plain_statistics(end.statistics()) for end in self._launcher.ends.values()]
            self.reporter.add_statistics({}, queues, "main")
            self.reporter.show()
            if on_progress is not None and self.shutdown.failure is None:  # which may be its own
                with self._failing():
                    on_progress(self.reporter.snapshot())
            self._silence.look(now)
