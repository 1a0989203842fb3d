"""Opens a behaviour's route when its agents first appear: trainer, queues, stages in main, policies.

Until then, main does not know which behaviours the environments have.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.pipeline.common.errors import RunError
from headrace.pipeline.common.graph import GHOST, LEAGUE
from headrace.pipeline.common.seeds import derive_seed
from headrace.pipeline.hosts.early_children import dismiss_early
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.behavior import BehaviorState, SharedPlay, TrajectoryPath, drain
from headrace.pipeline.main.fixed_settings import check_fixed_spec
from headrace.pipeline.main.launcher import ActorSlot
from headrace.pipeline.main.run_part import Run
from headrace.pipeline.main.self_play import SelfPlay
from headrace.pipeline.policies.inference import CountingStage, policy_file
from headrace.pipeline.policies.model_files import read_policy_update
from headrace.pipeline.roles.stages import LOCAL_BOUND, Runner
from headrace.pipeline.run_folder.names import check_behavior_name
from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.ghost import BrainLeague
from headrace.stages.loop import NoSender, StageRunner
from headrace.stages.trainer.report import TrainerReport
from headrace.startup_context import shown

log = logging.getLogger(__name__)


class BehaviorStarter:
    """Starts behaviours, whether they are trained, imitate another behaviour, or only play.

    Args:
        run: the run.
        report: receives the progress of brains that do not learn, as trainer reports.
        on_policy: called with a behaviour's name and each policy from its trainer, and with None after the last one.

    Attributes:
        behaviors: the open behaviours, keyed by name.
        announced: sources of the actors that have announced behaviour ids since their last sign of life.
        self_play: the run's self-play; None until a behaviour with self-play appears.
        brain_league: rates brains in a run without learners.
        newest: copies of the newest policies, keyed by behaviour name, for viewers of the live page.
    """

    def __init__(
        self,
        run: Run,
        report: Callable[[TrainerReport], None],
        on_policy: Callable[[str, PolicyUpdate | None], None],
    ) -> None:
        plan = run.plan
        self.behaviors: dict[str, BehaviorState] = {}
        self.self_play: SelfPlay | None = None
        self.brain_league = BrainLeague()
        if plan.resumed is not None and "brains" in plan.resumed.progress:
            self.brain_league.load_state_dict(plan.resumed.progress["brains"])
        self.newest: dict[str, PolicyUpdate] = {}
        self._plan = plan
        self._launcher = run.launcher
        self._broadcaster = run.broadcaster
        self._stages = run.stages
        self._reporter = run.reporter
        self._run = run
        self._start = run.tasks.run
        self._report = report
        self._on_policy = on_policy
        self.announced: set[int] = set()
        self._bystanders: set[str] = set()
        self._unlearned: set[str] = set()

    async def agents_seen(self, host: HostHandle, spec: BehaviorSpec) -> None:
        """Handle the first agents that an actor has with a behaviour id.

        Raises:
            ConfigError: if the configuration does not fit the behaviour.
            RunError: if the behaviour's policy can't be played, or the behaviour can't imitate its teacher.
        """
        slot = self._launcher.slot_of(host)
        if slot is None:
            return
        if self._run.shutdown.begun:
            # Drain the queue of a behaviour that first appears while the run is ending, because actors wait for it.
            if spec.name not in self.behaviors and spec.name not in self._unlearned:
                self._unlearned.add(spec.name)
                self._start(drain(await self._launcher.gather(spec.name)))
            return
        log.info("Connected new brain: %s", spec.behavior_id, extra={"behavior": spec.name})
        await self._open_for(slot, spec)
        if self._run.shutdown.begun:  # the run's end began while the learner was starting
            self._run.shutdown.learner_started()

    async def _open_for(self, slot: ActorSlot, spec: BehaviorSpec) -> None:
        settings = self._plan.config.behavior_settings(spec.name)
        learns = settings.learns
        if learns and settings.demonstrations is not None and not self._plan.replay_edge and not self._plan.playing:
            raise RunError(
                f"behaviors.{spec.name}: this behaviour learns only from demonstrations, which is not possible in a "
                "run whose agents act; remove all other behaviours from the file (listed: "
                f"{', '.join(self._plan.config.behaviors)}), or let this behaviour imitate another behaviour of the "
                "run ('teacher')"
            )
        if spec.name not in self.behaviors and (self._plan.playing or not learns):
            self._run.flow.ledger.open_unbounded(spec.name)  # no trainer learns from its steps
        self._broadcaster.publisher.add_behavior(spec.behavior_id)
        if learns and not self._plan.route(spec.name).shared:
            self._bystanders.add(spec.behavior_id)
        if spec.name not in self.behaviors:
            await self._open(spec)
        state = self.behaviors[spec.name]
        if self.self_play is not None and self._plan.route(spec.name).self_play:
            self.self_play.add_behavior(spec.behavior_id)
        await self._drain_student(state, spec)
        if learns and not self._plan.replay_edge:  # a recording needs no policy
            if self._broadcaster.relay is not None:
                await self._broadcaster.relay.add_behavior(spec, self._broadcaster.publisher.newest_for)
            await self._launcher.open_policies(slot, spec.behavior_id)
            self._broadcaster.catch_up(slot, spec.behavior_id)
        if not learns:
            self.brain_league.add_behavior(spec.behavior_id, state.settings.brain)
        elif not self._plan.playing:
            for part in self._run.parts.all:
                await part.learns(spec.name, slot)
        self.announced.add(slot.source)

    def league_reports(self) -> dict[str, dict[str, Any]]:
        """Return the reports of all leagues: self-play, brains against brains, and leagues with several learners."""
        reports = self.brain_league.reports() | (self.self_play.reports() if self.self_play is not None else {})
        return reports | self._run.parts.merged(lambda part: part.league_reports())

    def heartbeat(self, slot: ActorSlot) -> None:
        """Handle the first sign of life of an actor since it has announced an id.

        It arrives only after the actor has announced all its initial ids, so the environment lacks all other ids.
        """
        self.announced.discard(slot.source)
        dismiss_early()  # learners for behaviours that the environment lacks
        if self.self_play is not None:
            self.self_play.all_announced()

    async def _open(self, spec: BehaviorSpec) -> None:
        """Open a new behaviour's route, with a trainer if the behaviour learns in this run."""
        name = spec.name
        if self._plan.resumed is not None and self._plan.resumes:
            check_fixed_spec(self._plan.config, self._plan.resumed, spec)
        through_main = self._plan.route(name).through_main
        state = self._add_state(spec)
        learns = state.learns
        if self._plan.playing and learns:
            await self._play(state)
            return
        imitates = learns and self._plan.teacher(name) is not None
        for student in () if imitates else self._plan.students(name):
            if student not in self.behaviors:
                await self._open(replace(spec, behavior_id=student))
            feed: Any = self._launcher.ends[f"learn/{student}"]
            state.path.students[student] = feed
        if learns:
            self._run_all(await self._launcher.start_learner(state, through_main, imitates))
        else:
            await self._count(state)

    def _add_state(self, spec: BehaviorSpec) -> BehaviorState:
        name, plan = spec.name, self._plan
        settings = plan.config.behavior_settings(name)
        state = self.behaviors[name] = BehaviorState(name, spec, settings, self._path(name))
        step = plan.step_before(name)
        if not step and not plan.playing:
            check_behavior_name(name)
        state.start_at(step)
        if step:
            status = plan.folder.read_training_status().behaviors.get(name)
            entries = status.checkpoints if status is not None else ()
            state.exports = [entry.within(plan.folder.path) for entry in entries]
            log.info("Resuming from %s.", shown(plan.origin(name) or plan.folder.path))
            log.info("Resuming training from step %d.", step, extra={"behavior": name, "step": step})
            if step >= settings.max_steps and settings.learns:
                block = f"behaviors.{name}" if name in plan.config.behaviors else "default_settings"
                text = "%s has reached its max_steps (%d), so it no longer learns. To continue, raise %s.max_steps."
                log.warning(text, name, settings.max_steps, block, extra={"behavior": name, "step": step})
        elif not settings.learns:
            shares = [f"{brain.name} plays {100 * brain.weight:g} % of the games" for brain in settings.brain]
            lone = f"{settings.brain[0].name} controls it"
            log.info("%s does not learn: %s.", name, lone if len(shares) == 1 else ", ".join(shares))
        elif not plan.playing:
            path = shown(plan.folder.behavior(name))
            log.info("Starting training from step 0 and saving to %s.", path, extra={"behavior": name})
        brains = {"brain": ", ".join(brain.name for brain in settings.brain)}
        described = settings.model_dump(mode="json", by_alias=True) if settings.learns else brains
        self._reporter.add_behavior(name, settings.max_steps, settings.summary_freq, step, described, settings.learns)
        return state

    # Batches that no stage in main needs go straight to the learner (docs/decisions/016).
    def _path(self, behavior: str) -> TrajectoryPath:
        plan, publisher = self._plan, self._broadcaster.publisher
        way = plan.route(behavior)
        if way.self_play and self.self_play is None:
            seed = derive_seed(plan.seed, GHOST)
            ratings = plan.ratings_left()
            self.self_play = SelfPlay(plan.config, self._stages, publisher, seed, self._bystanders, ratings)
        shared: SharedPlay | None = self.self_play if way.self_play else None
        if way.league:
            shared = self._run.parts.get(LEAGUE)
        return TrajectoryPath(way, plan.config, self._stages, publisher, shared, partial(self._on_policy, behavior))

    async def _drain_student(self, state: BehaviorState, spec: BehaviorSpec) -> None:
        """Drain the trajectories of an imitator's own agents, if it has any, because no trainer learns from them."""
        name = state.behavior
        teacher = self._plan.teacher(name)
        if teacher is None or self._plan.playing or f"trajectories/{name}" in self._launcher.ends:
            return
        if (spec.observations, spec.actions) != (state.spec.observations, state.spec.actions):
            raise RunError(
                f"{name} can't imitate {teacher}: {teacher} has {state.spec.seen} and {state.spec.actions}, but {name} "
                f"has {spec.seen} and {spec.actions}"
            )
        self._start(drain(await self._launcher.gather(name)))

    async def _play(self, state: BehaviorState) -> None:
        """Publish the behaviour's newest saved policy, and start a stage that counts the steps played with it."""
        path = policy_file(self._plan.config, self._plan.folder.path, state.behavior)
        policy = read_policy_update(path, state.behavior)
        log.info("%s is played by %s.", state.behavior, shown(path))
        stage = CountingStage(state.behavior, self._count_play)
        nowhere: Any = NoSender()
        receiver = await self._launcher.gather(state.behavior)
        context = self._stages.context(f"inference-{state.behavior}")
        self._start(StageRunner(stage, receiver, nowhere, context).run())
        for _ in self._broadcaster.publisher.process(policy):
            pass

    async def _count(self, state: BehaviorState) -> None:
        """Start the stage that counts the steps of brains that do not learn, and forwards steps to broadcast."""
        name, settings = state.behavior, state.settings
        end = math.inf if self._plan.playing else settings.max_steps
        counting = CountingStage(name, self._report, state.step, end, self.brain_league.rate)
        receiver = await self._launcher.gather(name)
        sender: Any = NoSender()
        if settings.broadcast:
            counted: Any = AgentManagerQueue(f"counted {name}", LOCAL_BOUND)
            self._run_all(state.path.trajectories(counted, sender))
            sender = counted
        context = self._stages.context(f"counting-{name}")
        self._start(StageRunner(counting, receiver, sender, context).run())

    def _count_play(self, report: TrainerReport) -> None:
        self.behaviors[report.behavior].receive_report(report)
        self._reporter.record_report(report)

    def _run_all(self, runners: list[Runner]) -> None:
        for runner in runners:
            self._start(runner)
