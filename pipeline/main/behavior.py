"""The state of one behaviour in main."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headrace.config import BehaviorSettings
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.trajectory_path import TrajectoryPath
from headrace.pipeline.run_folder.training_status import ExportEntry
from headrace.queues.specs import BehaviorSpec
from headrace.stages.trainer.report import TrainerReport


@dataclass
class BehaviorState:
    """One behaviour: its way from the actors to the trainer and back, and what the trainer has reached."""

    behavior: str
    spec: BehaviorSpec
    settings: BehaviorSettings
    path: TrajectoryPath
    learner: HostHandle | None = None
    ready: bool = False
    """True once its trainer is made, with the state that it resumes from, and again once a lost one is replaced."""
    was_ready: bool = False
    """True once it was ready for the first time."""
    step: int = 0
    version: int = 0
    sent: int = 0
    """Version of the newest policy that has come from its trainer."""
    recent_return: float | None = None
    done: bool = False
    ended_by: str = ""
    """Why its trainer is done before max_steps; empty if it is not."""
    next_checkpoint: int = 0
    exports: list[ExportEntry] = field(default_factory=list)

    @property
    def elo(self) -> float | None:
        """Rating of the newest policy, with self-play."""
        return self.path.elo

    @property
    def export(self) -> Path | None:
        """The newest exported policy, as a `.pt` file."""
        if not self.exports:
            return None
        newest = self.exports[-1]
        return Path(newest.auxiliary_file_paths[0] if newest.auxiliary_file_paths else newest.file_path)

    def add_export(self, entry: ExportEntry) -> None:
        """A policy was exported; a resumed run's first one may replace the file of the same step."""
        others = [e for e in self.exports if e.file_path != entry.file_path and Path(e.file_path).exists()]
        self.exports = [*others, entry]

    def start_at(self, step: int) -> None:
        """The trainer goes on from this step."""
        self.step = step
        self._schedule(step)

    def checkpoint_begun(self) -> None:
        """A checkpoint begins: the next one is due at the next multiple of `checkpoint_interval`, as in ML-Agents."""
        self._schedule(self.step)

    def receive_report(self, report: TrainerReport) -> bool:
        """Keep what a trainer reports; return True if a checkpoint is due, until one begins."""
        self.step, self.version, self.done = report.step, report.version, report.done
        self.recent_return, self.ended_by = report.recent_return, report.ended_by
        return self.step >= self.next_checkpoint

    def _schedule(self, step: int) -> None:
        interval = self.settings.checkpoint_interval
        self.next_checkpoint = step + interval - step % interval
