"""A run's live table in a terminal: learning progress first, then speed and the queues that limit it.

Main passes a `ProgressSnapshot` when `due()` returns True. Log lines (`console`) appear above the table. Without a
terminal, no table is shown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from textwrap import wrap
from types import TracebackType

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from headrace.pipeline.reporting.time_shares import Bottleneck

SHORTEST_INTERVAL_S = 0.25
LONGEST_INTERVAL_S = 2.0
COST_SHARE = 0.01
"""Maximum fraction of the time spent on rendering. To respect it, a table with many rows is updated less often."""
HOLDS_UP = 0.1
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
    max_steps: int
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
        """Seconds until `max_steps` at the current speed; None at speed 0."""
        left = max(0, self.max_steps - self.steps)
        if not left:
            return 0.0
        return left / self.steps_per_s if self.steps_per_s > 0 else None


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
        """Seconds until every behaviour reaches `max_steps`; None if unknown for any behaviour."""
        left = [behavior.seconds_left for behavior in self.behaviors]
        known = [seconds for seconds in left if seconds is not None]
        return max(known) if known and len(known) == len(left) else None


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
        self._drawn: tuple[int, list[int]] = (0, [])
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
            with self._while_there():
                self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._while_there():
            if self._live is not None:
                if self._latest is not None:
                    self._draw(self._latest, refresh=False)
                self._live.stop()
                self._live = None

    @contextmanager
    def _while_there(self) -> Iterator[None]:
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
        with self._while_there():
            self._draw(snapshot, refresh=True)
        finished = self._clock()
        pause = (finished - started) / COST_SHARE
        self._next = finished + min(max(pause, SHORTEST_INTERVAL_S), LONGEST_INTERVAL_S)

    def _draw(self, snapshot: ProgressSnapshot, refresh: bool) -> None:
        assert self._live is not None
        self._erase_what_was_wrapped()
        width = self._console.width
        text = render(snapshot, self._detailed, self._queues_of(snapshot), width)
        self._drawn = width, [min(cell_len(line), width) for line in text.plain.split("\n")]
        self._live.update(text, refresh=refresh)

    def _erase_what_was_wrapped(self) -> None:
        """Erase the lines that wrapping added to the table when the terminal became narrower.

        Rich moves the cursor up by the number of lines that it wrote, so the first lines would stay on the screen.
        """
        width, lengths = self._drawn
        now = self._console.width
        if now < width:
            added = sum(-(-length // now) - 1 for length in lengths if length)
            self._console.control(*[Control((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))] * added)

    def _queues_of(self, snapshot: ProgressSnapshot) -> Sequence[QueueProgress]:
        """Return the queues to show: all of them, or only those whose producers wait or recently waited."""
        if self._detailed:
            return snapshot.queues
        now = self._clock()
        self._waited.update({queue.name: now for queue in snapshot.queues if queue.producers_wait >= HOLDS_UP})
        return [queue for queue in snapshot.queues if now - self._waited.get(queue.name, -math.inf) < ROW_STAYS_S]


def render(snapshot: ProgressSnapshot, detailed: bool, queues: Sequence[QueueProgress], width: int = 10**6) -> Text:
    """Render a snapshot: the times, a table of behaviours and a table of queues; long names are shortened.

    This function lays out the columns itself because it takes only 0.2 ms for ten rows; `rich.table.Table` takes 4 ms.
    """
    text = Text(_times(snapshot), no_wrap=True, overflow="ellipsis")
    if snapshot.bottleneck is not None and not snapshot.paused:
        text.append("\n" + "\n".join(wrap(snapshot.bottleneck.text, width)))
    if snapshot.behaviors:
        left_out = {"ELO"} if all(each.elo is None for each in snapshot.behaviors) else set()
        left_out |= set() if detailed else {"lag"}
        kept = [number for number, name in enumerate(BEHAVIOR_COLUMNS) if name not in left_out]
        rows = [BEHAVIOR_COLUMNS, *(_behavior_cells(each, snapshot.paused) for each in snapshot.behaviors)]
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
        f"{behavior.steps:,} / {behavior.max_steps:,}",
        f"{behavior.steps / max(1, behavior.max_steps):.0%}",
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
