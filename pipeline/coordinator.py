"""Main: starts the hosts, answers what they say, keeps the books, and ends the run in order.

It decides nothing about learning. Its parts each have a module: `wiring` joins hosts, `flow` accounts for credits,
`checkpointer` gathers checkpoints, `reporting` tells people, `main_path` holds the stages that live in main, and
`supervision` replaces actors that die. What is left here is who is told what, when.
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
from pipeline.checkpoint import Checkpoint, write_part
from pipeline.checkpoint import folder_of as checkpoint_folder
from pipeline.checkpointer import Checkpointer
from pipeline.console import ConsoleWriter
from pipeline.edges import LocalEdges
from pipeline.errors import RunError
from pipeline.flow import CreditLedger, CreditRequest, Grant
from pipeline.graph import actor_names, expected_parts, learner_name, part_name, route
from pipeline.hosts.handle import HostHandle, InlineHost
from pipeline.hosts.plan import HostPlan
from pipeline.hosts.process import start_process
from pipeline.hosts.runtime import describe_failure, plain_statistics
from pipeline.inference import InferenceStage, trained_policy
from pipeline.lines import Line
from pipeline.main_path import MainPath
from pipeline.progress import Progress, ProgressSnapshot
from pipeline.reporting import Reporter
from pipeline.run_folder import RunFolder
from pipeline.seeds import derive_seed
from pipeline.starvation import StarvationWatch
from pipeline.statistics import StatisticsCollector
from pipeline.statistics_writers import make_writers
from pipeline.supervision import Supervisor
from pipeline.tensorboard_writer import TensorboardWriter
from pipeline.timers import GaugeWriter, Timers
from pipeline.training_status import BehaviorStatus, CheckpointEntry, TrainingStatus
from pipeline.wiring import ActorSlot, Wiring
from queues.ends import Inlet, Outlet
from queues.errors import QueueClosed
from queues.messages import Assignment, PolicyUpdate
from queues.specs import BehaviorSpec, behavior_name
from stages.loop import Nowhere, StageHooks, StageRunner
from stages.policy.publisher import PolicyPublisher, PublisherPort
from stages.replay.recording import TRAINER_EDGE, recorded_edge
from stages.stage import StageContext
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
        self.checkpoints = Checkpointer(folder.checkpoints, checkpoint.number if checkpoint else -1)
        self._folder = folder
        self._seed = seed
        self._resumed = checkpoint
        self._timers = Timers()
        before_s = float(checkpoint.progress.get("elapsed_s", 0.0)) if checkpoint else 0.0
        self._playing = config.checkpoint_settings.inference
        writers: list[Any] = []
        if not self._playing:
            own = make_writers(config, folder.path)
            writers += [
                TensorboardWriter(folder.path, checkpoint is not None),
                GaugeWriter(self._timers),
                *own,
            ]
        self._collector = StatisticsCollector(seed)
        self.reporter = Reporter(self._collector, writers, progress, before_s, not self._playing)
        if console:
            writers.append(ConsoleWriter(self.reporter.elapsed))
        self._ledger = CreditLedger()
        self._local = LocalEdges()
        self._wiring = Wiring(config, self._local)
        self._publisher = PolicyPublisher(PublisherPort(self._send_policy, self._send_assignment))
        self._slots: dict[int, ActorSlot] = {}
        self._evaluation: ActorSlot | None = None
        self._supervisor = Supervisor(config.env_settings)
        self._starvation = StarvationWatch()
        self._hosts: dict[str, HostHandle] = {}
        self._ended: set[str] = set()
        self._sources = 0
        self._ends: dict[str, Inlet[Any] | Outlet[Any]] = {}
        self._returned: dict[tuple[str, str, int], int] = {}
        self._replay_edge = recorded_edge(config.replay.streams) if config.replay is not None else ""
        self._best: dict[str, float] = dict(checkpoint.progress.get("best", {})) if checkpoint else {}
        self._finishing = False
        self._all_ended = asyncio.Event()
        self._tasks: asyncio.TaskGroup
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Coordinator:
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self._hosts.values():
            host.kill()
        for host in self._hosts.values():
            host.control.close()
            if host.links is not None:
                host.links.close()
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
                await self._all_ended.wait()
            finally:
                for task in background:
                    task.cancel()
        if self.failure is None and not self._playing:
            self._write_status(final=True)

    # Starting. -----------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        try:
            for replica, name in enumerate(actor_names(self.config)):
                await self._start_actor(replica, name)
        except Exception as error:
            self._fail(describe_failure("main", error))

    async def _start_actor(self, replica: int, name: str, old: ActorSlot | None = None) -> None:
        source, self._sources = self._sources, self._sources + 1
        role = "replay" if self._replay_edge else "actor"
        plan = replace(self._plan(role, name), replica=replica, source=source, replay_edge=self._replay_edge)
        links = None
        if self.config.pipeline.hosts.actors.kind == "process":
            links = self._wiring.actor_links(old.handle.links if old is not None else None)
        host = await self._start_host(plan, links)
        slot = ActorSlot(replica, host, source)
        if old is not None:
            slot.trajectory_tickets = old.trajectory_tickets
        self._slots[replica] = slot
        self._ledger.add_source(source)
        for behavior in slot.trajectory_tickets:
            self._wiring.tell_trajectories(behavior, slot)

    async def _start_host(self, plan: HostPlan, links: Any) -> HostHandle:
        host: HostHandle
        if links is None:
            host = InlineHost(plan, self._local, self._tasks)
        else:
            host = await start_process(plan, links)
        self._hosts[plan.name] = host
        self._ended.discard(plan.name)
        self._supervisor.started(plan.name, time.monotonic())
        self._tasks.create_task(self._mind(host), name=f"minding {plan.name}")
        return host

    def _plan(self, role: Any, name: str) -> HostPlan:
        return HostPlan(
            role=role,
            name=name,
            config=self.config.to_plain(),
            config_path=str(self.config.path) if self.config.path is not None else None,
            run_folder=str(self._folder.path.resolve()),
            run_id=self._folder.run_id,
            seed=self._seed,
            resume=self._resumed is not None and not self._playing,
            resumed_at=self._resumed.number if self._resumed is not None else -1,
        )

    async def _add_line(self, spec: BehaviorSpec) -> None:
        """A behaviour name is new: start its trainer and open its way."""
        settings = self.config.behavior_settings(spec.name)
        way = route(self.config, spec.name)
        if self._replay_edge == TRAINER_EDGE:
            way = way.straight()
        path = MainPath(
            way,
            self.config,
            self._context,
            self._hooks,
            self._saved_state,
            self._publisher,
            derive_seed(self._seed, "ghost", spec.name),
        )
        line = self.lines[spec.name] = Line(spec.name, spec, settings, path)
        step = self._resumed.steps.get(spec.name, 0) if self._resumed is not None else 0
        line.start_at(step)
        self.reporter.add_behavior(
            spec.name, settings.max_steps, settings.summary_freq, step, settings.model_dump(mode="json")
        )
        if self._playing:
            await self._start_playing(line)
        else:
            await self._start_learner(line, way.through_main)

    async def _start_learner(self, line: Line, through_main: bool) -> None:
        name, behavior = learner_name(line.behavior), line.behavior
        slots = list(self._slots.values())
        plan = replace(self._plan("learner", name), behavior=behavior, spec=line.spec.to_plain())
        links = self._wiring.learner_links() if self.config.pipeline.hosts.learners.kind == "process" else None
        address = None
        if not through_main:
            address = await self._wiring.connect_actors(behavior, slots, links)
        line.learner = host = await self._start_host(plan, links)
        updates = self._ends[f"updates/{behavior}"] = await self._wiring.updates(behavior, host)
        self._run_all(line.path.policies(updates))
        if address is not None:
            host.control.send(control.OpenEdge(f"trajectories/{behavior}", address))
        else:
            inlet = self._ends[f"trajectories/{behavior}"] = await self._wiring.gather(behavior, slots)
            outlet = self._ends[f"learn/{behavior}"] = await self._wiring.feed(behavior, host)
            self._run_all(line.path.trajectories(inlet, outlet))
        for slot in slots:
            self._wiring.tell_trajectories(behavior, slot)

    async def _start_playing(self, line: Line) -> None:
        """In a trainer's place: its newest policy, and somebody who counts what is played with it."""
        name, slots = line.behavior, list(self._slots.values())
        policy = trained_policy(self._folder.path, name)
        inlet = self._ends[f"trajectories/{name}"] = await self._wiring.gather(name, slots)
        stage = InferenceStage(name, self.reporter.take_report)
        nowhere: Any = Nowhere()
        self._run_all([StageRunner(stage, inlet, nowhere, self._context(f"inference-{name}")).run()])
        for slot in slots:
            self._wiring.tell_trajectories(name, slot)
        self._ledger.open_freely(name)
        self._run_all([self._publish_later(policy)])

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
        name = host.plan.name
        said_goodbye = False
        try:
            async for message in host.control.receive():
                if host.links is not None and host.plan.role != "actor":
                    host.links.handed_over()
                said_goodbye |= isinstance(message, control.HostFinished | control.HostFailed)
                await self._hear(host, message)
            status = await host.wait()
            if self._hosts.get(name) is host:
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
            case control.PartSaved():
                self._part_saved(message)
            case control.PartFailed():
                self._part_failed(message)
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
        slot = next((s for s in self._slots.values() if s.handle is host), None)
        if slot is None or self._finishing:
            return
        log.info("Connected new behavior: %s", spec.behavior_id)
        self._publisher.add_behavior(spec.behavior_id)
        if spec.name not in self.lines:
            try:
                await self._add_line(spec)
            except (ConfigError, RunError) as error:
                self._fail(describe_failure("main", error))
                return
        self.lines[spec.name].path.add_behavior(spec.behavior_id)
        if not self._replay_edge:  # a recording acts by nobody's policy
            outlet = await self._wiring.policies(spec.behavior_id, host)
            slot.policies[spec.behavior_id] = self._ends[f"policies/{spec.behavior_id} {host.plan.name}"] = outlet
            self._catch_up(slot, spec.behavior_id)
        if self.config.evaluation is not None:
            await self._join_evaluation(spec)

    def _catch_up(self, slot: ActorSlot, behavior_id: str) -> None:
        """An actor that comes later needs what the others were sent before."""
        for update in self._publisher.newest_for(behavior_id):
            slot.policies[behavior_id].put_nowait(update)
        if self._publisher.assignment is not None:
            slot.handle.control.send(self._publisher.assignment)

    def _hear_learner(self, message: control.LearnerReady) -> None:
        self._starvation.add_trainer(message.behavior, message.rows_per_update)
        if message.bounds_lag and not self._replay_edge:
            lag = self.config.pipeline.max_policy_lag
            self._ledger.open_window(message.behavior, message.rows_per_update, lag, message.held_rows)
        else:
            self._ledger.open_freely(message.behavior)
        self._grant(self._ledger.resume())

    def _hear_trainer(self, report: TrainerReport) -> None:
        line = self.lines[report.behavior]
        checkpoint_due = line.take(report)
        self._starvation.fed(report.behavior, report.step, report.done)
        self._ledger.learned(report.behavior, report.version)
        grants: list[Grant] = []
        for source, total in report.returned.items():
            grants += self._ledger.returned("trainer", report.behavior, source, total)
        self._grant(grants)
        self.reporter.take_report(report)
        if all(other.done for other in self.lines.values()):
            self._finish()
        elif checkpoint_due and not self.checkpoints.busy and not self._finishing:
            self._begin_checkpoint()

    def _hear_credits(self, message: control.CreditsReturned) -> None:
        key = (message.by, message.behavior, message.source)
        self._starvation.kept_back(message.by, message.behavior, message.total - self._returned.get(key, 0))
        self._returned[key] = message.total
        self._grant(self._ledger.returned(*key, message.total))

    def _hear_export(self, message: control.Exported) -> None:
        entry = CheckpointEntry(message.step, message.file, message.reward, time.time())
        line = self.lines[message.behavior]
        line.exports = [e for e in [*line.exports, entry] if Path(e.file_path).exists()]
        log.info("Exported %s", message.file)

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
        for grant in grants:
            for slot in self._slots.values():
                if slot.source == grant.source:
                    slot.handle.control.send(grant)

    # Policies. -----------------------------------------------------------------------------------------------------

    def _send_policy(self, update: PolicyUpdate) -> None:
        slots = [*self._slots.values(), *([self._evaluation] if self._evaluation is not None else [])]
        for slot in slots:
            outlet = slot.policies.get(update.behavior_id)
            if outlet is not None:
                _put_newest(outlet, update)

    def _send_assignment(self, assignment: Assignment) -> None:
        for slot in self._slots.values():
            slot.handle.control.send(assignment)

    async def _join_evaluation(self, spec: BehaviorSpec) -> None:
        if self._evaluation is None:
            inline = self.config.pipeline.hosts.actors.kind == "inline"
            links = None if inline else self._wiring.evaluation_links()
            host = await self._start_host(self._plan("evaluation", "evaluation"), links)
            self._evaluation = ActorSlot(0, host, -1)
        if spec.behavior_id not in self._evaluation.policies:
            outlet = await self._wiring.policies(spec.behavior_id, self._evaluation.handle)
            self._evaluation.policies[spec.behavior_id] = outlet
            self._catch_up(self._evaluation, spec.behavior_id)

    # Checkpoints. --------------------------------------------------------------------------------------------------

    def _begin_checkpoint(self, then_stop: bool = False) -> int:
        if self.config.pipeline.deterministic:
            self._ledger.pause()  # until it has ended, nobody steps: who resumes from it starts at the same point
        number = self.checkpoints.begin(self._expected_parts(), time.monotonic())
        folder = str(checkpoint_folder(self._folder.checkpoints, number))
        for host in self._source_hosts():
            host.control.send(control.BeginCheckpoint(number, folder))
            if then_stop:
                host.control.send(control.Stop())
        return number

    def _expected_parts(self) -> set[str]:
        return expected_parts(self.config, self.lines, trainers_only=self._replay_edge == TRAINER_EDGE)

    def _source_hosts(self) -> list[HostHandle]:
        return [slot.handle for slot in self._slots.values()]

    def _part_saved(self, part: control.PartSaved) -> None:
        if self.checkpoints.add(part):
            self._commit(part.number)

    def _part_failed(self, part: control.PartFailed) -> None:
        if self.checkpoints.give_up(part.number):
            self._checkpoint_failed(part.number, f"{part.name}: {part.reason}")

    def _checkpoint_failed(self, number: int, reason: str) -> None:
        log.error("Checkpoint %d could not be written, the one before it stays: %s", number, reason)
        if self._finishing and self.failure is None:  # what the run has reached since is nowhere else
            text = f"the run's last checkpoint could not be written: {reason}"
            self.failure = control.HostFailed(text, "", "main")
        self._grant(self._ledger.resume())

    def _commit(self, number: int) -> None:
        steps = {name: line.step for name, line in self.lines.items()}
        progress = {"elapsed_s": self.reporter.elapsed_s, "seed": self._seed, "best": self._best}
        try:
            self.checkpoints.commit(steps, progress)
        except OSError as error:
            self._checkpoint_failed(number, str(error))
            return
        for line in self.lines.values():
            line.saved()
        log.debug("checkpoint %d is whole", number)
        self._write_status(final=False)
        self._grant(self._ledger.resume())

    def _write_status(self, final: bool) -> None:
        behaviors = {
            name: BehaviorStatus(tuple(line.exports), line.exports[-1] if final and line.exports else None, line.elo)
            for name, line in self.lines.items()
        }
        try:
            self._folder.write_training_status(TrainingStatus(behaviors))
            self._timers.write(self._folder.timers)
        except OSError as error:
            log.error("the run's status could not be written: %s", error)

    # Main's own stages. --------------------------------------------------------------------------------------------

    def _context(self, stage: str) -> StageContext:
        return StageContext(
            name=stage,
            seed=derive_seed(self._seed, stage),
            run_folder=self._folder.path,
            statistics=self._collector,
            log=logging.getLogger(f"stages.{stage}"),
        )

    def _hooks(self, stage: str) -> StageHooks:
        def return_credits(behavior: str, source: int, amount: int) -> None:
            by = part_name(stage, "main")
            total = self._returned.get((by, behavior, source), 0) + amount
            self._hear_credits(control.CreditsReturned(by, behavior, source, total))

        return StageHooks(return_credits, self._save_part)

    def _save_part(self, stage: str, number: int, state: Mapping[str, Any] | None) -> None:
        folder = checkpoint_folder(self._folder.checkpoints, number)
        name = part_name(stage, "main")
        try:
            self._part_saved(write_part(folder, number, name, state))
        except OSError as error:
            self._part_failed(control.PartFailed(number, name, str(error)))

    def _saved_state(self, stage: str) -> Mapping[str, Any] | None:
        if self._resumed is None:
            return None
        state: Mapping[str, Any] | None = self._resumed.read(part_name(stage, "main"))
        return state

    # Ending. -------------------------------------------------------------------------------------------------------

    async def _watch_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.interrupted = not self._finishing
        log.info("Stopped." if self._playing else "Training was interrupted. Saving a checkpoint; please wait.")
        self._finish()

    def _finish(self) -> None:
        """End the run in order: sources make a last checkpoint and stop, all else drains."""
        if self._finishing:
            return
        self._finishing = True
        if not self.lines:
            self._kill_all()
            return
        if self._playing:
            for host in self._source_hosts():
                host.control.send(control.Stop())
        else:
            self._begin_checkpoint(then_stop=True)
            self._release_learners()
        self._tasks.create_task(self._kill_after(GRACE_S))

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
        self._tasks.create_task(self._kill_after(GRACE_S / 4))

    def _release_learners(self) -> None:
        """Let learners end with their inlets: nothing more will be asked of them."""
        for line in self.lines.values():
            if line.learner is not None:
                line.learner.control.send(control.Stop())

    def _save_trainers(self, failed_stage: str) -> None:
        """The stream has broken off, so no barrier will reach the trainers: let them save where they stand."""
        healthy = [line for line in self.lines.values() if line.learner is not None]
        ended = self._ended | {failed_stage}
        if failed_stage == "trainer" or any(learner_name(line.behavior) in ended for line in healthy) or not healthy:
            return  # the checkpoint before is the last one in which trainers are known to be sound
        expected = {name for name in self._expected_parts() if not name.rpartition("@")[2].startswith("actor")}
        number = self.checkpoints.begin(expected, time.monotonic())
        folder = str(checkpoint_folder(self._folder.checkpoints, number))
        for line in healthy:
            assert line.learner is not None
            line.learner.control.send(control.SaveNow(number, folder))
            line.path.save_now(lambda stage, state: self._save_part(stage, number, state))

    async def _host_ended(self, host: HostHandle, status: int, said_goodbye: bool) -> None:
        name = host.plan.name
        self._ended.add(name)
        if status != 0 and not said_goodbye and not self._finishing:
            await self._host_died(host, status)
        if name in self._ended and self._ended >= self._hosts.keys():
            self._all_ended.set()
        elif self._finishing and all(learner_name(n) in self._ended for n in self.lines):
            self._end_evaluation()

    async def _host_died(self, host: HostHandle, status: int) -> None:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        slot = next((s for s in self._slots.values() if s.handle is host), None)
        if slot is None:
            self._fail(control.HostFailed(f"the process of {host.plan.name} {how}.", "", host.plan.name))
            return
        refusal = self._supervisor.refusal(host.plan.name, time.monotonic())
        if refusal is not None:
            text = f"the process of {host.plan.name} {how}. It is not restarted again: {refusal}."
            self._fail(control.HostFailed(text, "", host.plan.name))
            return
        log.warning(
            "The process of %s %s. Starting it again; its half-made trajectories are lost.",
            host.plan.name,
            how,
        )
        self._grant(self._ledger.remove_source(slot.source))
        await self._start_actor(slot.replica, host.plan.name, slot)

    def _end_evaluation(self) -> None:
        if self._evaluation is not None:
            for outlet in self._evaluation.policies.values():
                outlet.close()

    async def _kill_after(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._all_ended.wait()
        except TimeoutError:
            left = sorted(self._hosts.keys() - self._ended)
            log.warning(
                "%s did not end within %.0f s and %s killed.",
                ", ".join(left),
                seconds,
                "is" if len(left) == 1 else "are",
            )
            self._kill_all()

    def _kill_all(self) -> None:
        for name, host in self._hosts.items():
            if name not in self._ended:
                host.kill()
        if not self._hosts:
            self._all_ended.set()

    # The clock. ----------------------------------------------------------------------------------------------------

    async def _watch_clock(self, on_progress: Callable[[ProgressSnapshot], None] | None) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            now = time.monotonic()
            if self.checkpoints.give_up_if_overdue(now):
                self._grant(self._ledger.resume())
            queues = [plain_statistics(end.statistics()) for end in self._ends.values()]
            self.reporter.take_statistics({}, queues, "main")
            self.reporter.show()
            if on_progress is not None:
                on_progress(self.reporter.snapshot())
            for name in self._supervisor.silent(now):
                host = self._hosts.get(name)
                if host is not None and host.links is not None and name.startswith("actor"):
                    log.warning(
                        "%s has not been heard of for %.0f s (env_settings.timeout_wait): killing it.",
                        name,
                        self.config.env_settings.timeout_wait,
                    )
                    host.kill()


def _put_newest(outlet: Outlet[Any], update: PolicyUpdate) -> None:
    with suppress(QueueClosed):  # the actor has ended
        outlet.put_nowait(update)
