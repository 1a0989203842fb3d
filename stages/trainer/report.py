"""What a trainer stage tells its host: how far the trainer is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TrainerReport:
    """The progress of a trainer; sent after each update, and now and then between two."""

    behavior: str
    step: int
    version: int
    done: bool
    """True once it has reached max_steps and only drains its inlet."""
    recent_return: float | None
    """Mean return of the last (up to) 100 finished episodes, None before the first."""
    episodes: int
    returned: Mapping[int, int]
    """Flow credits returned so far, by source, cumulative."""
    ended_by: str = ""
    """Why it is done before max_steps; empty if it is not."""
    held: int = 0
    """Flow credits of held steps that were not learned from yet."""
    arrived: Mapping[int, int] = field(default_factory=dict)
    """Flow credits that have arrived so far, by source, cumulative: returned ones, and those of held steps."""
    returns: tuple[float, ...] = ()
    """Returns of episodes that ended since the last report, as far as a curriculum needs them: the newest ones, all
    begun under the same environment parameters."""
    parameter_generation: int = 0
    """Generation of the environment parameters under which the episodes of `returns` began."""
    collecting_s: tuple[float, ...] = ()
    """Of each update since the last report, except a run's first: seconds between the update before and this one."""
    learning_s: tuple[float, ...] = ()
    """Of the same updates: seconds that they took."""
    at: float = field(default_factory=time.monotonic)
    """When it was so, by the clock of the process that tells it."""


EpisodeSink = Callable[[int, Sequence[float], Sequence[int]], None]
"""Takes the number of episodes so far, and returns and lengths of those that have just ended."""


@dataclass(frozen=True)
class TrainerPort:
    """The stage's connection to its host."""

    report: Callable[[TrainerReport], None] = lambda report: None
    soon: Callable[[Callable[[], None]], object] = lambda call: None
    """Call something a little later, when more has come that it can tell of."""
    each_episode: EpisodeSink | None = None
    """Where each episode is told; None: nowhere."""
