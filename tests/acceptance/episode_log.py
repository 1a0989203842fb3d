"""A stage that writes the return of every episode into a file: what acceptance is judged by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from headrace.queues.messages import Array
from headrace.stages import Stage, StageContext, TrajectoryBatch


class EpisodeLog(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Writes a line per episode, `behaviour return length`, and passes batches on untouched.

    For a group of agents that is over it writes one more, under the name `behaviour:group`, with the group's return.

    Args:
        path: the file; begun anew.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._file: TextIO | None = None

    def start(self, context: StageContext) -> None:
        """Open the file."""
        self._file = self._path.open("w", encoding="utf-8")

    def process(self, item: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        """Write, then pass on."""
        episodes = item.episodes
        if episodes:
            self._write(item.behavior, episodes["episode_returns"], episodes["episode_lengths"])
        if "episode_group_over" in episodes:
            over = episodes["episode_group_over"]
            returns, lengths = episodes["episode_group_returns"][over], episodes["episode_lengths"][over]
            self._write(f"{item.behavior}:group", returns, lengths)
        yield item

    def _write(self, name: str, returns: Array, lengths: Array) -> None:
        assert self._file is not None, "started"
        for total, length in zip(returns.tolist(), lengths.tolist(), strict=True):
            self._file.write(f"{name} {total!r} {length}\n")

    def stop(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def read_returns(path: Path) -> dict[str, list[float]]:
    """The returns of all episodes in order, by behaviour."""
    returns: dict[str, list[float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        behavior, total, _ = line.rsplit(" ", 2)
        returns.setdefault(behavior, []).append(float(total))
    return returns
