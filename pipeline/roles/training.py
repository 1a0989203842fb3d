"""Code shared by hosts that train: the trainer, built from the YAML and restored to the run's state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.config import BehaviorSettings, RunConfig
from headrace.config.environment_kinds import load_entry
from headrace.config.host_kinds import HOST_KINDS
from headrace.pipeline.common.graph import TRAINER, actor_names, learner_name, part_name, shard_names, teacher_of
from headrace.pipeline.common.lessons import kept_returns
from headrace.pipeline.common.process import usable_cores
from headrace.pipeline.common.run_parts import learner_side
from headrace.pipeline.common.seeds import derive_seed
from headrace.pipeline.control import ControlEnd
from headrace.pipeline.hosts.early_children import learners_of, most_learner_processes
from headrace.pipeline.hosts.protocol import HostEdges, HostPlan
from headrace.pipeline.policies.ml_agents import left_checkpoint
from headrace.pipeline.policies.warm_start import initial_policy, resume_from_ml_agents, warm_start
from headrace.pipeline.roles.device import products_of
from headrace.pipeline.roles.runtime import Host
from headrace.pipeline.roles.sizes import agents_of, squashes_actions
from headrace.queues.ends import ItemSource
from headrace.queues.messages import Barrier, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError, describe_error
from headrace.stages.policy.design import PolicyDesign, design_of
from headrace.stages.replay.source import recorded_agents
from headrace.stages.stage import Statistics
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.input_tracking import Deliveries
from headrace.stages.trainer.protocol import Replicas, Trainer, TrainerContext
from headrace.stages.trainer.report import TrainerPort
from headrace.stages.trainer.stage import TrainerStage
from headrace.stages.trainer.thread_choice import ThreadChoice, candidates_for
from headrace.startup_context import shown

if TYPE_CHECKING:
    from headrace.stages.environments.protocol import GoalRewards
    from headrace.stages.trainer.sac.sharded_replay import ShardedReplay


class TrainerHost(Host):
    """A host with one trainer and an input queue for its experience."""

    def __init__(self, plan: HostPlan, control: ControlEnd, edges: HostEdges) -> None:
        super().__init__(plan, control, edges)
        assert plan.spec is not None, "the plan of a host that trains has a spec"
        self._spec = BehaviorSpec.from_plain(dict(plan.spec))
        self._settings = self.config.behavior_settings(plan.behavior)
        self._given_up: dict[str, float] = {}
        """Hyperparameter values in the checkpoint that the command line overrides, keyed by name."""
        self._goal_rewards = _goal_rewards(self.config, self._settings)
        shards = len(shard_names(self.config, plan.behavior))
        self._shards: Any = learner_side("replay_shards")(shards) if shards else None
        loop = asyncio.get_running_loop()
        self._receiver: asyncio.Future[ItemSource[TrajectoryBatch | Barrier]] = loop.create_future()

    @asynccontextmanager
    async def _make_stage(
        self,
        replicas: Replicas,
        device: str,
        statistics: Statistics,
        port: TrainerPort | None = None,
        share: Callable[[int, ItemSource[Any]], ItemSource[Any]] | None = None,
    ) -> AsyncIterator[TrainerStage]:
        """Create the stage and its trainer, restored to the run's state and connected to its replay shards."""
        async with AsyncExitStack() as opened:
            if self._goal_rewards is not None:
                opened.callback(self._goal_rewards.close)
            stage = self._new_stage(replicas, device, statistics, port)
            replay: ShardedReplay | None = getattr(stage.trainer, "replay", None)
            if replay is not None:
                await opened.enter_async_context(self._shards.joined(replay, share))
                await replay.opened()  # the buffer's size affects how a resumed run continues
            self._restore(stage)
            yield stage

    def _new_stage(
        self, replicas: Replicas, device: str, statistics: Statistics, port: TrainerPort | None
    ) -> TrainerStage:
        """Create the stage and its trainer, not yet restored."""
        behavior, settings = self.plan.behavior, self._settings
        extrinsic = settings.reward_signals.extrinsic
        in_turns = settings.league is not None and settings.league.learning == "turns"
        trainer = self._make_trainer(replicas, device, statistics)
        return _stage_class(bool(shard_names(self.config, behavior)))(
            trainer,
            behavior,
            settings.max_steps,
            extrinsic.strength if extrinsic is not None else 0.0,
            port,
            reports_each=self.config.pipeline.deterministic or in_turns,
            kept_returns=kept_returns(self.config.environment_parameters, behavior),
            clock=asyncio.get_running_loop().time,
            columns=self._design().asked_columns,
            actions=self._spec.actions,
            # Recordings of several runs may be replayed together, and each has a source 0.
            deliveries=Deliveries.asked_for() if self.config.replay is None else None,
            stop_when=settings.stop_when,
            make_trainer=partial(self._make_trainer, replicas, device, statistics),
            threads=thread_choice(self.config, behavior, device, self.stages.context(TRAINER).log, trainer),
        )

    def _make_trainer(self, replicas: Replicas, device: str, statistics: Statistics) -> Trainer:
        plan = self.plan
        teacher = teacher_of(self.config, plan.behavior)
        context = TrainerContext(
            behavior=plan.behavior,
            settings=self._settings,
            spec=self._spec,
            # Derived from the behaviour and not from the host, so that replaying its input reproduces the weights.
            seed=derive_seed(plan.seed, TRAINER, plan.behavior),
            device=device,
            autograd=self.config.torch_settings.gradients == "autograd",
            cuda_graphs=self.config.torch_settings.cuda_graphs,
            products=products_of(self.config, self._settings, device),
            agents=_agents(self.config),
            folder=self.config.source_folder,
            statistics=statistics,
            replicas=replicas,
            replay_shards=len(shard_names(self.config, plan.behavior)),
            teacher_squashed=teacher is not None and squashes_actions(self.config, teacher),
            goal_rewards=self._goal_rewards,
        )
        return make_trainer(context)

    def _restore(self, stage: TrainerStage) -> None:
        """Resume from a Headrace or ML-Agents checkpoint if there is one; otherwise use the initial policy, if any."""
        part = part_name(TRAINER, learner_name(self.plan.behavior))
        state = self.checkpoint.read(part) if self.checkpoint is not None else None
        resume = self.config.checkpoint_settings.resume
        theirs = left_checkpoint(self.plan.folder, self.plan.behavior) if state is None and resume else None
        if state is not None:
            assert self.checkpoint is not None, "the state was read from it"
            try:
                stage.load_state_dict(self._without_explicit(state))
            except (StageError, LookupError, TypeError, ValueError, AttributeError) as error:
                problem = str(error) if isinstance(error, StageError) else describe_error(error)
                raise StageError(
                    f"{self.plan.behavior} can't continue from {self.checkpoint.folder}. Most likely its trainer_type, "
                    "observations, actions or settings have changed since then: restore them, or start a new run with "
                    f"a different --run-id.\n{problem}"
                ) from error
            warning = stage.trainer.load_bulk(self.checkpoint.folder)
            if warning is not None:
                self.stages.context(TRAINER).log.warning("%s: %s", self.plan.behavior, warning)
        elif theirs is not None:
            resume_from_ml_agents(stage.trainer, theirs, self._spec, self._settings, self.config.source_folder)
        elif self.checkpoint is None:
            path = initial_policy(self.config, self.plan.behavior)
            if path is not None:
                warm_start(stage.trainer, path, self._spec, self._settings, self.config.source_folder)
                self.stages.context(TRAINER).log.info("Initializing from %s.", shown(path))
        stage.number_above(self.plan.lost_version)

    def _without_explicit(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Drop hyperparameters that were set during the run and are now set on the command line."""
        assert self.checkpoint is not None, "the state was read from it"
        explicit = self.plan.explicit if self.checkpoint.number == self.plan.resumed_at else ()
        kept = dict(state.get("hyperparameters", {}))
        self._given_up = {name: kept.pop(name) for name in explicit if name in kept}
        return {**state, "hyperparameters": kept}

    def _design(self) -> PolicyDesign:
        return design_of(self._spec, self._settings, self.config.source_folder)


def _goal_rewards(config: RunConfig, settings: BehaviorSettings) -> GoalRewards | None:
    """Return the environment's goal rewards if the trainer needs them and the environment has them; otherwise None."""
    h, make = settings.hyperparameters, config.environment_kind.goal_rewards
    asked = h.get("hindsight") if isinstance(h, Mapping) else getattr(h, "hindsight", None)
    if asked is None or make is None or config.environment is None:
        return None
    from headrace.stages.environments.factory import EnvironmentRequest  # other learners need not import it

    rewards: GoalRewards = load_entry(make)(EnvironmentRequest(config))
    return rewards


def _agents(config: RunConfig) -> int:
    """Return the number of agents that act simultaneously; for a recording, the number in the recorded run."""
    recorded = recorded_agents(config.replay.streams) if config.replay is not None else None
    return recorded or agents_of(config)


def _stage_class(sharded: bool) -> type[TrainerStage]:
    """Return the class for the trainer stage; the sharded class is imported only if needed."""
    if not sharded:
        return TrainerStage
    from headrace.stages.trainer.sac.sharded_stage import ShardedTrainerStage

    return ShardedTrainerStage


# A learner's number of threads, chosen from the YAML and the machine.


def thread_choice(
    config: RunConfig, behavior: str, device: str, log: logging.Logger, trainer: Trainer
) -> ThreadChoice | None:
    """Return the tuner for a learner's number of threads; None if the learner keeps its process's setting.

    Args:
        config: the run's configuration.
        behavior: the behaviour that the learner trains.
        device: the torch device on which the trainer trains.
        log: receives the choice and the measured durations.
        trainer: the behaviour's trainer.
    """
    learners = config.pipeline.hosts.learners
    if learners.threads != "auto":
        return ThreadChoice([learners.threads], trainer.use_threads)
    # The last digits of sums depend on the number of threads, but a replay must reproduce the recording.
    exact = config.pipeline.deterministic or config.record is not None or config.replay is not None
    if exact or learners.kind != "process" or learners.replicas > 1 or not device.startswith("cpu"):
        return None
    candidates = candidates_for(cores_left_for(config, trainer.threads_sleep))
    if len(candidates) == 1:
        return None

    def tell(threads: int, took: Mapping[int, float]) -> None:
        tried = ", ".join(f"{number}: {seconds:.3g} s" for number, seconds in took.items())
        log.info(
            "%s: learners.threads is %d (auto); time per update by number of threads: %s.",
            behavior,
            threads,
            tried,
        )

    return ThreadChoice(candidates, trainer.use_threads, tell)


def cores_left_for(config: RunConfig, shared: bool = False) -> int:
    """Return the number of cores that remain for a learner after those for actors and other learners.

    With `shared`, the learner may also try a second core that an actor uses, because actors mostly wait for an
    off-policy trainer.
    """
    hosts = config.pipeline.hosts
    actors = 0 if HOST_KINDS[hosts.actors.kind].on_ray else len(actor_names(config))
    learners = min(len(learners_of(config)) or 1, most_learner_processes(config))
    least = min(2, usable_cores() // learners) if shared else 1
    return max(1, least, (usable_cores() - actors) // learners)
