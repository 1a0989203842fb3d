"""A table with one row per training episode, like Stable-Baselines3's `Monitor`: `<Behavior>/monitor.csv`."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.pipeline.reporting.csv_writer import append
from headrace.pipeline.run_folder.atomic_files import REAL, FileGuard, free_name, write_atomic
from headrace.pipeline.run_folder.names import behavior_folder

log = logging.getLogger(__name__)

FILE = "monitor.csv"
_HEADER = "r,l,t,episode"


class EpisodeTable:
    """A table with one row per training episode: return, length, seconds since the table was started, episode number.

    A run that resumes from a checkpoint first removes the rows of later episodes.

    Args:
        behavior: the behaviour name.
        run_folder: function that returns the current path of the run's folder, or raises an `OSError`.
        wall_clock: returns seconds since 1970.
    """

    def __init__(
        self, behavior: str, run_folder: Callable[[], Path], wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._behavior = behavior
        self._run_folder = run_folder
        self._wall_clock = wall_clock
        self._made = wall_clock()
        self._began: float | None = None
        self._guard = FileGuard(log)

    def add(self, count: int, returns: Sequence[float], lengths: Sequence[int]) -> None:
        """Write the episodes that have just ended.

        Args:
            count: total number of episodes that have ended, including the new ones.
            returns: return of each new episode.
            lengths: length of each new episode, as in `Environment/Episode Length`.
        """
        with self._guard.writing(f"{self._behavior}'s {FILE}", "its episodes are lost"):
            path = behavior_folder(self._run_folder(), self._behavior) / FILE
            first = count - len(returns) + 1
            if self._began is None or not path.is_file():
                self._began = self._begin(path, first)
            at = round(self._wall_clock() - self._began, 6)
            rows = zip(returns, lengths, range(first, count + 1), strict=True)
            lines = [f"{round(value, 6)},{length},{at},{number}\n" for value, length, number in rows]
            append(path, "".join(lines).encode())

    def _begin(self, path: Path, first: int) -> float:
        """Start the table, keep any existing rows before episode `first`, and return the table's start time."""
        began, rows = self._made, list[str]()
        if first > 1 and path.is_file():
            try:
                began, rows = _read(path, first)
            except ValueError:
                aside = free_name(path.with_name(f"{path.name}.damaged"))
                REAL.replace(path, aside)
                log.warning("%s can't be read. Starting a new file; the old one is now %s.", path, aside.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"#{json.dumps({'t_start': began, 'env_id': self._behavior})}", _HEADER, *rows]
        write_atomic(path, "".join(f"{line}\n" for line in lines).encode())
        return began


def _read(path: Path, first: int) -> tuple[float, list[str]]:
    """Return a table's start time and its rows before episode `first`, without any row that a crash truncated.

    Raises:
        ValueError: if Headrace did not write the table.
    """
    text = path.read_text(encoding="utf-8")
    head, header, *rows = text[: text.rfind("\n") + 1].splitlines()
    if header != _HEADER:
        raise ValueError(header)
    numbers = [int(row.rpartition(",")[2]) for row in rows]
    kept = [row for row, number in zip(rows, numbers, strict=True) if number < first]
    try:
        return float(json.loads(head[1:])["t_start"]), kept
    except (LookupError, TypeError) as error:
        raise ValueError(head) from error
