"""What main knows of one behaviour while it is trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from config import BehaviorSettings
from pipeline.hosts.handle import HostHandle
from pipeline.main_path import MainPath
from pipeline.training_status import CheckpointEntry
from queues.specs import BehaviorSpec
from stages.trainer.stage import TrainerReport


@dataclass
class Line:
    """One behaviour: its way from the actors to the trainer and back, and what the trainer has reached."""

    behavior: str
    spec: BehaviorSpec
    settings: BehaviorSettings
    path: MainPath
    learner: HostHandle | None = None
    step: int = 0
    version: int = 0
    recent_return: float | None = None
    done: bool = False
    next_checkpoint: int = 0
    exports: list[CheckpointEntry] = field(default_factory=list)
    best: CheckpointEntry | None = None

    @property
    def elo(self) -> float | None:
        """Rating of the newest policy, with self-play."""
        return self.path.ghost.elo if self.path.ghost is not None else None

    @property
    def export(self) -> Path | None:
        """The newest exported policy."""
        return Path(self.exports[-1].file_path) if self.exports else None

    @property
    def checkpoint_interval(self) -> int:
        """Steps between checkpoints; with `even_checkpoints`, as many as are kept fit into the run."""
        settings = self.settings
        if settings.even_checkpoints and settings.keep_checkpoints > 0:
            return max(1, settings.max_steps // settings.keep_checkpoints)
        return settings.checkpoint_interval

    def start_at(self, step: int) -> None:
        """The trainer goes on from this step."""
        self.step = step
        self.next_checkpoint = step + self.checkpoint_interval - step % self.checkpoint_interval

    def saved(self) -> None:
        """A checkpoint is whole: the next one is due where a run that resumes from it would make it."""
        self.start_at(self.step)

    def take(self, report: TrainerReport) -> bool:
        """Take in a trainer's report; whether a checkpoint has become due."""
        self.step, self.version, self.done = report.step, report.version, report.done
        self.recent_return = report.recent_return
        if self.step < self.next_checkpoint:
            return False
        self.next_checkpoint = self.step + self.checkpoint_interval - self.step % self.checkpoint_interval
        return True
