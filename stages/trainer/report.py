"""The report that a trainer stage sends to its host about the trainer's progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.queues.messages import TrajectoryBatch


@dataclass(frozen=True, slots=True)
class TrainerReport:
    """A trainer's progress; sent after each update, and sometimes between two updates."""

    behavior: str
    step: int
    version: int
    """Version of the trainer's newest policy: the number of calls to its `learn`."""
    done: bool
    """True once the trainer has stopped learning and only drains its input."""
    recent_return: float | None
    """Mean return of up to the last 100 finished episodes; None before the first one."""
    episodes: int
    returned: Mapping[int, int]
    """Per source, the total number of flow credits returned so far."""
    ended_by: str = ""
    """Why the trainer stopped before max_steps; empty if it did not."""
    held: int = 0
    """Flow credits of the rows that the trainer holds but has not learned from yet."""
    arrived: Mapping[int, int] = field(default_factory=dict)
    """Per source, the total number of flow credits that have arrived so far, both returned and for held rows."""
    returns: tuple[float, ...] = ()
    """Returns of the newest episodes that ended since the last report, as many as a curriculum needs, all from episodes
    begun under the same environment parameters."""
    parameter_generation: int = 0
    """Generation of the environment parameters under which the episodes in `returns` began."""
    collecting_s: tuple[float, ...] = ()
    """For each update since the last report, except a run's first update: seconds since the end of the previous
    update."""
    learning_s: tuple[float, ...] = ()
    """Durations in seconds of the updates that `collecting_s` covers."""
    updates: int = 0
    """Number of updates so far that changed weights; `version` also counts calls for which no update was due."""
    at: float = field(default_factory=time.monotonic)
    """Monotonic time of the report, measured in the reporting process."""


EpisodeSink = Callable[[int, Sequence[float], Sequence[int]], None]
"""Called with the number of episodes so far, and the returns and lengths of those that have just ended."""


@dataclass(frozen=True)
class TrainerPort:
    """The trainer stage's connection to its host."""

    report: Callable[[TrainerReport], None] = lambda report: None
    soon: Callable[[Callable[[], None]], object] = lambda call: None
    """Calls a function a little later, so that one report can cover several events."""
    each_episode: EpisodeSink | None = None
    """Called with the episodes that have just ended; None if nothing needs them."""
    each_batch: Callable[[TrajectoryBatch], None] | None = None
    """Called with each batch that the trainer has accepted; None if nothing needs them."""
