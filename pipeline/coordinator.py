"""Main: answers what hosts say, and ends the run in order.

It decides nothing about learning. Its parts each have a module: `launching` starts hosts and `wiring` joins them,
`flow` accounts for credits, `curriculum` decides on lessons, `saving` gathers checkpoints, `reporting` tells people,
`main_path` holds the stages that live in main, `supervision` says who may be started again. What is left here is who
is told what, when.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from config import ConfigError, RunConfig
from pipeline import control
from pipeline.checkpoint import Checkpoint
from pipeline.console import ConsoleWriter
from pipeline.curriculum import Curricula, Reached
from pipeline.edges import LocalEdges
from pipeline.errors import RunError
from pipeline.flow import CreditLedger, CreditRequest, Grant
from pipeline.graph import (
    GHOST,
    actor_names,
    demonstrated,
    expected_parts,
    learner_name,
    route,
    students_of,
    teacher_of,
)
from pipeline.hosts.handle import HostHandle
from pipeline.hosts.runtime import describe_failure, plain_statistics
from pipeline.inference import InferenceStage, played_file, trained_policy
from pipeline.launching import Launcher
from pipeline.lines import Line
from pipeline.main_path import MainPath, drain
from pipeline.main_stages import MainStages
from pipeline.progress import Progress, ProgressSnapshot
from pipeline.reporting import Reporter
from pipeline.roster import Roster
from pipeline.run_folder import RunFolder
from pipeline.saving import Saving
from pipeline.seeds import derive_seed
from pipeline.self_play import SelfPlay
from pipeline.starvation import StarvationWatch
from pipeline.statistics import StatisticsCollector
from pipeline.statistics_writers import make_writers
from pipeline.supervision import Supervisor
from pipeline.tensorboard_writer import TensorboardWriter
from pipeline.timers import GaugeWriter, Timers
from pipeline.training_status import CheckpointEntry
from pipeline.wiring import ActorSlot
from queues.errors import QueueClosed
from queues.messages import Assignment, PolicyUpdate
from queues.specs import BehaviorSpec, behavior_name
from stages.loop import Nowhere, StageRunner
from stages.policy.publisher import PolicyPublisher, PublisherPort
from stages.replay.recording import TRAINER_EDGE, recorded_edge
from stages.trainer.stage import TrainerReport

log = logging.getLogger(__name__)

GRACE_S = 20.0
"""How long hosts may take to drain after the run was told to end; then they are killed."""
EVERY_S = 1.0
"""How often main looks at the clock: progress, heartbeats, overdue checkpoints."""


class Coordinator:
    """One run's main host; an async context manager that leaves no host behind.

    Args:
        config: what to run.
        folder: where it is written.
        seed: the run's seed.
        checkpoint: what it goes on from, None for a fresh run.
        console: whether to log a line per summary.
        progress: the live table.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        seed: int,
        checkpoint: Checkpoint | None,
        console: bool,
        progress: Progress,
    ) -> None:
        self.config = config
        self.lines: dict[str, Line] = {}
        self.failure: control.HostFailed | None = None
        self.interrupted = False
        self.self_play: SelfPlay | None = None
        self._folder = folder
        self._seed = seed
        self._resumed = checkpoint
        self._playing = config.checkpoint_settings.inference
        self._replay_edge = _replay_edge(config)
        self._best: dict[str, float] = dict(checkpoint.progress.get("best", {})) if checkpoint else {}
        self._curricula = Curricula(config.environment_parameters)
        if checkpoint is not None and "curricula" in checkpoint.progress:
            self._curricula.load_state_dict(checkpoint.progress["curricula"])
        self._collector = StatisticsCollector(seed)
        timers = Timers()
        self.reporter = self._make_reporter(timers, console, progress)
        last = checkpoint.number if checkpoint is not None else -1
        self.saving = Saving(folder, last, self.lines, timers, self._progress, self._lessons, self._checkpoint_ended)
        self._stages = MainStages(folder.path, seed, checkpoint, self._collector, self._hear_credits, self.saving.take)
        self._ledger = CreditLedger(at_rest=config.pipeline.deterministic)
        self._publisher = PolicyPublisher(PublisherPort(self._send_policy, self._send_assignment))
        self._supervisor = Supervisor(config.env_settings)
        self._starvation = StarvationWatch()
        self._returned: dict[tuple[str, str, int], int] = {}
        self._finishing = False
        self._tasks: asyncio.TaskGroup
        self._roster: Roster
        self._launcher: Launcher
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Coordinator:
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        local = LocalEdges()
        self._roster = Roster(local, self._tasks)
        self._launcher = Launcher(
            self.config,
            self._folder.path,
            self._seed,
            self._resumed,
            self._replay_edge,
            self._roster,
            local,
            self._start_minding,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._roster.close()
        self._launcher.close_ends()
        self.reporter.close()
        await self._stack.__aexit__(kind, error, trace)

    async def run(self, stop: asyncio.Event, on_progress: Callable[[ProgressSnapshot], None] | None) -> None:
        """Run until all trainers are done, `stop` is set or something fails; then end all hosts."""
        with self.reporter.showing():
            background = [
                self._tasks.create_task(self._watch_clock(on_progress)),
                self._tasks.create_task(self._watch_stop(stop)),
            ]
            try:
                await self._start()
                await self._roster.wait_all()
            finally:
                for task in background:
                    task.cancel()
        if self.failure is None:
            self.saving.close()
        if not self._playing:
            self.saving.write_status(final=True)

    def _make_reporter(self, timers: Timers, console: bool, progress: Progress) -> Reporter:
        resumed, path = self._resumed, self._folder.path
        writers: list[Any] = []
        if not self._playing:
            tensorboard = TensorboardWriter(path, resumed is not None)
            writers += [tensorboard, GaugeWriter(timers), *make_writers(self.config, path)]
        before_s = float(resumed.progress.get("elapsed_s", 0.0)) if resumed is not None and not self._playing else 0.0
        reporter = Reporter(self._collector, writers, progress, before_s, not self._playing)
        if console:
            writers.append(ConsoleWriter(reporter.elapsed))
        return reporter

    # Starting. -----------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        for text in self._curricula.describe():
            log.info("%s", text)
        try:
            for replica, name in enumerate(actor_names(self.config)):
                await self._start_actor(replica, name)
        except Exception as error:
            self._fail(describe_failure("main", error))

    async def _start_actor(self, replica: int, name: str, old: ActorSlot | None = None) -> None:
        slot = await self._launcher.start_actor(replica, name, old)
        self._ledger.add_source(slot.source)
        if self._curricula:  # it waits for them before it builds its environments
            slot.handle.control.send(self._curricula.state())
        if old is not None:
            self.saving.begin_again(slot.handle)
        if self._finishing:  # it was told to stop before it was there to hear it
            slot.handle.control.send(control.Stop())

    def _start_minding(self, host: HostHandle) -> None:
        self._supervisor.started(host.plan.name, time.monotonic())
        self._tasks.create_task(self._mind(host), name=f"minding {host.plan.name}")

    async def _add_line(self, spec: BehaviorSpec) -> None:
        """A behaviour name is new: start its trainer and open its way."""
        name, settings = spec.name, self.config.behavior_settings(spec.name)
        way = route(self.config, name)
        if self._replay_edge == TRAINER_EDGE:
            way = way.straight()
        if way.self_play and self.self_play is None:
            seed = derive_seed(self._seed, GHOST)
            self.self_play = SelfPlay(self.config, self._stages, self._publisher, seed)
        path = MainPath(way, self.config, self._stages, self._publisher, self.self_play if way.self_play else None)
        line = self.lines[name] = Line(name, spec, settings, path)
        step = self._resumed.steps.get(name, 0) if self._resumed is not None and not self._playing else 0
        line.start_at(step)
        if step:
            # The status is written after the manifest: a run that was killed in between has none of this behaviour.
            status = self._folder.read_training_status().behaviors.get(name)
            entries = status.checkpoints if status is not None else ()
            line.exports = [entry.within(self._folder.path) for entry in entries]
            log.info("Resuming from %s.", self._resumed.folder if self._resumed is not None else self._folder.path)
            log.info("Resuming training from step %d.", step)
        elif not self._playing:
            log.info("Starting training from step 0 and saving to %s.", self._folder.behavior(name))
        self.reporter.add_behavior(
            name, settings.max_steps, settings.summary_freq, step, settings.model_dump(mode="json")
        )
        if self._playing:
            await self._start_playing(line)
        elif teacher_of(self.config, name) is not None:
            self._run_all(await self._launcher.start_student(line))
        else:
            for student in students_of(self.config, name):
                if student not in self.lines:
                    await self._add_line(replace(spec, behavior_id=student))
                path.students.append(self._launcher.feed_of(student))
            self._run_all(await self._launcher.start_learner(line, way.through_main))

    async def _drain_student(self, line: Line, spec: BehaviorSpec) -> None:
        """A behaviour that imitates another one may have agents of its own, from whose steps nobody learns."""
        name = line.behavior
        teacher = teacher_of(self.config, name)
        if teacher is None or self._playing or f"trajectories/{name}" in self._launcher.ends:
            return
        if (spec.observations, spec.actions) != (line.spec.observations, line.spec.actions):
            raise RunError(
                f"{name} can't imitate {teacher}: {teacher} has {line.spec.observations} and {line.spec.actions}, "
                f"{name} has {spec.observations} and {spec.actions}"
            )
        self._run_all([drain(await self._launcher.gather(name))])

    async def _start_playing(self, line: Line) -> None:
        """In a trainer's place: its newest policy, and somebody who counts what is played with it."""
        path = played_file(self.config, self._folder.path, line.behavior)
        policy = trained_policy(path, line.behavior)
        log.info("%s is played by %s.", line.behavior, path)
        stage = InferenceStage(line.behavior, self._hear_play)
        nowhere: Any = Nowhere()
        inlet = await self._launcher.gather(line.behavior)
        context = self._stages.context(f"inference-{line.behavior}")
        self._run_all([StageRunner(stage, inlet, nowhere, context).run(), self._publish_later(policy)])
        self._ledger.open_freely(line.behavior)

    def _hear_play(self, report: TrainerReport) -> None:
        self.lines[report.behavior].take(report)
        self.reporter.take_report(report)

    async def _publish_later(self, policy: PolicyUpdate) -> None:
        for _ in self._publisher.process(policy):
            pass

    def _run_all(self, runners: list[Coroutine[Any, Any, None]]) -> None:
        for runner in runners:
            self._tasks.create_task(self._guard(runner))

    async def _guard(self, runner: Coroutine[Any, Any, None]) -> None:
        try:
            await runner
        except Exception as error:
            self._fail(describe_failure("main", error))

    # What hosts say. -----------------------------------------------------------------------------------------------

    async def _mind(self, host: HostHandle) -> None:
        """Listen to a host until its end, and see to what its end means."""
        said_goodbye = False
        try:
            async for message in host.control.receive():
                if host.links is not None and host.plan.role != "actor":
                    host.links.handed_over()
                said_goodbye |= isinstance(message, control.HostFinished | control.HostFailed)
                try:
                    await self._hear(host, message)
                except Exception as error:  # minding goes on: this host's end has still to be seen
                    self._fail(describe_failure("main", error))
            status = await host.wait()
            if self._roster.current(host):
                await self._host_ended(host, status, said_goodbye)
        except Exception as error:
            self._fail(describe_failure("main", error))

    async def _hear(self, host: HostHandle, message: control.ControlMessage) -> None:
        match message:
            case TrainerReport():
                self._hear_trainer(message)
            case CreditRequest():
                self._grant(self._ledger.request(message))
            case control.CreditsReturned():
                self._hear_credits(message)
            case control.StatisticsReport():
                self._supervisor.heard(host.plan.name, time.monotonic())
                self.reporter.take_statistics(message.statistics, message.queues, host.plan.name)
            case control.PartSaved() | control.PartFailed():
                self.saving.take(message)
            case control.BehaviorSeen():
                await self._hear_behavior(host, BehaviorSpec.from_plain(dict(message.spec)))
            case control.LearnerReady():
                self._hear_learner(message)
            case control.Exported():
                self._hear_export(message)
            case control.Evaluated():
                self._hear_evaluation(message)
            case control.LogLine():
                logging.getLogger(message.logger).log(message.level, "%s", message.text)
            case control.SourceEnded():
                self._finish()
            case control.HostFailed():
                self._fail(message)

    async def _hear_behavior(self, host: HostHandle, spec: BehaviorSpec) -> None:
        slot = self._launcher.slot_of(host)
        if slot is None or self._finishing:
            return
        log.info("Connected new brain: %s", spec.behavior_id)
        self._publisher.add_behavior(spec.behavior_id)
        if spec.name not in self.lines:
            try:
                await self._add_line(spec)
            except (ConfigError, RunError) as error:
                self._fail(describe_failure("main", error))
                return
        line = self.lines[spec.name]
        line.path.add_behavior(spec.behavior_id)
        await self._drain_student(line, spec)
        if not self._replay_edge:  # a recording acts by nobody's policy
            await self._launcher.open_policies(slot, spec.behavior_id)
            self._catch_up(slot, spec.behavior_id)
        if self.config.evaluation is not None:
            evaluation = await self._launcher.join_evaluation(spec.behavior_id)
            if evaluation is not None:
                self._catch_up(evaluation, spec.behavior_id)

    def _catch_up(self, slot: ActorSlot, behavior_id: str) -> None:
        """An actor that comes later needs what the others were sent before."""
        for update in self._publisher.newest_for(behavior_id):
            slot.policies[behavior_id].put_nowait(update)
        if self._publisher.assignment is not None:
            slot.handle.control.send(self._publisher.assignment)

    def _hear_learner(self, message: control.LearnerReady) -> None:
        self._starvation.add_trainer(message.behavior, message.rows_per_update)
        imitates = teacher_of(self.config, message.behavior) is not None
        if message.bounds_lag and not self._replay_edge and not imitates:
            lag = self.config.pipeline.max_policy_lag
            self._ledger.open_window(message.behavior, message.rows_per_update, lag, message.held_rows)
        else:
            self._ledger.open_freely(message.behavior)
        self._grant(self._ledger.resume())

    def _hear_trainer(self, report: TrainerReport) -> None:
        line = self.lines[report.behavior]
        checkpoint_due = line.take(report)
        line.path.hear(report)
        self._curricula.take(report)
        if not self.config.pipeline.deterministic:
            self._weigh_lessons()
        self._starvation.fed(report.behavior, report.step, report.done)
        # First, so that in a deterministic run nobody is given credits for going on before the checkpoint.
        if all(other.done for other in self.lines.values()):
            self._finish()
        elif checkpoint_due and not self.saving.busy and not self._finishing:
            self._begin_checkpoint()
        grants = self._ledger.learned(report.behavior, report.version, report.held)
        for source, total in report.returned.items():
            grants += self._ledger.returned("trainer", report.behavior, source, total)
        self._grant(grants)
        for parameter, lesson in self._lessons().items():
            self._collector.add(report.behavior, f"Environment/Lesson Number/{parameter}", float(lesson), "last")
        self.reporter.take_report(report)

    def _hear_credits(self, message: control.CreditsReturned) -> None:
        key = (message.by, message.behavior, message.source)
        self._starvation.kept_back(message.by, message.behavior, message.total - self._returned.get(key, 0))
        self._returned[key] = message.total
        self._grant(self._ledger.returned(*key, message.total))

    def _hear_export(self, message: control.Exported) -> None:
        file, beside = (message.file, ()) if message.onnx is None else (message.onnx, (message.file,))
        entry = CheckpointEntry(message.step, file, message.reward, time.time(), beside).within(self._folder.path)
        line = self.lines[message.behavior]
        # Whose turn it is not is exported again with every checkpoint, at the same step.
        others = [e for e in line.exports if e.file_path != entry.file_path and Path(e.file_path).exists()]
        line.exports = [*others, entry]
        log.info("Exported %s", entry.file_path)

    def _hear_evaluation(self, message: control.Evaluated) -> None:
        log.info(
            "%s. Step: %d. Evaluation: %.3f ± %.3f over %d episodes%s.",
            message.behavior,
            message.step,
            message.mean,
            message.deviation,
            message.episodes,
            ", the best so far" if message.best else "",
        )
        if message.best:
            self._best[message.behavior] = message.mean
        self._collector.add(behavior_name(message.behavior), "Evaluation/Cumulative Reward", message.mean, "last")

    def _grant(self, grants: list[Grant]) -> None:
        if grants and self.config.pipeline.deterministic:
            self._weigh_lessons()  # all stand still: what is known now does not depend on who was how quick
        for grant in grants:
            for slot in self._launcher.actors.values():
                if slot.source == grant.source:
                    slot.handle.control.send(grant)

    # Lessons. ------------------------------------------------------------------------------------------------------

    def _lessons(self) -> Mapping[str, int]:
        return self._curricula.lessons

    def _weigh_lessons(self) -> None:
        """Let the lessons begin that have become due; a recording does not change with them."""
        told = None if self._playing or self._replay_edge else self._curricula.weigh(self._reached)
        if told is not None:
            for host in self._source_hosts():
                host.control.send(told)

    def _reached(self, behavior: str) -> Reached | None:
        line = self.lines.get(behavior)
        return Reached(line.step, line.settings.max_steps, line.elo) if line is not None else None

    # Policies. -----------------------------------------------------------------------------------------------------

    def _send_policy(self, update: PolicyUpdate) -> None:
        for slot in (*self._launcher.actors.values(), self._launcher.evaluation):
            outlet = slot.policies.get(update.behavior_id) if slot is not None else None
            if outlet is not None:
                with suppress(QueueClosed):  # the actor has ended
                    outlet.put_nowait(update)

    def _send_assignment(self, assignment: Assignment) -> None:
        for host in self._source_hosts():
            host.control.send(assignment)

    # Checkpoints. --------------------------------------------------------------------------------------------------

    def _begin_checkpoint(self, then_stop: bool = False) -> None:
        if self.config.pipeline.deterministic:
            self._ledger.pause()  # until it has ended, nobody steps: who resumes from it starts at the same point
        if self.self_play is not None:
            self.self_play.begin_checkpoint()
        self.saving.begin(self._source_hosts(), self._expected_parts(), then_stop)

    def _checkpoint_ended(self, problem: str | None) -> None:
        if problem is not None and self._finishing and self.failure is None:
            # What the run has reached since the checkpoint before is nowhere else.
            text = f"the run's last checkpoint could not be written: {problem}"
            self.failure = control.HostFailed(text, "", "main")
        self._grant(self._ledger.resume())

    def _expected_parts(self) -> set[str]:
        return expected_parts(self.config, self.lines, trainers_only=self._replay_edge == TRAINER_EDGE)

    def _source_hosts(self) -> list[HostHandle]:
        return [slot.handle for slot in self._launcher.actors.values()]

    def _progress(self) -> dict[str, Any]:
        if self.config.pipeline.deterministic:
            self._weigh_lessons()  # before those who resume from here would
        return {
            "elapsed_s": self.reporter.elapsed_s,
            "seed": self._seed,
            "best": self._best,
            "curricula": self._curricula.state_dict(),
        }

    # Ending. -------------------------------------------------------------------------------------------------------

    async def _watch_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.interrupted = not self._finishing
        log.info("Stopped." if self._playing else "Learning was interrupted. Please wait while a checkpoint is saved.")
        self._finish()

    def _finish(self) -> None:
        """End the run in order: sources make a last checkpoint and stop, all else drains."""
        if self._finishing:
            return
        self._finishing = True
        if not self.lines:
            self._roster.kill_all()
            return
        if self._playing:
            for host in self._source_hosts():
                host.control.send(control.Stop())
        else:
            self._begin_checkpoint(then_stop=True)
            self._release_learners()
        self._tasks.create_task(self._roster.kill_after(GRACE_S))

    def _fail(self, failure: control.HostFailed) -> None:
        """Something failed: save what can be saved, and end."""
        if self.failure is not None:
            log.debug("a further failure: %s", failure.message)
            return
        self.failure = failure
        log.error("%s", failure.message)
        log.debug("%s", failure.traceback)
        self._finishing = True
        self._save_trainers(failure.stage)
        for host in self._source_hosts():
            host.control.send(control.Stop(failure.message))
        self._release_learners()
        self._tasks.create_task(self._roster.kill_after(GRACE_S / 4))

    def _release_learners(self) -> None:
        """Let learners end with their inlets: nothing more will be asked of them."""
        for line in self.lines.values():
            if line.learner is not None:
                line.learner.control.send(control.Stop())

    def _save_trainers(self, failed_stage: str) -> None:
        """The stream has broken off, so no barrier will reach the trainers: let them save where they stand."""
        learners = [learner_name(line.behavior) for line in self.lines.values() if line.learner is not None]
        dead = [name for name in learners if self._roster.has_ended(name) or name == failed_stage]
        if failed_stage == "trainer" or dead or not learners:
            return  # the checkpoint before is the last one in which trainers are known to be sound
        expected = {name for name in self._expected_parts() if not name.rpartition("@")[2].startswith("actor")}
        self.saving.save_now(expected, self._stages.save_part)

    async def _host_ended(self, host: HostHandle, status: int, said_goodbye: bool) -> None:
        if status != 0 and not said_goodbye and not self._finishing and await self._replace(host, status):
            return
        self._roster.mark_ended(host.plan.name)
        if self._finishing and all(self._roster.has_ended(learner_name(name)) for name in self.lines):
            self._launcher.end_evaluation()

    async def _replace(self, host: HostHandle, status: int) -> bool:
        """A host has died. Start an actor again, if it may be; any other host's death ends the run."""
        name = host.plan.name
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        slot = self._launcher.slot_of(host)
        if slot is None:
            self._fail(control.HostFailed(f"the process of {name} {how}.", "", name))
            return False
        refusal = self._supervisor.refusal(name, time.monotonic())
        if refusal is not None:
            text = f"the process of {name} {how}. It is not restarted again: {refusal}."
            self._fail(control.HostFailed(text, "", name))
            return False
        log.warning("The process of %s %s. Starting it again; its half-made trajectories are lost.", name, how)
        self._grant(self._ledger.remove_source(slot.source))
        await self._start_actor(slot.replica, name, slot)
        return True

    # The clock. ----------------------------------------------------------------------------------------------------

    async def _watch_clock(self, on_progress: Callable[[ProgressSnapshot], None] | None) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            now = time.monotonic()
            self.saving.check_time(now)
            queues = [plain_statistics(end.statistics()) for end in self._launcher.ends.values()]
            self.reporter.take_statistics({}, queues, "main")
            self.reporter.show()
            if on_progress is not None:
                on_progress(self.reporter.snapshot())
            for name in self._supervisor.silent(now):
                host = self._roster.get(name)
                if host is not None and host.links is not None and name.startswith("actor"):
                    log.warning(
                        "%s has not been heard of for %.0f s (env_settings.timeout_wait): killing it.",
                        name,
                        self.config.env_settings.timeout_wait,
                    )
                    host.kill()


def _replay_edge(config: RunConfig) -> str:
    """Where what stands in the actors' place was recorded; empty if they act. Demonstrations go to trainers as such."""
    if config.replay is not None:
        return recorded_edge(config.replay.streams)
    return TRAINER_EDGE if demonstrated(config) else ""
