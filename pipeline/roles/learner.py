"""The learner host: one trainer, its input (from actors or a recording), its checkpoints and exports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np

from headrace.pipeline.common.graph import TRAINER
from headrace.pipeline.common.run_parts import learner_side
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
from headrace.pipeline.hosts.protocol import HostEdges, HostPlan
from headrace.pipeline.policies.export import export_policy
from headrace.pipeline.policies.onnx_export import OnnxExporter
from headrace.pipeline.reporting.episode_table import EpisodeTable
from headrace.pipeline.roles.device import choose_rounding, device_of
from headrace.pipeline.roles.senders import ReceiverTap, recorded_here
from headrace.pipeline.roles.training import TrainerHost
from headrace.pipeline.run_folder.atomic_files import FileGuard
from headrace.pipeline.run_folder.checkpoint import pack_state, unfinished_folder, unpack_state
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.ends import ItemSink, ItemSource, Sender
from headrace.stages.errors import StageError
from headrace.stages.loop import StageHooks, StageRunner
from headrace.stages.stage import Statistics
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas, torch_defaults
from headrace.stages.trainer.report import EpisodeSink, TrainerPort, TrainerReport
from headrace.stages.trainer.stage import TrainerStage

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

    async def _work(self) -> None:
        replicas = self.config.pipeline.hosts.learners.replicas
        device, why = device_of(self.config, self.plan.behavior)
        together = f", in {replicas} replicas" if replicas > 1 else ""
        log = self.stages.context(TRAINER).log
        log.info("%s learns on %s (%s)%s.", self.plan.behavior, device, why, together)
        configured, settings = self.config.torch_settings.precision, self._settings
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
        port = TrainerPort(self._report, lambda call: loop.call_later(SOON_S, call), self._episode_table())
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

    def _episode_table(self) -> EpisodeSink | None:
        """Return the function that records each episode in a table; None if the table is not configured."""
        wanted = self.config.pipeline.monitor_csv
        return EpisodeTable(self.plan.behavior, self.stages.folder.check).add if wanted else None

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
            self.stages.context(TRAINER).log.info(
                "%s: number of parameters in each network: %s.", plan.behavior, counts
            )
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
                    self._stage.begin_anew(message.number, weights)
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
            folder.mkdir(parents=True, exist_ok=True)
            trainer.save_bulk(folder)
            if self._shards is not None:
                self._shards.save(number)
        except OSError as error:
            self.control.send(PartFailed(number, self.stages.part_name(stage), str(error)))
            return
        self.stages.save_part(stage, number, state)

    @torch_defaults()
    def _export(self) -> None:
        assert self._stage is not None, "exports are made once there is a trainer"
        plan, trainer = self.plan, self._stage.trainer
        newest = self._stage.step, self._stage.version
        if newest == self._exported:  # the trainer has not learned since the last export
            return
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
                plan.behavior, newest[0], str(path), self._stage.recent_return, None if onnx is None else str(onnx)
            )
        )
        if self._onnx.refused:
            self.control.send(ExportFailed(plan.behavior, f"{path.with_suffix('.onnx')}: {self._onnx.refused}"))

    def _report(self, report: TrainerReport) -> None:
        """Send the trainer's report; if a summary becomes due with this report, send the statistics first."""
        summary_freq = self._settings.summary_freq
        if report.step // summary_freq > self._reported_step // summary_freq:
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


@dataclass(slots=True)
class _ValueRange:
    lowest: float = np.inf
    total: float = 0.0
    count: int = 0
    highest: float = -np.inf


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
        self._spreads: dict[str, _ValueRange] = {}

    def add(self, category: str, name: str, value: float, how: str = "mean") -> None:
        """Forward a value, and include it in the epoch."""
        self._statistics.add(category, name, value, how)
        measure, _, kind = name.rpartition(" ")
        if measure in _MEASURES:
            self._keep(_MEASURES[measure], kind, value)

    def extend(self, category: str, name: str, values: Iterable[float], how: str = "histogram") -> None:
        """Forward many values of one statistic, and include them in the epoch."""
        found = list(values)
        self._statistics.extend(category, name, found, how)
        if name == _RETURNS:
            for value in found:
                for kind in ("Min", "Mean", "Max"):
                    self._keep("EpRet", kind, value)

    def advance(self, step: int) -> None:
        """Update the trainer's step, and report an ended epoch.

        After a resume, the first report covers only part of an epoch.
        """
        epoch = step // self._every
        if self._epoch is not None and epoch > self._epoch:
            if self._spreads:
                self._ended(epoch * self._every, self._values())
            self._spreads = {}
        self._epoch = epoch

    def _keep(self, name: str, kind: str, value: float) -> None:
        spread = self._spreads.setdefault(name, _ValueRange())
        if kind == "Min":
            spread.lowest = min(spread.lowest, value)
        elif kind == "Max":
            spread.highest = max(spread.highest, value)
        else:
            spread.total += value
            spread.count += 1

    def _values(self) -> dict[str, float]:
        values = {}
        for name, spread in self._spreads.items():
            if spread.count:
                mean = spread.total / spread.count
                kinds = {"Min": spread.lowest, "Mean": mean, "Max": spread.highest}
                values.update({f"Epoch/{name} {kind}": value for kind, value in kinds.items()})
        return values
