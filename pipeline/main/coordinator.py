"""Main: handles messages from hosts, and starts and ends the run.

This module decides nothing about learning. The other modules in this folder serve every run: `launcher` starts and
connects hosts and sends messages to actors, `behavior_start` starts a behaviour when it first appears, `flow` grants
credits, `checkpointing` assembles checkpoints, `shutdown` ends the run, `behavior` holds the stages in main, and
`HostWatch` starts actors, listens to hosts, and handles hosts that end or fall silent. Features that only some runs
have are parts (`common/run_parts.py`). This module wires all of them and dispatches each message.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from headrace.config.host_kinds import HOST_KINDS
from headrace.pipeline import control as control
from headrace.pipeline.common.graph import MAIN, actor_names, learner_name
from headrace.pipeline.common.loop_watch import describe_holder
from headrace.pipeline.common.process import ProcessUsage
from headrace.pipeline.common.run_parts import host_role
from headrace.pipeline.control import (
    HostFailed,
    HostFinished,
    LearnerReady,
    LearnerReplaced,
    StatisticsReport,
    Stop,
)
from headrace.pipeline.diagnosis.rules import Finding, RunDiagnosis
from headrace.pipeline.flow import FlowControl
from headrace.pipeline.hosts.protocol import HostHandle, how_it_ended
from headrace.pipeline.main.behavior import BehaviorState
from headrace.pipeline.main.behavior_start import BehaviorStarter
from headrace.pipeline.main.checkpointing import Checkpointing
from headrace.pipeline.main.controls import RunControls
from headrace.pipeline.main.launcher import ActorSlot, Broadcaster, Launcher, RunningHosts
from headrace.pipeline.main.run_part import RunParts
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.main.shutdown import SOURCES_SHARE, Shutdown
from headrace.pipeline.main.supervision import GuardedTasks, Silence, SupervisionSection, Supervisor
from headrace.pipeline.reporting.console import Progress, ProgressSnapshot
from headrace.pipeline.reporting.history import read_events
from headrace.pipeline.reporting.reporter import Reporter
from headrace.pipeline.reporting.statistics import StatisticsCollector
from headrace.pipeline.reporting.writers import open_writers
from headrace.pipeline.roles.runtime import plain_statistics
from headrace.pipeline.roles.stages import StageHost
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint
from headrace.queues.disks import in_thread
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.activity import COMPUTING
from headrace.stages.trainer.report import TrainerReport

log = logging.getLogger(__name__)


CAUSE_S = 5.0
"""Seconds to wait for the reason why a host ended normally before the run did. Usually, another host ended first."""


class HostWatch:
    """Starts actors, listens to each host, and handles hosts that end or are silent.

    A silent host, or main's silent stage, is named with its stack, and later ended. Lost actors and learners are
    replaced. A new learner starts from the newest checkpoint, and main's state is rolled back to it; actors continue.

    Args:
        run: the run.
    """

    def __init__(self, run: Coordinator) -> None:
        self._run = run
        self._loops: dict[str, str] = {}
        """For each host, the event loop in which it runs: main's loop, a loop that learners share, or its own."""
        self._lost: dict[str, int] = {}
        """Steps at which the learners that are being replaced were lost, keyed by behaviour name."""
        run.supervisor.started(MAIN, "main", time.monotonic())

    async def start(self) -> None:
        """Start the parts' own hosts and all actors; if one of them can't start, the run fails."""
        run = self._run
        started = False
        with run.tasks.failing():
            for part in run.parts.all:
                await part.start()
            for replica, name in enumerate(actor_names(run.plan.config)):
                await self._start_actor(replica, name)
            started = True
        if not started:
            self._fewer_hosts()

    async def _start_actor(self, replica: int, name: str, old: ActorSlot | None = None) -> None:
        """Start an actor, and send it the messages that earlier actors have already received.

        Args:
            replica: its replica number.
            name: its name.
            old: the slot of the dead actor that it replaces; None if it is new.
        """
        run = self._run
        if old is not None:
            run.flow.sources_removed((*old.former, old.source))
            for part in run.parts.all:
                part.actor_replaced(name)
            run.shutdown.source_replaced(name)
        slot = await run.launcher.start_actor(replica, name, old)
        run.flow.ledger.add_source(slot.source)
        for part in run.parts.all:
            await part.actor_started(slot)
        if old is not None:
            run.checkpointing.repeat_announcement(slot.handle)
        run.controls.source_started(slot.handle)
        if run.shutdown.begun:  # the other actors were sent it before this one existed
            slot.handle.control.send(Stop())

    def listen_to(self, host: HostHandle) -> None:
        """Listen to a started host until it ends, and handle its end."""
        self.expect_reports(host)
        name, kinds = host.plan.name, self._run.plan.config.pipeline.hosts
        kind = getattr(kinds, host_role(host.plan.role).placed_as).kind
        self._loops[name] = MAIN if HOST_KINDS[kind].in_main else str(getattr(host, "pid", None) or name)
        self._run.tasks.group.create_task(self._listen(host), name=f"listening to {name}")

    def expect_reports(self, host: HostHandle) -> None:
        """Count a host as silent from now on, unless it reports."""
        role = host_role(host.plan.role)
        # A host in main's event loop can't be ended separately while it blocks the loop.
        limits: SupervisionSection = role.limits if host.may_hang else "main"
        self._run.supervisor.started(host.plan.name, limits, time.monotonic(), role.patience)

    def alive(self, host: HostHandle, report: StatisticsReport) -> None:
        """Record a host's report, which also shows that the host is alive."""
        name, now_s = host.plan.name, time.monotonic()
        self._run.supervisor.alive(name, now_s, report.silent_s)
        self._run.reporter.add_statistics(report.statistics, report.queues, name, report.span_s)
        role, behavior = host.plan.role, host.plan.behavior
        self._run.reporter.shares.add(name, report.timings, report.span_s, role, behavior, self._loops[name])
        if report.memory:
            self._run.running.usage[name] = ProcessUsage(now_s, report.cpu_s, report.memory)
        starter = self._run.starter
        if starter.announced:
            slot = self._run.launcher.slot_of(host)
            if slot is not None and slot.source in starter.announced:
                starter.heartbeat(slot)

    async def _listen(self, host: HostHandle) -> None:
        said_goodbye, ends_kept = False, not self.may_replace(host)
        with self._run.tasks.failing():
            async for message in host.control.receive():
                if ends_kept:  # until the host's first message, which shows that it has its own copies
                    host.rule_out_successor()
                    ends_kept = False
                if isinstance(message, HostFinished | HostFailed):
                    said_goodbye = True
                    self._run.reporter.host_ended(host.plan.name)
                    self._run.supervisor.ended(host.plan.name)  # other code waits for the process to end
                # Listening continues after a failure, because this host has not ended yet.
                with self._run.tasks.failing():
                    await self._run.on_message(host, message)
            status = await host.wait()
            if self._run.running.current(host) and await self._ended(host, status, said_goodbye):
                self._fewer_hosts()
            return
        if self._run.running.current(host):  # even if its replacement could not be started
            host.rule_out_successor()
            self._run.running.mark_ended(host.plan.name)
            self._run.shutdown.host_ended(host.plan.name, "was not replaced", in_order=False)

    def may_replace(self, host: HostHandle) -> bool:
        """Return True if this host will be replaced when it dies, within the restart limits."""
        return host.plan.role == "actor" or (host.plan.role == "learner" and self._run.plan.replaces_learners)

    def failed(self, host: HostHandle, message: HostFailed) -> None:
        """Handle a host's failure message: pass it to the part that owns the host, or fail the run."""
        part = self._run.parts.of_role(host.plan.role)
        if part is not None:
            part.host_failed(message.message)
        else:
            self._run.shutdown.fail(message)

    def _fewer_hosts(self) -> None:
        """Notify the parts that a host won't be replaced. Some parts' own hosts may then have nothing left to do."""
        at_once = bool(self._run.shutdown.ended_by) or self._run.shutdown.failure is not None
        for part in self._run.parts.all:
            part.fewer_hosts(at_once)

    async def _ended(self, host: HostHandle, status: int, said_goodbye: bool) -> bool:
        """Handle a host's end; return True if the host is not replaced.

        Args:
            host: the host.
            status: its exit status, negative if a signal killed it.
            said_goodbye: True if the host's last message announced its end.
        """
        self._run.supervisor.ended(host.plan.name)
        name = host.plan.name
        how = how_it_ended(status) + ("" if status else " before the run was over")
        how = self._run.running.reasons.pop(name, how)
        part = self._run.parts.of_role(host.plan.role)
        if part is not None:
            if await part.host_ended(host, status, how):
                return False
        elif not self._run.shutdown.begun:
            if said_goodbye:
                if self._run.running.unended == {name}:
                    self._blame(name)
                else:
                    asyncio.get_running_loop().call_later(CAUSE_S, self._blame, name)
            elif await self._replace(host, how):
                return False
        host.rule_out_successor()  # otherwise consumers would wait forever on queue ends kept open for a replacement
        self._run.running.mark_ended(name)
        if self._run.shutdown.begun:
            in_order = said_goodbye or (status == 0 and name in self._run.running.dismissed)
            self._run.shutdown.host_ended(name, how, in_order)
        return True

    async def _replace(self, host: HostHandle, how: str) -> bool:
        """Handle a host's death: restart an actor or learner if allowed; the death of any other host ends the run."""
        name = host.plan.name
        if self._run.checkpointing.check_folder():
            return False
        slot = self._run.launcher.slot_of(host)
        if not self.may_replace(host):  # nor a replay: trainers would learn twice from a restarted recording
            self._run.shutdown.fail(HostFailed(f"the process of {name} {how}.", "", name))
            return False
        refusal = self._run.supervisor.refusal(name, time.monotonic())
        if refusal is not None:
            text = f"the process of {name} {how}. It is not restarted again: {refusal}."
            self._run.shutdown.fail(HostFailed(text, "", name))
            return False
        lost = "its incomplete trajectories are lost" if slot is not None else "the actors wait for it"
        log.warning("The process of %s %s. Restarting it; %s.", name, how, lost)
        if slot is not None:
            await self._start_actor(slot.replica, name, slot)
        else:
            await self._replace_learner(host)
            if self._run.shutdown.begun:  # the other learners were notified before this one existed
                self._run.shutdown.learner_started()
        return True

    def _blame(self, name: str) -> None:
        """Fail the run because a host has ended normally, unless the cause is already known."""
        if not self._run.shutdown.begun:
            text = f"{name} ended in the middle of the run: its consumer is gone."
            self._run.shutdown.fail(HostFailed(text, "", name))

    # The new learner opens the old one's links: no link is rewired, and other behaviours continue (docs/decisions/040).
    async def _replace_learner(self, lost: HostHandle) -> None:
        """Start a learner that replaces a lost one; the actors continue, with credits counted from 0.

        A learner is lost if its process ends without a message or is killed for being silent. A learner that raises an
        exception reports it and ends the run, because a replacement would fail too.
        """
        state = self._run.behaviors[lost.plan.behavior]
        name = state.behavior
        self._lost[name] = max(state.step, self._lost.get(name, 0))
        state.ready = state.done = False
        self._run.checkpointing.host_ended(learner_name(name))  # its missing parts can no longer arrive
        self._run.flow.ledger.close_window(name)
        checkpoint = newest_checkpoint(self._run.checkpointing.folder)
        step = checkpoint.steps.get(name) if checkpoint is not None else None
        if self._run.starter.self_play is not None:
            self._run.starter.self_play.rewind(name, step or 0)
        await self._run.launcher.replace_learner(state, resume=lost.plan.resume or step is not None)
        for slot in self._run.launcher.actors.values():
            source = self._run.launcher.assign_source(slot)
            self._run.flow.ledger.add_source(source)
            slot.handle.control.send(LearnerReplaced(name, source))

    def learner_ready(self, host: HostHandle, message: LearnerReady) -> None:
        """Handle a ready learner. If it replaces a lost learner, roll main's state back to the step of the new one."""
        self._run.supervisor.alive(host.plan.name, time.monotonic())  # after the start, the limits for updates apply
        state = self._run.behaviors[message.behavior]
        lost_at = self._lost.pop(message.behavior, None)
        if lost_at is not None:
            self._go_back(host, state, message.step, lost_at)
        self._run.controls.learner_ready(message)
        state.ready = state.was_ready = True
        self._run.flow.learner_ready(message)

    def _go_back(self, host: HostHandle, state: BehaviorState, step: int, lost_at: int) -> None:
        state.start_at(step)
        self._run.reporter.rewind(state.behavior, step)
        self._run.checkpointing.repeat_for_learner(host)
        log.warning(
            "%s continues from %s; its actors were not restarted. %d steps of training are lost.",
            host.plan.name,
            f"step {step}, its last checkpoint" if host.plan.resume else "the start, because there is no checkpoint",
            max(0, lost_at - step),
        )

    def check_silence(self, now_s: float) -> None:
        """Check for silent hosts; called about once a second.

        This can't run while code blocks main's event loop; `headrace.pipeline.common.loop_watch` handles that case.
        """
        self._run.supervisor.alive(MAIN, now_s, self._run.stages.silent_s())
        for name, started in self._run.running.hosts.items():
            if started.unplaced:
                self._run.supervisor.preparing(name, now_s, begins=True)
        for silence in self._run.supervisor.silent(now_s):
            host = self._run.running.hosts.get(silence.host)
            if host is None:
                self._handle_silent_main(silence)
            else:
                self._run.tasks.group.create_task(self._handle_silent(host, silence))

    async def _handle_silent(self, host: HostHandle, silence: Silence) -> None:
        words = f"{_words(silence)}: {await host.describe()}"
        if not self._run.running.current(host) or silence.host in self._run.running.ended:
            return
        if not silence.ends:
            log.warning("%s", words)
            return
        if (part := self._run.parts.of_role(host.plan.role)) is not None:
            part.host_failed(words)
        elif host.may_hang and self.may_replace(host):
            log.warning("%s\nKilling it.", words)
        else:
            self._run.shutdown.fail(HostFailed(f"{words}\nThe host was killed.", "", silence.host))
        host.kill()

    def _handle_silent_main(self, silence: Silence) -> None:
        activity = self._run.stages.most_silent()
        words = f"{_words(silence)}: {describe_holder(None, threading.get_ident())}"
        if not silence.ends:
            log.warning("%s", words)
        elif activity is not None and activity.task is not None:
            self._run.shutdown.fail(HostFailed(f"{words}\nThe stage was cancelled.", "", activity.stage))
            activity.task.cancel()


def _words(silence: Silence) -> str:
    starting = " while starting" if silence.starting else ""
    return f"{silence.host} has been silent for {silence.seconds:.0f} s{starting} ({silence.key})"


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
        plan, tasks, stages and so on: see `headrace.pipeline.main.run_part.Run`.
    """

    checkpointing: Checkpointing
    shutdown: Shutdown
    supervisor: Supervisor
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
            self.statistics,
            writers,
            progress,
            plan.elapsed_before_s,
            training,
            console,
            waits=plan.folder.waits,
            before_summary=lambda: self.checkpointing.check_folder(),
        )
        self.diagnosis = RunDiagnosis(plan.config, self._on_finding, plan.resumes)
        if training:
            self.reporter.add_writer(self.diagnosis)
        self.running = RunningHosts(plan.config, self.tasks.group, lambda host: self._hosts.listen_to(host))
        self.launcher = Launcher(plan, self.running, self.parts.learner_started)
        self.broadcaster = Broadcaster(self.launcher, self.parts.at_rest if plan.deterministic else lambda: None)
        self.flow = FlowControl(plan.config, bool(plan.replay_edge), self.broadcaster.grant)
        self.supervisor = Supervisor(plan.config.env_settings, plan.config.pipeline.supervision)
        folder, receive = plan.folder.path, self._on_message_of_stage
        self.stages = StageHost(MAIN, folder, plan.seed, None, self.statistics, plan.resumed, receive)
        self.starter = BehaviorStarter(self, self._on_trainer_report, self._on_policy)
        self.behaviors = self.starter.behaviors
        self.checkpointing = Checkpointing(self)
        self.shutdown = Shutdown(self)
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
            for end in self.launcher.ends.values():  # failed hosts have left some open, and main's stages must end
                end.close()
            self.reporter.close()
            if error is None:
                await self.tasks.end_runners(self.plan.config.pipeline.supervision.grace_s * SOURCES_SHARE)
            await self.tasks.group.__aexit__(kind, error, trace)
        finally:
            self.running.close_factories()

    async def run(self, stop: asyncio.Event, on_progress: Callable[[ProgressSnapshot], object] | None) -> None:
        """Run until all trainers are done, `stop` is set or something fails; then end all hosts."""
        if self.plan.resumes:
            folder, behaviors = self.plan.folder.path, self.plan.config.behaviors
            await in_thread("read earlier statistics", read_events, folder, behaviors, self.diagnosis.history)
        with self.reporter.progress:
            background = [
                self.tasks.start(self._watch_clock(on_progress)),
                self.tasks.start(self.shutdown.stop_on(stop)),
            ]
            try:
                await self._hosts.start()
                await self.running.wait_all()
            finally:
                for task in background:
                    task.cancel()
        for part in self.parts.all:
            await part.finish()
        if self.shutdown.failure is None:
            self.checkpointing.close()
        self.checkpointing.check_folder()
        if not self.plan.playing and not self.plan.folder.waits:
            self.reporter.finish()
            self.diagnosis.finish()
            self.checkpointing.write_status(final=True)
            self.checkpointing.check_exports()

    def _on_finding(self, finding: Finding) -> None:
        self.reporter.record_finding(finding.behavior, finding.cause, finding.value, finding.step, str(finding))

    # Messages from hosts. --------------------------------------------------------------------------------------------

    async def on_message(self, host: HostHandle, message: control.ControlMessage) -> None:
        """Handle a message from a host."""
        match message:
            case TrainerReport():
                self._on_trainer_report(message)
            case control.CreditRequest():
                self.broadcaster.grant(self.flow.ledger.request(message))
            case control.StatisticsReport():
                self._hosts.alive(host, message)
            case control.PreparationNotice():
                self.supervisor.preparing(host.plan.name, time.monotonic(), message.begins)
            case control.CreditsReturned() | control.PartSaved() | control.PartFailed():
                self._on_message_of_stage(message)
            case control.BehaviorSeen():
                await self.starter.agents_seen(host, BehaviorSpec.from_plain(dict(message.spec)))
                self._go_on()
            case control.LearnerReady():
                self._hosts.learner_ready(host, message)
                for part in self.parts.all:
                    part.learner_ready(message.behavior)
                self._go_on()
            case control.PolicyExported() | control.ExportFailed():
                self.checkpointing.exported(message)
            case control.LogLine():
                # Log a warning about the environment only once, although every actor sends it.
                name = host.plan.name
                shared = message.level == logging.WARNING and message.logger.startswith(OF_ENVIRONMENTS)
                if not shared or self._first_to_warn.setdefault(message.text, name) == name:
                    about = {"host": name, **({"behavior": of} if (of := host.plan.behavior) else {})}
                    logging.getLogger(message.logger).log(message.level, "%s", message.text, extra=about)
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
            and all(state.was_ready or not state.learns for state in states)
        ):
            self.checkpointing.go_on()
            self.reporter.go_on()

    def _on_trainer_report(self, report: TrainerReport) -> None:
        behaviors = self.behaviors
        state = behaviors[report.behavior]
        checkpoint_due = state.receive_report(report)
        if state.settings.stop_when is not None:
            self.shutdown.check_rating(state)
        if self.starter.self_play is not None:
            self.starter.self_play.on_report(report)
        for part in self.parts.all:
            part.reported(report)
        # First, so that in a deterministic run no actor gets credits to continue before the checkpoint.
        learners = [other for other in behaviors.values() if other.learns]
        if all(other.done for other in learners or behaviors.values()):
            self.shutdown.finish()
        elif checkpoint_due and state.learns and not self.checkpointing.busy and not self.shutdown.begun:
            self.checkpointing.begin()
        if state.learns:
            self.flow.trainer_reported(report)
        for part in self.parts.all:
            part.summarised(report)
        self.reporter.record_report(report)

    def _on_policy(self, behavior: str, policy: PolicyUpdate | None) -> None:
        """Handle a policy from a behaviour's trainer, or None after its last policy."""
        if policy is not None:
            self.behaviors[behavior].sent = policy.version
            if self.plan.config.monitor is not None:
                self.starter.newest[behavior] = policy.copy()
        for part in self.parts.all:
            part.policy_came(behavior, policy)

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
            self.checkpointing.check_folder()
            if not self.shutdown.begun:  # then the limits of `shutdown` apply
                if self.checkpointing.busy:
                    self.checkpointing.check_time(now)
                self.shutdown.check_time(now)
            queues = [plain_statistics(end.statistics()) for end in self.launcher.ends.values()]
            self.reporter.add_statistics({}, queues, MAIN)
            self.reporter.shares.add(MAIN, *self.stages.timings.drain())
            self.reporter.show()
            if on_progress is not None and self.shutdown.failure is None:  # the failure may come from `on_progress`
                with self.tasks.failing():
                    on_progress(self.reporter.snapshot())
            self._hosts.check_silence(now)
