"""The report of a trainer stage to its host: the trainer's progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TrainerReport:
    """The progress of a trainer; sent after each update, and sometimes between two."""

    behavior: str
    step: int
    version: int
    done: bool
    """True once the trainer has reached max_steps and only drains its input."""
    recent_return: float | None
    """Mean return of the last (up to) 100 finished episodes, None before the first."""
    episodes: int
    returned: Mapping[int, int]
    """Flow credits returned so far, by source, cumulative."""
    ended_by: str = ""
    """Why the trainer is done before max_steps; empty if it is not."""
    held: int = 0
    """Flow credits of held steps that the trainer has not learned from yet."""
    arrived: Mapping[int, int] = field(default_factory=dict)
    """Flow credits that have arrived so far, by source, cumulative: returned ones, and those of held steps."""
    returns: tuple[float, ...] = ()
    """Returns of episodes that ended since the last report, as far as a curriculum needs them: the newest ones, all
    begun under the same environment parameters."""
    parameter_generation: int = 0
    """Generation of the environment parameters under which the episodes of `returns` began."""
    collecting_s: tuple[float, ...] = ()
    """For each update since the last report, except a run's first: seconds between the previous update and this one."""
    learning_s: tuple[float, ...] = ()
    """For the same updates, their durations in seconds."""
    at: float = field(default_factory=time.monotonic)
    """The time of the report, by the clock of the reporting process."""


EpisodeSink = Callable[[int, Sequence[float], Sequence[int]], None]
"""Takes the number of episodes so far, and the returns and lengths of those that have just ended."""


@dataclass(frozen=True)
class TrainerPort:
    """The stage's connection to its host."""

    report: Callable[[TrainerReport], None] = lambda report: None
    soon: Callable[[Callable[[], None]], object] = lambda call: None
    """Calls a function a little later, when there is more to report."""
    each_episode: EpisodeSink | None = None
    """Called with each episode, if not None."""
