"""The learner host: one trainer, its input (from actors or a recording), its checkpoints and exports.

`TrainerHost` has the code shared by hosts that train: the trainer, built from the YAML and restored to the run's state.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from logging import INFO, WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.config import BehaviorSettings, RunConfig
from headrace.config.environment_kinds import load_entry
from headrace.pipeline.common.graph import TRAINER, learner_name, part_name, shard_names, teacher_of
from headrace.pipeline.common.run_parts import learner_side
from headrace.pipeline.common.seeds import derive_seed
from headrace.pipeline.control import (
    BeginAnew,
    ControlEnd,
    EpochEnded,
    ExportFailed,
    FolderMoved,
    FollowerLost,
    LearnerReady,
    LearnNoMore,
    OpenEdge,
    PartFailed,
    PolicyExported,
    SaveNow,
    SetHyperparameter,
    Stop,
)
from headrace.pipeline.diagnosis.measurements import MEASUREMENTS, RowMeasurements
from headrace.pipeline.hosts.protocol import HostEdges, HostPlan
from headrace.pipeline.policies.export import OnnxExporter, export_policy
from headrace.pipeline.policies.ml_agents import left_checkpoint
from headrace.pipeline.policies.warm_start import initial_policy, resume_from_ml_agents, warm_start
from headrace.pipeline.reporting.csv_writer import EpisodeTable
from headrace.pipeline.roles.device import choose_rounding, device_of, precision_of, products_of
from headrace.pipeline.roles.runtime import Host
from headrace.pipeline.roles.senders import ReceiverTap, recorded_here
from headrace.pipeline.roles.sizes import agents_of, cores_left_for, kind_of_trainer, squashes_actions
from headrace.pipeline.run_folder.checkpoint import pack_state, unfinished_folder, unpack_state
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.ends import ItemSink, ItemSource, Sender
from headrace.queues.files import REAL, FileGuard
from headrace.queues.messages import Barrier, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.parameters import kept_returns
from headrace.stages.errors import StageError, describe_error
from headrace.stages.loop import StageHooks, StageRunner
from headrace.stages.policy.design import PolicyDesign, design_of
from headrace.stages.replay import recorded_agents
from headrace.stages.stage import Statistics
from headrace.stages.trainer.deliveries import Deliveries
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas, Trainer, TrainerContext, defaults_of
from headrace.stages.trainer.report import TrainerPort, TrainerReport
from headrace.stages.trainer.stage import TrainerStage
from headrace.stages.trainer.thread_choice import ThreadChoice, candidates_for
from headrace.startup_context import shown

if TYPE_CHECKING:
    from headrace.stages.environments.protocol import GoalRewards
    from headrace.stages.trainer.replay.sharded_replay import ShardedReplay


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
            behavior, settings = self.plan.behavior, self._settings
            extrinsic = settings.reward_signals.extrinsic
            in_turns = settings.league is not None and settings.league.learning == "turns"
            trainer = self._make_trainer(replicas, device, statistics)
            stage_class = TrainerStage
            if self._shards is not None:  # other learners need not import the class
                from headrace.stages.trainer.replay.sharded_replay import ShardedTrainerStage

                stage_class = ShardedTrainerStage
            stage = stage_class(
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
            replay: ShardedReplay | None = getattr(stage.trainer, "replay", None)
            if replay is not None:
                await opened.enter_async_context(self._shards.joined(replay, share))
                await replay.opened()  # the buffer's size affects how a resumed run continues
            with defaults_of(type(stage.trainer)):
                self._restore(stage)
            yield stage

    def _make_trainer(self, replicas: Replicas, device: str, statistics: Statistics) -> Trainer:
        plan = self.plan
        teacher = teacher_of(self.config, plan.behavior)
        recorded = recorded_agents(self.config.replay.streams) if self.config.replay is not None else None
        context = TrainerContext(
            behavior=plan.behavior,
            settings=self._settings,
            spec=self._spec,
            # Derived from the behaviour and not from the host, so that replaying its input reproduces the weights.
            seed=derive_seed(plan.seed, TRAINER, plan.behavior),
            device=device,
            accelerated=self.config.torch_settings.acceleration == "auto",
            products=products_of(self.config, self._settings, device),
            agents=recorded or agents_of(self.config),
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
    hindsight = h.get("hindsight") if isinstance(h, Mapping) else getattr(h, "hindsight", None)
    if hindsight is None or make is None or config.environment is None:
        return None
    from headrace.stages.environments.factory import EnvironmentRequest  # other learners need not import it

    rewards: GoalRewards = load_entry(make)(EnvironmentRequest(config))
    return rewards


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


SOON_S = 2e-3
"""Seconds within which the learner reports steps that have arrived, because actors may wait for the report."""


class LearnerHost(TrainerHost):
    """Runs one trainer, alone or as the first of its replicas."""

    def __init__(self, plan: HostPlan, control: ControlEnd, edges: HostEdges) -> None:
        super().__init__(plan, control, edges)
        self._sender: asyncio.Future[Sender[Any]] = asyncio.get_running_loop().create_future()
        self._stage: TrainerStage | None = None
        self._reported_step = 0
        self._exported: tuple[int, int] | None = None
        """Step and version of the last exported policy; None before the first export."""
        self._asked_to_save: int | None = None
        self._stopped = asyncio.Event()
        self._onnx = OnnxExporter(self.stages.context(TRAINER).log)
        self._epochs: EpochStatistics | None = None
        if (evaluation := self.config.evaluation) is not None:
            self._epochs = EpochStatistics(self.statistics, evaluation.every, self._end_epoch)
        self._files = FileGuard(self.stages.context(TRAINER).log)
        self._measurements: RowMeasurements | None = None
        settings = self._settings
        if not kind_of_trainer(self.config, plan.behavior).imitates:  # its teacher's learner measures the rows
            squashed = squashes_actions(self.config, plan.behavior)
            every = max(settings.summary_freq, settings.max_steps // MEASUREMENTS)
            self._measurements = RowMeasurements(self._spec, squashed, every)

    async def _work(self) -> None:
        replicas = self.config.pipeline.hosts.learners.replicas
        device, why = device_of(self.config, self.plan.behavior)
        together = f", in {replicas} replicas" if replicas > 1 else ""
        log = self.stages.context(TRAINER).log
        log.info("%s learns on %s (%s)%s.", self.plan.behavior, device, why, together)
        configured, settings = precision_of(self.config), self._settings
        rounding = choose_rounding(configured, device, settings.trainer_type)
        if configured == "bf16" or 0 < rounding.settings.rounded_from <= max(settings.network_settings.widths):
            log.log(
                WARNING if rounding.slow else INFO,
                "%s: hidden-layer matrix products in %s.",
                self.plan.behavior,
                rounding.words,
            )
        if replicas == 1:
            await self._train(SINGLE_TRAINER, device)
            return
        lost = await learner_side("followers")(self.plan, self.config, device).beside(self._train)
        if lost:
            self.control.send(FollowerLost(lost))
            await asyncio.Event().wait()  # until main ends this host; its queues stay open for the successor

    async def _train(self, replicas: Replicas, device: str, followers: Any = None) -> None:
        loop = asyncio.get_running_loop()
        add_episode = None
        if self.config.pipeline.monitor_csv:
            add_episode = EpisodeTable(self.plan.behavior, self.stages.folder.check).add
        measure = None if self._measurements is None else self._measurements.add
        port = TrainerPort(self._report, lambda call: loop.call_later(SOON_S, call), add_episode, measure)
        statistics = self._epochs or self.statistics
        share = None if followers is None else followers.share_samples
        async with self._make_stage(replicas, device, statistics, port, share) as stage:
            self._tell_of_changes(stage)
            if followers is not None:
                followers.check_agreement(replicas, stage.trainer)
            self._stage = stage
            try:
                await self._run_stage(stage, followers)
            finally:
                self._stage = None  # a state in the middle of an update must not be saved

    def _tell_of_changes(self, stage: TrainerStage) -> None:
        """Log which value is in use for each hyperparameter that was set during the run."""
        say, configured = self.stages.context(TRAINER).log.info, self._settings.declared_hyperparameters
        for name, value in stage.changed.items():
            words = "%s continues with %s %g, which was set during the run. The YAML's %g has no effect."
            say(words, self.plan.behavior, name, value, getattr(configured, name))
        for name, value in self._given_up.items():
            words = "%s continues with %s %g, as given by --set, instead of %g, which was set during the run."
            say(words, self.plan.behavior, name, getattr(configured, name), value)

    async def _run_stage(self, stage: TrainerStage, followers: Any) -> None:
        plan, trainer, policy = self.plan, stage.trainer, stage.policy()
        counts = ", ".join(f"{name} {count:,}" for name, count in trainer.parameter_counts().items())
        if counts:
            text = "%s: number of parameters in each network: %s."
            self.stages.context(TRAINER).log.info(text, plan.behavior, counts)
        self.control.send(
            LearnerReady(
                plan.behavior,
                trainer.rows_per_update,
                stage.held_rows,
                any_age=trainer.off_policy,
                corrects_age=trainer.corrects_age,
                step=stage.step,
                hyperparameters=dict(stage.changed),
            )
        )
        if self._asked_to_save is not None:
            self._save(TRAINER, self._asked_to_save, stage.state_dict())
        receiver: ItemSource[Any] = await self._receiver
        sender: ItemSink[Any] = await self._sender
        if followers is not None:
            receiver, sender = followers.join(stage, receiver, sender)
        await sender.put(policy)
        stage.report_now()
        recorded = recorded_here(self.config, TRAINER, plan.behavior)
        tap = ReceiverTap(receiver, plan, self.config, self._spec, self.stages.timings) if recorded else None
        hooks = StageHooks(save_part=self._save)
        context = self.stages.context(TRAINER)
        if self._epochs is not None:
            context = replace(context, statistics=self._epochs)
        runner = StageRunner(stage, tap or receiver, sender, context, hooks, ends_barriers=True)
        try:
            await runner.run()
        finally:
            if tap is not None:
                tap.finish()
        if self.config.replay is not None and stage.late_rows:
            words = "%s finished training at step %d and did not learn from the %d recorded steps after that."
            context.log.info(words, plan.behavior, stage.step, stage.late_rows)
        await self._stopped.wait()  # if the stream ended before the last barrier, main requests a save

    async def _listen(self) -> None:
        async for message in self.control.receive():
            match message:
                case OpenEdge() if self._shards is not None and message.name.startswith("rows/"):
                    self._shards.senders.put_nowait(await self.open_sender(message))
                case OpenEdge() if self._shards is not None and message.name.startswith("samples/"):
                    self._shards.receivers.put_nowait(await self.open_receiver(message))
                case OpenEdge() if message.name.startswith("updates/"):
                    self._sender.set_result(await self.open_sender(message))
                case OpenEdge():
                    self._receiver.set_result(await self.open_receiver(message))
                case FolderMoved():
                    self.stages.folder.move(Path(message.run_folder))
                    self._exported = None
                case SaveNow() if self._stage is not None:
                    self._save(TRAINER, message.number, self._stage.state_dict())
                case SaveNow():  # the trainer does not exist yet
                    self._asked_to_save = message.number
                case SetHyperparameter() if self._stage is not None:
                    self._set(self._stage, message)
                case BeginAnew() if self._stage is not None:
                    weights = None if message.weights is None else np.frombuffer(message.weights, "<f4").copy()
                    self._stage.takeover.want(message.number, weights)
                case LearnNoMore() if self._stage is not None:
                    self._stage.end_learning(message.why)
                    self._stage.report_now()
                case Stop():
                    self._stopped.set()

    def _set(self, stage: TrainerStage, message: SetHyperparameter) -> None:
        log, behavior = self.stages.context(TRAINER).log, self.plan.behavior
        try:
            stage.set_hyperparameter(message.name, message.value)
        except (StageError, ValueError) as error:
            log.warning("%s: %s is unchanged: %s", behavior, message.name, error)
            return
        log.info("%s: %s changed to %g at step %d.", behavior, message.name, message.value, stage.step)

    def _save(self, stage: str, number: int, state: Any) -> None:
        assert self._stage is not None, "it is the stage that saves"
        if self.stages.has_saved(stage, number):
            return
        trainer = self._stage.trainer
        try:
            self.stages.folder.check()
            # Report and export go first, so that main has both when the checkpoint is complete.
            self._stage.report_now()
            self._export()
            folder = unfinished_folder(self.stages.folder.path / "checkpoints", number)
            REAL.make_folder(folder)
            trainer.save_bulk(folder)
            if self._shards is not None:
                self._shards.save(number)
        except OSError as error:
            self.control.send(PartFailed(number, self.stages.part_name(stage), str(error)))
            return
        self.stages.save_part(stage, number, state)

    def _export(self) -> None:
        assert self._stage is not None, "exports are made once there is a trainer"
        plan, trainer = self.plan, self._stage.trainer
        newest = self._stage.step, self._stage.version
        if newest == self._exported:  # the trainer has not learned since the last export
            return
        with defaults_of(type(trainer)):
            learner = unpack_state(pack_state(trainer.warm_state(), "warm_state()"))  # refuses what can't be read back
            policy = replace(trainer.exported_policy(), step=newest[0], version=newest[1])
        path = None
        run_folder = self.stages.folder.path
        folder = behavior_folder(run_folder, plan.behavior)
        with self._files.writing(folder, "no policies are exported") as refused:
            path = export_policy(
                run_folder,
                policy,
                self._spec,
                self._settings,
                learner=learner,
                source_folder=self.config.source_folder,
            )
        if path is None:  # the checkpoint matters more; main decides about the last policy
            self.control.send(ExportFailed(plan.behavior, f"{folder}: {refused[0]}"))
            return
        self._exported = newest
        onnx = self._onnx.write(path, self._design(), policy)
        self.control.send(
            PolicyExported(
                plan.behavior,
                newest[0],
                str(path),
                self._stage.episodes.recent_return,
                None if onnx is None else str(onnx),
            )
        )
        if self._onnx.refused:
            self.control.send(ExportFailed(plan.behavior, f"{path.with_suffix('.onnx')}: {self._onnx.refused}"))

    def _report(self, report: TrainerReport) -> None:
        """Send the trainer's report; if a summary becomes due with this report, send the statistics first."""
        summary_freq = self._settings.summary_freq
        if report.step // summary_freq > self._reported_step // summary_freq:
            if self._measurements is not None:
                self._measurements.report(self.statistics, self.plan.behavior)
            self.report()
        self._reported_step = report.step
        if self._epochs is not None:
            self._epochs.advance(report.step)
        self.control.send(report)

    def _end_epoch(self, step: int, values: Mapping[str, float]) -> None:
        self.control.send(EpochEnded(self.plan.behavior, step, dict(values)))


# Statistics over entire epochs of `evaluation.every` steps: minimum, mean and maximum of what a trainer reports.

_MEASURES = {
    "Policy/Q1": "Q1",
    "Policy/Q2": "Q2",
    "Policy/Value": "V",
    "Policy/Log Probability": "LogPi",
}
"""Short names for epoch statistics, keyed by the full name of each statistic that is reported with `Min`, `Mean` and
`Max`.
"""
_RETURNS = "Environment/Cumulative Reward"


_KINDS: Mapping[str, Callable[[list[float]], float]] = {
    "Min": min,
    "Mean": lambda values: sum(values) / len(values),
    "Max": max,
}


class EpochStatistics:
    """Forwards statistics, and tracks the spread of some of them over an epoch.

    Args:
        statistics: receives all statistics.
        every: number of trainer steps per epoch.
        ended: called with an epoch's last step and its statistics, if the epoch has any.
    """

    def __init__(self, statistics: Statistics, every: int, ended: Callable[[int, Mapping[str, float]], None]) -> None:
        self._statistics = statistics
        self._every = every
        self._ended = ended
        self._epoch: int | None = None
        self._values: defaultdict[str, list[float]] = defaultdict(list)
        """Values of this epoch, keyed by short name and kind, such as `Q1 Min`."""

    def add(self, category: str, name: str, value: float, how: str = "mean") -> None:
        """Forward a value, and include it in the epoch."""
        self._statistics.add(category, name, value, how)
        measure, _, kind = name.rpartition(" ")
        if measure in _MEASURES and kind in _KINDS:
            self._values[f"{_MEASURES[measure]} {kind}"].append(value)

    def extend(self, category: str, name: str, values: Iterable[float], how: str = "histogram") -> None:
        """Forward many values of one statistic, and include them in the epoch."""
        listed = list(values)
        self._statistics.extend(category, name, listed, how)
        if name == _RETURNS:
            for kind in _KINDS:
                self._values[f"EpRet {kind}"] += listed

    def advance(self, step: int) -> None:
        """Update the trainer's step, and report an ended epoch.

        After a resume, the first report covers only part of an epoch.
        """
        epoch = step // self._every
        if self._epoch is not None and epoch > self._epoch:
            summary = {
                f"Epoch/{name}": _KINDS[name.rpartition(" ")[2]](values)
                for name, values in self._values.items()
                if values
            }
            if summary:
                self._ended(epoch * self._every, summary)
            self._values.clear()
        self._epoch = epoch
