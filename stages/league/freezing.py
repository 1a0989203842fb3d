"""The conditions for freezing a learner into the pool, and for its reset (docs/league-rules.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.config.league import FreezeSettings, ResetSettings


@dataclass(slots=True)
class LearnerProgress:
    """A learner's progress since its last freeze."""

    step: int
    """Newest step reported by the learner's trainer."""
    version: int
    """Version of the learner's newest policy."""
    frozen: int
    """The trainer's step at which the last freeze was due; before the first freeze, the step at the start."""
    parent: int = -1
    """Number of the member that the learner descends from; -1 for none."""
    first: int = -1
    """Number of the member with the learner's first policy; -1 if that policy was not frozen."""

    def advance(self, step: int, version: int) -> None:
        """Record the learner's newest policy; a restarted trainer may be a few steps behind."""
        self.step, self.version = step, version
        self.frozen = min(self.frozen, step)

    def freeze(self, freeze: FreezeSettings, member: int, step: int) -> None:
        """Record that the learner has become a member at a trainer step.

        The next interval counts from the step at which the freeze was due, so the number of members does
        not depend on the size of updates.
        """
        late = step - self.frozen - (freeze.at_most or 0)
        self.frozen = step - (late if 0 <= late < (freeze.at_most or 0) else 0)
        self.parent = member


def is_due(freeze: FreezeSettings, steps: int, chances: Sequence[float]) -> bool:
    """Return True if a learner is due to be frozen.

    Args:
        freeze: the conditions, in steps.
        steps: number of steps since the last freeze.
        chances: the learner's probability of beating each opponent.
    """
    after, at_most = freeze.after, freeze.at_most
    if after is None or at_most is None:
        raise ValueError("freeze has no steps; LeagueSettings.for_steps fills them in")
    wins = freeze.win_rate is not None and bool(chances) and min(chances) > freeze.win_rate
    return steps >= at_most or (wins and steps >= after)


def is_reset(reset: ResetSettings | None, random: np.random.Generator) -> bool:
    """Decide at random whether to reset a newly frozen learner; draw no random number if the answer is certain."""
    if reset is None or reset.probability in (0.0, 1.0):
        return reset is not None and reset.probability == 1.0
    return bool(random.random() < reset.probability)
