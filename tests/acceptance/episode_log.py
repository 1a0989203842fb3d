"""A stage that writes the return of every episode into a file: what acceptance is judged by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from stages import Stage, StageContext, TrajectoryBatch


class EpisodeLog(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Writes a line per episode, `behaviour return length`, and passes batches on untouched.

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
        assert self._file is not None, "started"
        if item.episodes:
            returns, lengths = item.episodes["episode_returns"], item.episodes["episode_lengths"]
            for total, length in zip(returns.tolist(), lengths.tolist(), strict=True):
                self._file.write(f"{item.behavior} {total!r} {length}\n")
        yield item

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
