"""All curves of a run since its start, in bounded memory, built from live summaries or event files."""

from __future__ import annotations

import io
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from headrace.config.paths import name_of_file
from headrace.pipeline.reporting.statistics import HIDDEN, StatisticsWriter, Summary
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.files import File, matching

MOST_POINTS = 1024
"""Maximum number of points per curve; a curve that reaches the maximum is thinned to half as many points."""
MOST_CURVES = 2000
"""Maximum number of curves per run. A limit is needed because statistics' names may contain numbers."""
MOST_MARKS = 1000
"""Maximum number of marks per category; beyond the limit, the oldest marks are dropped."""
MARKS = "Marks/"
"""Prefix of the tags that marks have in event files."""
LESSON = "Environment/Lesson Number/"
Point = tuple[int, float, float]
"""A point of a curve: step, seconds, value."""


class Mark(NamedTuple):
    """An event to mark on the curves."""

    step: int
    at: float
    """Time of the event, in seconds."""
    kind: str
    """Kind of event: `set` (a hyperparameter was changed), `lesson`, `checkpoint` or `restart`."""
    text: str


@dataclass
class Curve:
    """One statistic over the run; each point is the mean of `stride` summaries."""

    stride: int = 1
    points: list[Point] = field(default_factory=list)
    _open: list[Point] = field(default_factory=list)

    def add(self, point: Point) -> None:
        """Add a summary's value."""
        self._open.append(point)
        if len(self._open) < self.stride:
            return
        self.points.append(_mean(self._open))
        self._open = []
        if len(self.points) >= MOST_POINTS:
            self.points = [_mean(self.points[at : at + 2]) for at in range(0, len(self.points), 2)]
            self.stride *= 2

    def rewind(self, step: int) -> None:
        """Remove all points beyond a step."""
        self.points = [point for point in self.points if point[0] <= step]
        self._open = [point for point in self._open if point[0] <= step]

    def plain(self) -> dict[str, list[float]]:
        """Return the curve as columns; the newest point may cover fewer than `stride` summaries."""
        points = [*self.points, *([_mean(self._open)] if self._open else [])]
        return {
            "steps": [step for step, _, _ in points],
            "times": [round(at, 1) for _, at, _ in points],
            "values": [float(f"{value:.6g}") for _, _, value in points],
        }


class History:
    """All of a run's curves, keyed by category (a behaviour, or `Pipeline`) and name. Thread-safe.

    Points and marks are added with seconds since 1970, and kept with seconds since the run's start, without the pauses
    before it was resumed.
    """

    def __init__(self) -> None:
        self._curves: dict[str, dict[str, Curve]] = {}
        self._lock = threading.Lock()
        self._count = 0
        self._fresh: list[tuple[str, str, Point]] = []
        self._marks: dict[str, list[Mark]] = {}
        self._fresh_marks: list[tuple[str, Mark]] = []
        self._lessons: dict[tuple[str, str], float] = {}
        self._began = self._newest = 0.0
        self.revision = 0
        """Version of the content, which increases with every change except additions. Readers must then reread
        everything."""

    def start(self, at: float) -> None:
        """Note when a process of the run started, once or more; the pause since the last event does not count."""
        with self._lock:
            self._began = max(self._began, at - self._newest)

    def _since_start(self, at: float) -> float:
        self._newest = max(self._newest, at - self._began)
        return at - self._began

    def add(self, category: str, name: str, point: Point) -> None:
        """Add a point to a curve.

        Ignore the point if it would begin a new curve and the history has `MOST_CURVES` already.
        """
        with self._lock:
            point = point[0], self._since_start(point[1]), point[2]
            named = self._curves.setdefault(category, {})
            if name not in named:
                if self._count >= MOST_CURVES:
                    return
                self._count += 1
                named[name] = Curve()
            named[name].add(point)
            self._fresh.append((category, name, point))
            if len(self._fresh) > 2 * MOST_CURVES:
                self._fresh.clear()
                self.revision += 1
            if name.startswith(LESSON):
                step, at, lesson = point
                if self._lessons.get((category, name), lesson) != lesson:
                    text = f"{name.removeprefix(LESSON)}: lesson {lesson:.0f}"
                    self._add_mark(category, Mark(step, at, "lesson", text))
                self._lessons[category, name] = lesson

    def mark(self, category: str, mark: Mark) -> None:
        """Add a mark; beyond the limit, the oldest mark is dropped."""
        with self._lock:
            self._add_mark(category, mark._replace(at=self._since_start(mark.at)))

    def _add_mark(self, category: str, mark: Mark) -> None:
        marks = self._marks.setdefault(category, [])
        marks.append(mark)
        del marks[:-MOST_MARKS]
        self._fresh_marks.append((category, mark))
        del self._fresh_marks[:-MOST_MARKS]

    def rewind(self, category: str, step: int, at: float) -> None:
        """Remove a category's points beyond the step at which it restarts, and mark the restart."""
        with self._lock:
            self.revision += 1
            for curve in self._curves.get(category, {}).values():
                curve.rewind(step)
            self._marks[category] = [mark for mark in self._marks.get(category, []) if mark.step <= step]
            self._add_mark(category, Mark(step, self._since_start(at), "restart", "restart"))

    def take_fresh(self) -> tuple[list[tuple[str, str, Point]], list[tuple[str, Mark]]]:
        """Return the points and marks added since the last call."""
        with self._lock:
            fresh, self._fresh = self._fresh, []
            marks, self._fresh_marks = self._fresh_marks, []
            return fresh, marks

    def marks(self) -> dict[str, list[Mark]]:
        """Return each category's marks."""
        with self._lock:
            return {category: [*marks] for category, marks in self._marks.items() if marks}

    def categories(self) -> list[str]:
        """Return the names of all behaviours, and `Pipeline`."""
        with self._lock:
            return [*self._curves]

    def curves(self, category: str) -> dict[str, list[Point]]:
        """Return the points of a category's curves, keyed by name."""
        with self._lock:
            return {name: [*curve.points, *curve._open] for name, curve in self._curves.get(category, {}).items()}

    def plain(self) -> dict[str, dict[str, dict[str, list[float]]]]:
        """Return all curves as plain data."""
        with self._lock:
            return {
                category: {name: curve.plain() for name, curve in sorted(named.items())}
                for category, named in self._curves.items()
            }

    def newest(self) -> dict[str, dict[str, float]]:
        """Return the newest value of each curve."""
        with self._lock:
            return {
                category: {
                    name: points[-1][2] for name, curve in named.items() if (points := curve._open or curve.points)
                }
                for category, named in self._curves.items()
            }


class HistoryWriter(StatisticsWriter):
    """A writer that adds summaries to a history.

    Args:
        history: the history.
        resumed: True if the history contains an earlier part of the run, which may extend beyond the resumed
            checkpoint.
        wall_clock: returns seconds since 1970.
    """

    def __init__(self, history: History, resumed: bool, wall_clock: Callable[[], float] = time.time) -> None:
        self._history = history
        self._resumed = resumed
        self._begun: set[str] = set()
        self._wall_clock = wall_clock

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        """Add a point to the curve of each statistic."""
        if self._resumed and category not in self._begun:
            self.rewind(category, step - 1)
        self._begun.add(category)
        now = self._wall_clock()
        for name, summary in summaries.items():
            if name not in HIDDEN:
                self._history.add(category, name, (step, now, summary.value))

    def rewind(self, category: str, step: int) -> None:
        """Remove the category's points beyond an earlier step."""
        self._begun.add(category)
        self._history.rewind(category, step, self._wall_clock())

    def mark(self, category: str, step: int, kind: str, text: str) -> None:
        """Add a mark to the category's curves."""
        self._history.mark(category, Mark(step, self._wall_clock(), kind, text))


def _mean(points: list[Point]) -> Point:
    step, at, _ = points[-1]
    return step, at, sum(value for _, _, value in points) / len(points)


_LENGTH = struct.Struct("<Q")
_HEAD, _TAIL = 12, 4
"""Number of bytes in a record before its content (the length and its checksum) and after it (the content's checksum).
"""
_MOST_BYTES = 64 * 2**20
"""Maximum size of a record in bytes; a larger size means that the file is damaged."""
_RESTART = 1
"""`SessionLog.START`: this status invalidates earlier events from its step onward."""


def read_events(run_folder: Path, behaviors: Iterable[str], history: History) -> None:
    """Add a run's event files to a history; a damaged file is read up to the damage.

    Args:
        run_folder: `results/<run-id>`.
        behaviors: names of the run's behaviours, which may differ from their folders' names.
        history: receives the points and marks.
    """
    names = {behavior_folder(run_folder, name).name: name for name in behaviors}
    for path in event_files(run_folder):
        category = names.get(path.parent.name, name_of_file(path.parent.name))
        for number, event in enumerate(_events(path)):
            if not number:
                history.start(event.wall_time)
            if event.HasField("session_log"):
                if event.session_log.status == _RESTART:
                    history.rewind(category, event.step - 1, event.wall_time)
                continue
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    history.add(category, value.tag, (event.step, event.wall_time, value.simple_value))
                elif value.tag.startswith(MARKS) and value.tensor.string_val:
                    text = value.tensor.string_val[0].decode(errors="replace")
                    history.mark(category, Mark(event.step, event.wall_time, value.tag.removeprefix(MARKS), text))
    history.take_fresh()


def event_files(run_folder: Path) -> list[Path]:
    """Return a run's event files, or another library's, which has no subfolders; the first process's files first."""
    found = [*matching(run_folder, "events.out.tfevents.*"), *matching(run_folder, "*/events.out.tfevents.*")]
    return sorted(found, key=lambda path: path.name)


def _events(path: Path) -> Iterator[Any]:
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto import event_pb2

    try:
        with io.BufferedReader(File(path), 1 << 20) as file:
            while len(head := file.read(_HEAD)) == _HEAD:
                (length,) = _LENGTH.unpack_from(head)
                if length > _MOST_BYTES:
                    return
                content = file.read(length)
                if len(file.read(_TAIL)) < _TAIL:
                    return
                yield event_pb2.Event.FromString(content)
    except (OSError, DecodeError):  # the readable part ends here
        return
