"""CSV files: summaries, one file per behaviour and one for the pipeline, and `<Behavior>/monitor.csv`.

`monitor.csv` has one row per training episode, like the file of Stable-Baselines3's `Monitor`.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from headrace.pipeline.reporting.statistics import HIDDEN, StatisticsWriter, Summary
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.disks import answered
from headrace.queues.files import REAL, FileGuard, append, free_name, matching, read_file, write_atomic

FILE = "statistics.csv"
_FIRST = ("step", "time")


class CsvWriter(StatisticsWriter):
    """Writes tables: a file `statistics.csv` in each category's folder, with one row per summary.

    The columns are `step`, `time` (seconds since 1970) and the statistics, each as the number that TensorBoard shows. A
    cell is empty if the statistic had no value. When `write` returns, the row has been passed to the operating system.
    When a new statistic appears, the file is rewritten with another column.

    Args:
        run_folder: `results/<run-id>`.
        resume: True to keep existing rows up to the step at which the resumed run starts writing; False to delete old
            files.
        wall_clock: returns seconds since 1970.
    """

    def __init__(self, run_folder: Path, resume: bool = False, wall_clock: Callable[[], float] = time.time) -> None:
        self._run_folder = run_folder
        self._resume = resume
        self._wall_clock = wall_clock
        self._columns: dict[str, list[str]] = {}
        if not resume:
            for old in matching(run_folder, f"*/{FILE}"):
                REAL.remove(old)

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        """Write one row to the category's table."""
        values = {name: repr(float(summary.value)) for name, summary in summaries.items() if name not in HIDDEN}
        row = {"step": str(step), "time": f"{self._wall_clock():.3f}", **values}
        path = self._path(category)
        if category not in self._columns and self._resume:
            self._cut(category, step - 1)
        written = self._columns.get(category, [])
        new = [name for name in row if name not in written]
        there = answered(path, path.is_file)
        if new or not there:
            columns = list(dict.fromkeys([*_FIRST, *written, *row]))
            rows = [*(_rows(path) if written and there else ()), row]
            REAL.make_folder(path.parent)
            write_atomic(path, _table(columns, rows, header=True))
            self._columns[category] = columns
        else:
            append(path, _table(written, [row], header=False))

    def rewind(self, category: str, step: int) -> None:
        """Remove the rows beyond the step at which the run continues."""
        self._cut(category, step)

    def _path(self, category: str) -> Path:
        return behavior_folder(self._run_folder, category) / FILE

    def _cut(self, category: str, step: int) -> None:
        path = self._path(category)
        if not answered(path, path.is_file):
            return
        rows = [row for row in _rows(path) if int(row["step"]) <= step]
        columns = list(dict.fromkeys([*_FIRST, *(name for row in rows for name in row)]))
        write_atomic(path, _table(columns, rows, header=True))
        self._columns[category] = columns


def _rows(path: Path) -> list[dict[str, str]]:
    """Return a file's rows, without any row that a crash truncated."""
    text = read_file(path).decode()
    whole = io.StringIO(text[: text.rfind("\n") + 1], newline="")
    return [row for row in csv.DictReader(whole) if row["step"].lstrip("-").isdecimal() and None not in row.values()]


def _table(columns: Sequence[str], rows: Iterable[Mapping[str, str]], header: bool) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


log = logging.getLogger(__name__)

MONITOR_FILE = "monitor.csv"
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
        with self._guard.writing(f"{self._behavior}'s {MONITOR_FILE}", "its episodes are lost"):
            path = behavior_folder(self._run_folder(), self._behavior) / MONITOR_FILE
            first = count - len(returns) + 1
            if self._began is None or not answered(path, path.is_file):
                self._began = self._begin(path, first)
            at = round(self._wall_clock() - self._began, 6)
            rows = zip(returns, lengths, range(first, count + 1), strict=True)
            lines = [f"{round(value, 6)},{length},{at},{number}\n" for value, length, number in rows]
            append(path, "".join(lines).encode())

    def _begin(self, path: Path, first: int) -> float:
        """Start the table, keep any existing rows before episode `first`, and return the table's start time."""
        began, rows = self._made, list[str]()
        if first > 1 and answered(path, path.is_file):
            try:
                began, rows = _read(path, first)
            except ValueError:
                aside = free_name(path.with_name(f"{path.name}.damaged"))
                REAL.replace(path, aside)
                log.warning("%s can't be read. Starting a new file; the old one is now %s.", path, aside.name)
        REAL.make_folder(path.parent)
        lines = [f"#{json.dumps({'t_start': began, 'env_id': self._behavior})}", _HEADER, *rows]
        write_atomic(path, "".join(f"{line}\n" for line in lines).encode())
        return began


def _read(path: Path, first: int) -> tuple[float, list[str]]:
    """Return a table's start time and its rows before episode `first`, without any row that a crash truncated.

    Raises:
        ValueError: if Headrace did not write the table.
    """
    text = read_file(path).decode()
    head, header, *rows = text[: text.rfind("\n") + 1].splitlines()
    if header != _HEADER:
        raise ValueError(header)
    numbers = [int(row.rpartition(",")[2]) for row in rows]
    kept = [row for row, number in zip(rows, numbers, strict=True) if number < first]
    try:
        return float(json.loads(head[1:])["t_start"]), kept
    except (LookupError, TypeError) as error:
        raise ValueError(head) from error
