"""The terminal: the log, with ML-Agents' summary lines and hyperparameters, and the run's live table below the log.

The log also goes to a file in the run's folder. The live table shows learning progress first, then speed and the queues
that limit it. Main passes a `ProgressSnapshot` to the table when `due()` returns True. Without a terminal, no table is
shown.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from io import TextIOWrapper
from pathlib import Path
from textwrap import wrap
from types import TracebackType
from typing import Any, TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.live import Live
from rich.text import Text

from headrace.pipeline.common.errors import RunError, RunFailed
from headrace.pipeline.common.global_state_guard import OURS, keeping_handler
from headrace.pipeline.common.output import EveryRecord, json_lines, own_stream
from headrace.pipeline.reporting.statistics import PIPELINE, StatisticsWriter, Summary
from headrace.pipeline.reporting.time_shares import Bottleneck
from headrace.queues.disks import Disks, current_disks
from headrace.queues.files import REAL, File

log = logging.getLogger(__name__)

DETAIL = "detail"
"""Attribute that marks a log record as being only for the log file: `extra={DETAIL: True}`."""
PLAIN_FORMAT = "[%(levelname)s] %(message)s"
DEBUG_FORMAT = "%(asctime)s %(levelname)s [%(filename)s:%(lineno)d] %(message)s"

REWARD = "Environment/Cumulative Reward"
EPISODE_LENGTH = "Environment/Episode Length"
GROUP_REWARD = "Environment/Group Cumulative Reward"
ELO = "Self-play/ELO"
HELD_OUT = "Policy/Held-out Log Likelihood"
IS_TRAINING = "Is Training"


class ConsoleHandler(logging.Handler):
    """Writes log lines to a stream, by default to the current `sys.stdout`.

    `logging.StreamHandler` keeps writing to its original stream, which would overwrite a live display: the display
    replaces `sys.stdout` to keep other lines above itself.
    """

    def __init__(self, stream: TextIO | None = None, name: str = "The output") -> None:
        super().__init__()
        self._stream = stream
        self._called = name
        self._failed = False
        self._disks = current_disks()  # of the run, for records of all threads

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            line = self.format(record) + "\n"
            if self._stream is not None:
                with self._disks.used():
                    self._stream.write(line)
                return
            stream = own_stream("stdout")
            stream.write(line)
            stream.flush()
        except OSError as error:
            if not self._failed:
                self._failed = True
                with suppress(OSError, AttributeError):  # the error may be impossible to report
                    own_stream("stderr").write(
                        f"[WARNING] {self._called} can't be written: {error.strerror or error}. Training continues.\n"
                    )
        except Exception:  # like every handler of the standard library: a log line never ends the program
            self.handleError(record)

    def close_stream(self) -> None:
        """Close the handler's stream; later lines are dropped."""
        self.close()
        if self._stream is not None:
            with suppress(OSError), Disks(limit_s=1.0).used():  # already reported
                self._stream.close()


class LevelledLines(EveryRecord):
    """Prefixes each line of a warning or error with its level; other records are unchanged."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        text = super().format(record)
        return text if record.levelno < logging.WARNING else text.replace("\n", f"\n[{record.levelname}] ")


def configure_logging(debug: bool = False, stream: TextIO | None = None, details: bool = True) -> ConsoleHandler:
    """Make only the loggers of Headrace's packages write lines.

    A second call overrides the first. For commands only: a program that calls `run()` configures logging itself.

    Args:
        debug: True to also write per-batch messages, each with its time and its location in the code.
        stream: stream to write to; standard output by default.
        details: True to also write records marked as details, which are meant for the log file.
    """
    handler = ConsoleHandler(stream)
    if not (details or debug):
        handler.addFilter(lambda record: not hasattr(record, DETAIL))
    lines = json_lines()
    handler.setFormatter(lines or LevelledLines(DEBUG_FORMAT if debug else PLAIN_FORMAT, "%Y-%m-%d %H:%M:%S"))
    if logging.lastResort is not None:  # this handler writes other libraries' warnings
        logging.lastResort.setFormatter(lines or LevelledLines(PLAIN_FORMAT))
    logger = logging.getLogger(OURS)
    for earlier in [old for old in logger.handlers if isinstance(old, ConsoleHandler)]:
        logger.removeHandler(earlier)
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if debug else logging.INFO)
    logger.propagate = False  # a library's root handler would write every line again
    return handler


def summary_line(category: str, summaries: Mapping[str, Summary], step: int, elapsed: float) -> str:
    """Return ML-Agents' console line for one behaviour.

    Args:
        category: the behaviour's name.
        summaries: the period's summaries, keyed by name. `Environment/Cumulative Reward` is present if an episode
            ended, `Is Training` if the behaviour may not be training, `Self-play/ELO` if a rating was recorded. `bc`
            plays no episodes, so the likelihood of held-out data replaces the reward.
        step: nominal step of the summary.
        elapsed: seconds since the process started.
    """
    parts = [category, f"Step: {step}", f"Time Elapsed: {elapsed:.3f} s"]
    reward, group_reward = summaries.get(REWARD), summaries.get(GROUP_REWARD)
    if reward is None:
        held_out = summaries.get(HELD_OUT)
        parts.append(
            "No episode was completed since last summary"
            if held_out is None
            else f"Held-out Log Likelihood: {held_out.mean:.3f}"
        )
    else:
        parts.append(f"Mean Reward: {reward.mean:.3f}")
        # ML-Agents shows the group's reward instead of the spread.
        parts.append(
            f"Mean Group Reward: {group_reward.mean:.3f}" if group_reward else f"Std of Reward: {reward.std:.3f}"
        )
    training = summaries.get(IS_TRAINING)
    parts.append("Training" if training is None or training.last else "Not Training")
    if ELO in summaries:
        parts.append(f"ELO: {summaries[ELO].mean:.3f}")
    return ". ".join(parts) + "."


def hyperparameters_text(value: object, depth: int = 0) -> str:
    """Return settings as lines of tab, key, colon, tab and value; nested settings are indented."""
    if not isinstance(value, Mapping):
        return str(value)
    lines = (f"\t{'  ' * depth}{key}:\t{hyperparameters_text(inner, depth + 1)}" for key, inner in value.items())
    return ("\n" if depth else "") + "\n".join(lines)


class ConsoleWriter(StatisticsWriter):
    """A writer that logs a line for each behaviour's summary.

    Args:
        elapsed: returns the seconds since the process started.
    """

    def __init__(self, elapsed: Callable[[], float]) -> None:
        self._elapsed = elapsed

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        """Log a behaviour's summary line; the `Pipeline` category has no line."""
        if category != PIPELINE:
            line = summary_line(category, summaries, step, self._elapsed())
            log.info("%s", line, extra={"behavior": category, "step": step})

    def add_property(self, category: str, name: str, value: object) -> None:
        """Log a behaviour's hyperparameters as a block of lines."""
        if name == "hyperparameters":
            text = "Hyperparameters for behavior name %s:\n%s"
            log.info(text, category, hyperparameters_text(value), extra={DETAIL: True, "behavior": category})


FILE = "run.log"
_FORMAT = "%(asctime)s [%(levelname)s] %(message)s"


@contextmanager
def logged_to(folder: Path, append: bool, shown: Sequence[str] = ()) -> Iterator[None]:
    """Also write Headrace's log records to `run_logs/run.log` within this context; a disk error affects only the log.

    Args:
        folder: `results/<run-id>`.
        append: True to keep the lines from an earlier part of the run.
        shown: warnings that the console showed before the folder was open; they become the log's first lines.
    """
    path = folder / "run_logs" / FILE
    try:
        REAL.make_folder(path.parent)
        raw: Any = File(path, "ab" if append else "wb")
        file = TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)
    except OSError as error:
        log.warning("%s can't be written: %s. Training continues without it.", path, error.strerror)
        yield
        return
    handler = ConsoleHandler(file, str(path))
    handler.setFormatter(LevelledLines(_FORMAT, "%Y-%m-%d %H:%M:%S"))
    logger = logging.getLogger(OURS)
    for text in shown:
        handler.handle(log.makeRecord(log.name, logging.WARNING, __file__, 0, text, (), None))
    try:
        with _writing_to(handler, logger):
            yield
    except (RunError, RunFailed) as error:  # the command prints this after the run
        handler.handle(log.makeRecord(log.name, logging.ERROR, __file__, 0, str(error), (), None))
        raise
    finally:
        handler.close_stream()


_files: list[logging.Handler] = []
"""Handlers for open log files; several runs may be active in different threads."""
_files_lock = threading.Lock()
_undoing = ExitStack()
"""Callbacks that restore the loggers' levels when the last log file closes."""


@contextmanager
def _writing_to(handler: logging.Handler, logger: logging.Logger) -> Iterator[None]:
    """Send runs' log records to a file, regardless of the log level that a Python caller has set."""
    with _files_lock:
        if not _files:
            _let_pass(logger, _undoing)
        _files.append(handler)
        logger.addHandler(handler)
    try:
        with keeping_handler(logger, handler):
            yield
    finally:
        with _files_lock:
            logger.removeHandler(handler)
            _files.remove(handler)
            if not _files:
                _undoing.close()


def _let_pass(logger: logging.Logger, undoing: ExitStack) -> None:
    """Lower a logger's level to INFO, without sending additional records to existing handlers."""
    wanted = logger.getEffectiveLevel()
    if wanted <= logging.INFO:
        return

    def as_before(record: logging.LogRecord) -> bool:
        if record.levelno >= wanted or not record.name.startswith(OURS):
            return True
        here: logging.Logger | None = logging.getLogger(record.name)
        while here is not None and here is not logger and not here.level:
            here = here.parent
        return here is not logger  # the caller has set a level for one of Headrace's loggers

    for handler in (*logger.handlers, *logging.getLogger().handlers):
        handler.addFilter(as_before)
        undoing.callback(handler.removeFilter, as_before)
    undoing.callback(logger.setLevel, logger.level)
    logger.setLevel(logging.INFO)


SHORTEST_INTERVAL_S = 0.25
LONGEST_INTERVAL_S = 2.0
COST_SHARE = 0.01
"""Maximum fraction of the time spent on rendering. To respect it, a table with many rows is updated less often."""
LEAST_WAIT = 0.1
"""Minimum fraction of the time that producers must wait for a queue before the table shows the queue."""
LARGE = 1e9
"""Magnitude at or above which numbers are written with an exponent."""
ROW_STAYS_S = 5.0
"""Seconds that a queue's row stays after its producers stop waiting, to prevent the table from flickering."""


@dataclass(frozen=True, slots=True)
class BehaviorProgress:
    """Progress of one behaviour. A value is None while it is unknown."""

    name: str
    steps: int
    max_steps: int | None
    """None if the behaviour has no end: it only plays, in inference or together with others that learn."""
    steps_per_s: float
    """Recent steps per second, not the average since the start."""
    mean_reward: float | None = None
    elo: float | None = None
    policy_lag: float | None = None
    """Mean number of updates that the acting policies were behind the newest one, in the last summary."""
    updates: int = 0
    reward_std: float | None = None
    """Standard deviation of the returns in the last summary."""
    episode_length: float | None = None
    """Mean episode length in steps, in the last summary."""

    @property
    def seconds_left(self) -> float | None:
        """Seconds until `max_steps` at the current speed; None at speed 0 or without `max_steps`."""
        left = math.inf if self.max_steps is None else max(0, self.max_steps - self.steps)
        if not left:
            return 0.0
        return left / self.steps_per_s if self.steps_per_s > 0 and left < math.inf else None


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """Depth of one queue, and how long its producers and consumers waited."""

    name: str
    depth: int
    bound: int
    high_water: int
    """The largest depth of the queue so far."""
    producers_wait: float
    """Fraction of the last second (0 to 1) in which producers waited for space; a high value means slow consumers."""
    consumers_wait: float
    """Fraction of the last second (0 to 1) in which consumers waited for items; a high value means slow producers."""
    items_per_s: float = 0.0
    """Items that passed through the queue in the last second."""


@dataclass(frozen=True, slots=True)
class ProgressSnapshot:
    """A run's progress at one moment."""

    elapsed: float
    """Seconds since the run started."""
    behaviors: tuple[BehaviorProgress, ...] = ()
    queues: tuple[QueueProgress, ...] = ()
    bottleneck: Bottleneck | None = None
    """The run's bottleneck; None if it is not known yet."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Fraction of the time (0 to 1) in which each part works or waits, keyed by statistic."""
    paused: bool = False
    """True while the run is paused by a user. During a pause, speeds and the remaining time are meaningless."""

    @property
    def seconds_left(self) -> float | None:
        """Seconds until every behaviour with an end reaches `max_steps`; None if unknown for any of them."""
        left = [behavior.seconds_left for behavior in self.behaviors if behavior.max_steps is not None]
        estimates = [seconds for seconds in left if seconds is not None]
        return max(estimates) if estimates and len(estimates) == len(left) else None


class Progress:
    """A context manager that shows snapshots, at most four a second and for at most 1 % of the time.

    Args:
        enabled: False to show nothing, for example if the console is not a terminal.
        clock: returns seconds from any origin.
        console: console on which to show the table; defaults to a new one on standard output.
        detailed: True to show all queues and the policy lag.
    """

    def __init__(
        self,
        enabled: bool,
        clock: Callable[[], float] = time.monotonic,
        console: Console | None = None,
        detailed: bool = False,
    ) -> None:
        self._detailed = detailed
        self._waited: dict[str, float] = {}
        self._clock = clock
        self._next = clock()
        self._console = console or Console()
        self._live: Live | None = None
        self._latest: ProgressSnapshot | None = None
        self._enabled = enabled and self._console.is_terminal

    def due(self) -> bool:
        """Return True if `update` would show a snapshot now; call this before making a snapshot."""
        return self._live is not None and self._clock() >= self._next

    def update(self, snapshot: ProgressSnapshot) -> None:
        """Show a snapshot, unless one was shown very recently. The last snapshot is always shown at the end."""
        self._latest = snapshot
        if self.due():
            self._show(snapshot)

    def __enter__(self) -> Progress:
        if self._enabled:
            # No refresh thread, because it could take the GIL from the event loop at any moment. Standard output and
            # standard error are redirected, so their lines appear above the table.
            self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=True, redirect_stderr=True)
            with self._until_terminal_is_lost():
                self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._until_terminal_is_lost():
            if self._live is not None:
                if self._latest is not None:
                    self._draw(self._latest, refresh=False)
                self._live.stop()
                self._live = None

    @contextmanager
    def _until_terminal_is_lost(self) -> Iterator[None]:
        """Stop rendering if the terminal is closed or its connection is lost."""
        try:
            yield
        except OSError:
            live, self._live = self._live, None
            with suppress(OSError):
                if live is not None:
                    live.stop()  # it restores standard output and error first

    def _show(self, snapshot: ProgressSnapshot) -> None:
        started = self._clock()
        with self._until_terminal_is_lost():
            self._draw(snapshot, refresh=True)
        finished = self._clock()
        pause = (finished - started) / COST_SHARE
        self._next = finished + min(max(pause, SHORTEST_INTERVAL_S), LONGEST_INTERVAL_S)

    def _draw(self, snapshot: ProgressSnapshot, refresh: bool) -> None:
        assert self._live is not None
        text = render(snapshot, self._detailed, self._queues_of(snapshot), self._console.width)
        self._live.update(text, refresh=refresh)

    def _queues_of(self, snapshot: ProgressSnapshot) -> Sequence[QueueProgress]:
        """Return the queues to show: all of them, or only those whose producers wait or recently waited."""
        if self._detailed:
            return snapshot.queues
        now = self._clock()
        self._waited.update({queue.name: now for queue in snapshot.queues if queue.producers_wait >= LEAST_WAIT})
        return [queue for queue in snapshot.queues if now - self._waited.get(queue.name, -math.inf) < ROW_STAYS_S]


def render(snapshot: ProgressSnapshot, detailed: bool, queues: Sequence[QueueProgress], width: int = 10**6) -> Text:
    """Render a snapshot: the times, a table of behaviours and a table of queues; long names are shortened.

    This function lays out the columns itself because it takes only 0.2 ms for ten rows; `rich.table.Table` takes 4 ms.
    """
    text = Text(_times(snapshot), no_wrap=True, overflow="ellipsis")
    if snapshot.bottleneck is not None and not snapshot.paused:
        text.append("\n" + "\n".join(wrap(snapshot.bottleneck.text, width)))
    if snapshot.behaviors:
        left_out = {"ELO"} if all(behavior.elo is None for behavior in snapshot.behaviors) else set()
        left_out |= set() if detailed else {"lag"}
        kept = [number for number, name in enumerate(BEHAVIOR_COLUMNS) if name not in left_out]
        rows = [BEHAVIOR_COLUMNS, *(_behavior_cells(behavior, snapshot.paused) for behavior in snapshot.behaviors)]
        _append_table(text, [tuple(row[number] for number in kept) for row in rows], width)
    if queues:
        _append_table(text, [QUEUE_COLUMNS, *map(_queue_cells, queues)], width)
    return text


def _times(snapshot: ProgressSnapshot) -> str:
    left = None if snapshot.seconds_left is None else f", about {_duration(snapshot.seconds_left)} left"
    return f"{_duration(snapshot.elapsed)} elapsed" + (", paused" if snapshot.paused else left or "")


BEHAVIOR_COLUMNS = ("behavior", "steps", "", "reward", "± SD", "ELO", "length", "steps/s", "updates", "lag")


def _behavior_cells(behavior: BehaviorProgress, paused: bool) -> tuple[str, ...]:
    return (
        behavior.name,
        f"{behavior.steps:,}" + ("" if behavior.max_steps is None else f" / {behavior.max_steps:,}"),
        "" if behavior.max_steps is None else f"{behavior.steps / max(1, behavior.max_steps):.0%}",
        _number(behavior.mean_reward, 3),
        _number(behavior.reward_std, 3),
        _number(behavior.elo, 1),
        _number(behavior.episode_length, 1),
        "paused" if paused else f"{behavior.steps_per_s:,.0f}",
        f"{behavior.updates:,}",
        _number(behavior.policy_lag, 2),
    )


QUEUE_COLUMNS = ("queue", "depth", "high water", "producers wait", "consumers wait")


def _queue_cells(queue: QueueProgress) -> tuple[str, ...]:
    return (
        queue.name,
        f"{queue.depth} / {queue.bound}",
        f"{queue.high_water}",
        f"{queue.producers_wait:.0%}",
        f"{queue.consumers_wait:.0%}",
    )


SHORTEST_NAME = 10
"""Minimum width of a name in characters, even if the numbers then have too little space."""


def _append_table(text: Text, rows: list[tuple[str, ...]], width: int) -> None:
    """Append rows as lines, the header row first; the first column is left-aligned, the others are right-aligned."""
    others = sum(2 + max(map(cell_len, column)) for column in [*zip(*rows, strict=True)][1:])
    rows = [(_shortened(row[0], max(SHORTEST_NAME, width - others)), *row[1:]) for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = [" " * (width - cell_len(cell)) + cell for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0] + " " * (widths[0] - cell_len(row[0]))
        text.append("\n" + "  ".join(cells), style="" if number else "bold")


def _shortened(name: str, width: int) -> str:
    """Shorten a long name in the middle, because many names differ only in their last characters."""
    if cell_len(name) <= width:
        return name
    end = name[-1:]
    while cell_len(name[-len(end) - 1 :]) <= (width - 1) // 2:
        end = name[-len(end) - 1 :]
    return f"{set_cell_size(name, width - 1 - cell_len(end))}…{end}"


def _number(value: float | None, digits: int) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if abs(value) < LARGE else f"{value:.2e}"


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
