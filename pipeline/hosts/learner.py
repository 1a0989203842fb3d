"""The learner host: one trainer, its inlet (from the actors, or a recording), its checkpoints and exports."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from config import RunConfig
from pipeline.common.graph import TRAINER, teacher_of
from pipeline.common.lessons import kept_returns
from pipeline.common.seeds import derive_seed
from pipeline.control.channel import ControlEnd
from pipeline.control.messages import EpochEnded, Exported, LearnerReady, OpenEdge, PartFailed, SaveNow, Stop
from pipeline.hosts.device import choose_device
from pipeline.hosts.plan import HostPlan
from pipeline.hosts.protocol import HostEdges
from pipeline.hosts.runtime import Host
from pipeline.hosts.sizes import agents_of, kind_of_trainer
from pipeline.hosts.stream_taps import InletTap, recorded_here
from pipeline.policies.export import export_policy
from pipeline.policies.ml_agents import left_checkpoint
from pipeline.policies.onnx_export import OnnxExporter
from pipeline.policies.warm_start import initial_policy, resume_from_ml_agents, warm_start
from pipeline.run_folder.checkpoint import unfinished_folder
from pipeline.run_folder.file_guard import FileGuard
from pipeline.run_folder.folder import folder_name
from queues.ends import ItemSource, Outlet
from queues.messages import Barrier, TrajectoryBatch
from queues.specs import BehaviorSpec
from stages.errors import StageError
from stages.loop import StageHooks, StageRunner
from stages.policy.design import PolicyDesign, design_of
from stages.replay.recording import recorded_agents
from stages.trainer.epochs import EpochStatistics
from stages.trainer.factory import make_trainer
from stages.trainer.protocol import Trainer, TrainerContext
from stages.trainer.stage import TrainerPort, TrainerReport, TrainerStage


class LearnerHost(Host):
    """Runs one trainer."""

    def __init__(self, plan: HostPlan, control: ControlEnd, edges: HostEdges) -> None:
        super().__init__(plan, control, edges)
        config = self.config
        assert plan.spec is not None, "a learner's plan has a spec"
        self._spec = BehaviorSpec.from_plain(dict(plan.spec))
        self._settings = config.behavior_settings(plan.behavior)
        loop = asyncio.get_running_loop()
        self._inlet: asyncio.Future[ItemSource[TrajectoryBatch | Barrier]] = loop.create_future()
        self._outlet: asyncio.Future[Outlet[Any]] = loop.create_future()
        self._stage: TrainerStage | None = None
        self._reported_step = 0
        self._exported: tuple[int, int] | None = None
        """Step and version of the policy that was exported last."""
        self._asked_to_save: int | None = None
        self._stopped = asyncio.Event()
        self._onnx = OnnxExporter(self.stages.context(TRAINER).log)
        self._epochs: EpochStatistics | None = None
        if config.evaluation is not None:
            self._epochs = EpochStatistics(self.statistics, config.evaluation.every, self._end_epoch)
        self._files = FileGuard(self.stages.context(TRAINER).log)

    async def _work(self) -> None:
        plan = self.plan
        trainer = self._make_trainer()
        stage = self._stage = TrainerStage(
            trainer,
            plan.behavior,
            self._settings.max_steps,
            extrinsic.strength if (extrinsic := self._settings.reward_signals.extrinsic) is not None else 0.0,
            TrainerPort(self._report),
            reports_each=self.config.pipeline.deterministic,
            kept_returns=kept_returns(self.config.environment_parameters, plan.behavior),
            clock=asyncio.get_running_loop().time,
            columns=self._design().asked_columns,
            actions=self._spec.actions,
        )
        self._restore(stage)
        policy = stage.policy()
        self.control.send(
            LearnerReady(
                plan.behavior,
                trainer.rows_per_update,
                stage.held_rows,
                any_age=trainer.off_policy,
                corrects_age=trainer.corrects_age,
            )
        )
        if self._asked_to_save is not None:
            self._save(TRAINER, self._asked_to_save, stage.state_dict())
        inlet = await self._inlet
        outlet = await self._outlet
        await outlet.put(policy)
        stage.report_now()
        recorded = recorded_here(self.config, TRAINER, plan.behavior)
        tap = InletTap(inlet, plan, self.config, self._spec) if recorded else None
        hooks = StageHooks(save_part=self._save)
        context = self.stages.context(TRAINER)
        if self._epochs is not None:
            context = replace(context, statistics=self._epochs)
        runner = StageRunner(stage, tap or inlet, outlet, context, hooks, ends_barriers=True)
        try:
            await runner.run()
        finally:
            if tap is not None:
                tap.finish()
        await self._stopped.wait()  # the stream may have broken off before the last barrier: main then asks for a save

    async def _listen(self) -> None:
        async for message in self.control.receive():
            match message:
                case OpenEdge() if message.name.startswith("updates/"):
                    self._outlet.set_result(await self.open_outlet(message))
                case OpenEdge():
                    self._inlet.set_result(await self.open_inlet(message))
                case SaveNow() if self._stage is not None:
                    self._save(TRAINER, message.number, self._stage.state_dict())
                case SaveNow():  # there is no trainer yet
                    self._asked_to_save = message.number
                case Stop():
                    self._stopped.set()

    def _make_trainer(self) -> Trainer:
        plan = self.plan
        teacher = teacher_of(self.config, plan.behavior)
        device, why = choose_device(self.config.torch_settings.device)
        self.stages.context(TRAINER).log.info("%s learns on %s (%s).", plan.behavior, device, why)
        context = TrainerContext(
            behavior=plan.behavior,
            settings=self._settings,
            spec=self._spec,
            # Of the behaviour alone, not of the host: a replay of its inlet gives the same weights again.
            seed=derive_seed(plan.seed, TRAINER, plan.behavior),
            device=device,
            agents=_agents(self.config),
            folder=self.config.source_folder,
            statistics=self._epochs or self.statistics,
            teacher_squashed=teacher is not None and kind_of_trainer(self.config, teacher).squashed,
        )
        trainer = make_trainer(context)
        counts = ", ".join(f"{name} {count:,}" for name, count in trainer.parameter_counts().items())
        if counts:
            self.stages.context(TRAINER).log.info("%s has networks with these parameters: %s.", plan.behavior, counts)
        return trainer

    def _restore(self, stage: TrainerStage) -> None:
        """Resume from a checkpoint, ours or ML-Agents', if there is one; else start from what the YAML names."""
        state = self.stages.saved_state(TRAINER)
        resume = self.config.checkpoint_settings.resume
        theirs = left_checkpoint(self.plan.folder, self.plan.behavior) if state is None and resume else None
        if state is not None:
            assert self.checkpoint is not None, "the state was read from it"
            try:
                stage.load_state_dict(state)
            except StageError as error:
                raise StageError(
                    f"{self.plan.behavior} can't go on from {self.checkpoint.folder}. Most likely its "
                    "observations, actions or settings have changed since: let them be what they were, or start a "
                    f"run of its own with another --run-id.\n{error}"
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
                self.stages.context(TRAINER).log.info("Initializing from %s.", path)

    def _save(self, stage: str, number: int, state: Any) -> None:
        assert self._stage is not None, "it is the stage that saves"
        if self.stages.has_saved(stage, number):
            return
        trainer = self._stage.trainer
        # Report and export go first, so that main knows of both when the checkpoint is whole.
        self._stage.report_now()
        self._export()
        try:
            folder = unfinished_folder(self.plan.folder / "checkpoints", number)
            folder.mkdir(parents=True, exist_ok=True)
            trainer.save_bulk(folder)
        except OSError as error:
            self.control.send(PartFailed(number, self.stages.part_name(stage), str(error)))
            return
        self.stages.save_part(stage, number, state)

    def _design(self) -> PolicyDesign:
        return design_of(self._spec, self._settings, self.config.source_folder)

    def _export(self) -> None:
        assert self._stage is not None, "exports are made once there is a trainer"
        plan, trainer = self.plan, self._stage.trainer
        newest = trainer.step, trainer.version
        if newest == self._exported:  # at an earlier checkpoint; its turn to learn has not come since, or the run ends
            return
        learner, policy = trainer.warm_state(), trainer.policy()
        path = None
        with self._files.writing(plan.folder / folder_name(plan.behavior), "no policies are exported"):
            path = export_policy(
                plan.folder,
                policy,
                self._spec,
                self._settings,
                learner=learner,
                source_folder=self.config.source_folder,
            )
        if path is None:  # the checkpoint is what counts
            return
        self._exported = newest
        onnx = self._onnx.write(path, self._design(), policy)
        self.control.send(
            Exported(
                plan.behavior, trainer.step, str(path), self._stage.recent_return, None if onnx is None else str(onnx)
            )
        )

    def _report(self, report: TrainerReport) -> None:
        """Pass on the trainer's report; where a summary becomes due with it, the statistics go before it."""
        summary_freq = self._settings.summary_freq
        if report.step // summary_freq > self._reported_step // summary_freq:
            self.report()
        self._reported_step = report.step
        if self._epochs is not None:
            self._epochs.advance(report.step)
        self.control.send(report)

    def _end_epoch(self, step: int, values: Mapping[str, float]) -> None:
        self.control.send(EpochEnded(self.plan.behavior, step, dict(values)))


def _agents(config: RunConfig) -> int:
    """Count the agents that act at a time, or did in the run that is replayed, whatever the YAML's environments are."""
    recorded = recorded_agents(config.replay.streams) if config.replay is not None else None
    return recorded or agents_of(config)
