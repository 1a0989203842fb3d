"""Playing with trained policies: what stands in a trainer's place when nothing is to be learned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pipeline.errors import RunError
from pipeline.export import numbered, read_export
from queues.messages import PolicyUpdate, TrajectoryBatch
from stages.stage import Stage, StageContext
from stages.trainer.stage import TrainerReport


class InferenceStage(Stage[TrajectoryBatch, None]):
    """The end of the line for played trajectories: counts steps and episodes, and tells how they went.

    Args:
        behavior: the behaviour name.
        report: called after each batch.
    """

    def __init__(self, behavior: str, report: Callable[[TrainerReport], None]) -> None:
        self._behavior = behavior
        self._report = report
        self._context = StageContext("inference")
        self._steps = 0
        self._returns: list[float] = []

    def start(self, context: StageContext) -> None:
        """Take up the context."""
        self._context = context

    def process(self, item: TrajectoryBatch) -> Iterator[None]:
        """Count."""
        self._steps += item.num_rows
        if item.episodes:
            returns = item.episodes["episode_returns"].tolist()
            self._returns = [*self._returns, *returns][-100:]
            statistics = self._context.statistics
            statistics.extend(self._behavior, "Environment/Cumulative Reward", returns, "histogram")
            lengths = item.episodes["episode_lengths"].tolist()
            statistics.extend(self._behavior, "Environment/Episode Length", lengths, "mean")
        recent = float(np.mean(self._returns)) if self._returns else None
        self._report(TrainerReport(self._behavior, self._steps, 0, False, recent, len(self._returns), 0.0, {}))
        yield from ()


def trained_policy(run_folder: Path, behavior: str) -> PolicyUpdate:
    """The newest policy that a run has exported for a behaviour.

    Raises:
        RunError: if there is none, or it can't be read.
    """
    found = numbered(run_folder / behavior, behavior)
    if not found:
        raise RunError(
            f"{run_folder / behavior} holds no trained policy ({behavior}-<step>.pt): train the run first, or give "
            "its name with --run-id"
        )
    try:
        return read_export(found[-1]).update
    except (OSError, ValueError) as error:
        raise RunError(str(error)) from error
