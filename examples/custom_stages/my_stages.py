"""Three stages for trajectories, used by config.yaml in this folder. docs/custom-stages.md explains them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from headrace import Stage, StageContext, TrajectoryBatch


class ClipReward(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Clips the reward of every step.

    Args:
        limit: rewards are clipped to [-limit, limit].
    """

    def __init__(self, limit: float = 1.0) -> None:
        if limit <= 0:
            raise ValueError(f"limit: expected more than 0, got {limit}")
        self._limit = limit

    def process(self, batch: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        """Pass on a copy of the batch with clipped rewards."""
        yield batch.replace(rewards=batch.rewards.clip(-self._limit, self._limit))


class DropShortTrajectories(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Drops trajectories that ended after a few steps, and counts them.

    Trajectories that were cut and continue in a later batch pass, however short they are; they are cut at
    `time_horizon`, or when the trainer's buffer needs no more rows. Episodes that ended in a batch stay in it, so the
    reported mean reward is still that of all episodes.

    Args:
        min_steps: ended trajectories with fewer steps are dropped.
    """

    def __init__(self, min_steps: int) -> None:
        self._min_steps = min_steps
        self._dropped = 0
        self._context = StageContext("drop-short")

    def start(self, context: StageContext) -> None:
        """Keep the context, which receives the statistics."""
        self._context = context

    def process(self, batch: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        """Pass on trajectories that are long enough, and all episodes that ended."""
        keep = (batch.lengths >= self._min_steps) | ~(batch.terminated | batch.truncated)
        self._dropped += int((~keep).sum())
        self._context.statistics.add(batch.behavior, "Custom/Dropped Trajectories", self._dropped, "last")
        yield batch if keep.all() else batch.select(keep)

    def state_dict(self) -> Mapping[str, Any]:
        """Return the count, which continues after a resume."""
        return {"dropped": self._dropped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the count that `state_dict` returned."""
        self._dropped = state["dropped"]


class EpisodeReturnsCsv(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Writes a line for each finished episode to a CSV file in the run's folder; passes everything on.

    Args:
        file: the file's name; `{name}` and `{replica}` stand for the stage's own. Use them if the stage has several
            instances: one for each replica of an actor host, or in main one for each behaviour.
    """

    def __init__(self, file: str = "{name}-{replica}.csv") -> None:
        self._file_name = file
        self._file: TextIO

    def start(self, context: StageContext) -> None:
        """Open the file for appending, because it already has lines after a resume."""
        assert context.run_folder is not None, "a stage that writes files needs a run folder"
        path = context.run_folder / self._file_name.format(name=context.name, replica=context.replica)
        self._file = path.open("a", newline="", encoding="utf-8")
        if self._file.tell() == 0:
            csv.writer(self._file).writerow(["behavior_id", "agent", "return", "length"])

    def process(self, batch: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        """Write the episodes that ended in this batch."""
        if batch.episodes:
            names = ("episode_agent_ids", "episode_returns", "episode_lengths")
            columns = (batch.episodes[name].tolist() for name in names)
            rows = csv.writer(self._file)
            rows.writerows((batch.behavior_id, *row) for row in zip(*columns, strict=True))
        yield batch

    def stop(self) -> None:
        """Close the file."""
        if hasattr(self, "_file"):  # stop is called even if start failed
            self._file.close()

    def state_dict(self) -> Mapping[str, Any]:
        """Return the file's length at the checkpoint."""
        self._file.flush()
        return {"size": self._file.tell()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Remove lines written after the checkpoint, because those episodes are played again."""
        self._file.truncate(state["size"])
