"""When a learner is frozen into the pool, and when it is reset after that (docs/league-rules.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.config.league import FreezeSettings, ResetSettings


@dataclass(slots=True)
class LearnerProgress:
    """A learner, since it was frozen."""

    step: int
    """Its trainer's step, newest."""
    version: int
    """Its newest policy's version."""
    frozen: int
    """Its trainer's step when it was frozen (or was to be, if that was earlier), or began."""
    parent: int = -1
    """The member that it descends from, -1 for none."""
    first: int = -1
    """The member that its first policy is, -1 if that was not frozen."""

    def advance(self, step: int, version: int) -> None:
        """Take note of its newest policy; a trainer that was restarted may be some steps behind."""
        self.step, self.version = step, version
        self.frozen = min(self.frozen, step)

    def freeze(self, freeze: FreezeSettings, member: int, step: int) -> None:
        """Take note of having become a member at a trainer's step.

        What is overdue counts from the step at which it was due: however large the trainer's updates are, the run has
        as many members.
        """
        late = step - self.frozen - (freeze.at_most or 0)
        self.frozen = step - (late if 0 <= late < (freeze.at_most or 0) else 0)
        self.parent = member


def is_due(freeze: FreezeSettings, steps: int, chances: Sequence[float]) -> bool:
    """Return True if a learner is to be frozen.

    Args:
        freeze: when, with steps.
        steps: since the last time.
        chances: of beating each of its opponents.
    """
    after, at_most = freeze.after, freeze.at_most
    if after is None or at_most is None:
        raise ValueError("freeze lacks steps; LeagueSettings.for_steps fills them in")
    wins = freeze.win_rate is not None and bool(chances) and min(chances) > freeze.win_rate
    return steps >= at_most or (wins and steps >= after)


def is_reset(reset: ResetSettings | None, random: np.random.Generator) -> bool:
    """Draw if a learner that was just frozen is to be reset; nothing is drawn if that is certain."""
    if reset is None or reset.probability in (0.0, 1.0):
        return reset is not None and reset.probability == 1.0
    return bool(random.random() < reset.probability)
