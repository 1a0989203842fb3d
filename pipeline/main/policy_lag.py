"""How many updates actors may run ahead of each trainer, where `max_policy_lag` is `auto`. Pure: no clock, no I/O.

Collecting while the trainer learns saves time, at the price of steps by an older policy. Where it takes much longer to
collect the steps of an update than to learn from them, little is saved: actors wait for each policy. What takes how
long is measured in the first updates, in which actors wait. Medians count, so that one update that something held
up, such as an actor's restart or a checkpoint, does not. A resumed run measures anew: it may have another machine.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from headrace.config.host_kinds import HOST_KINDS
from headrace.config.pipeline import PipelineSettings

log = logging.getLogger(__name__)

MEASURED_UPDATES = 5
"""Updates that are measured, from the second on: the first one's steps are collected while the run starts."""
MOST_COLLECTING = 1.5
"""Times that of learning that collecting may take: running ahead then saves two fifths of the time."""
AHEAD = 1
"""Updates that actors run ahead where that is worth it."""


@dataclass(frozen=True)
class _Measured:
    rows: int
    collecting_s: list[float] = field(default_factory=list)
    learning_s: list[float] = field(default_factory=list)


class PolicyLags:
    """The lag of each behaviour, from its trainer's start on."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._given = settings.max_policy_lag
        hosts = settings.hosts
        self._takes_turns = HOST_KINDS[hosts.actors.kind].in_main and HOST_KINDS[hosts.learners.kind].in_main
        self._measured: dict[str, _Measured] = {}

    def first(self, behavior: str, rows_per_update: int, any_age: bool, corrects_age: bool) -> int:
        """Return the lag to begin with.

        Args:
            behavior: the behaviour name.
            rows_per_update: rows that its trainer learns from at a time.
            any_age: it learns from steps of any age.
            corrects_age: it learns as well from steps of somewhat older policies.
        """
        if self._given != "auto":
            return self._given
        if self._takes_turns:
            return self._say(behavior, 0, "actors and learner take turns in the main process")
        if any_age:
            return self._say(behavior, AHEAD, "its trainer learns from steps of any age")
        if not corrects_age:
            return self._say(behavior, 0, "its trainer does not correct for steps of older policies")
        self._measured[behavior] = _Measured(rows_per_update)
        return 0

    def measured(self, behavior: str, collecting_s: Sequence[float], learning_s: Sequence[float]) -> int | None:
        """Take the seconds of collecting and of learning of further updates; returns the lag once it is decided."""
        found = self._measured.get(behavior)
        if found is None:
            return None
        found.collecting_s.extend(collecting_s)
        found.learning_s.extend(learning_s)
        if len(found.learning_s) < MEASURED_UPDATES:
            return None
        del self._measured[behavior]
        collecting, learning = median(found.collecting_s), median(found.learning_s)
        lag = AHEAD if collecting <= MOST_COLLECTING * learning else 0
        why = f"collecting {found.rows} steps takes {collecting:.2g} s, learning from them {learning:.2g} s, so actors "
        return self._say(behavior, lag, why + ("collect meanwhile" if lag else "wait for each policy"))

    def _say(self, behavior: str, lag: int, why: str) -> int:
        log.info("%s: max_policy_lag auto is %d: %s.", behavior, lag, why)
        return lag
