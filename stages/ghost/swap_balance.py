"""Notices teams of unequal size whose `swap_steps` are not adapted to it."""

from __future__ import annotations

import logging
from collections.abc import Collection

from stages.ghost.lineage import Lineage

log = logging.getLogger(__name__)

ENOUGH = 0.75
"""Share of a turn after which the teams' steps are compared: early on, one batch more of one side looks like much."""
TOLERANCE = 1.5
"""How many times as many swaps one side may have before it is worth a word (5 against 4 with the same `swap_steps`)."""


class Pace:
    """Compares how many steps opponents make with how many learners make: sizes of teams, and how often they decide.

    ML-Agents' rule (its documentation of self-play, "Swap Steps"): for x swaps in a turn of the others, a behaviour's
    `swap_steps` are (its agents / their agents) × their `team_change` / x. With teams of unequal size, the same
    `swap_steps` for both mean that one side meets many opponents in a turn and the other few. Of teams with several
    behaviours those are compared that are ahead of the others, as they are the ones who end a turn.
    """

    def __init__(self) -> None:
        self._warned = False

    def check(self, ghosts: Collection[Lineage], learners: Collection[Lineage]) -> None:
        """Warn, once in a run, if the swaps of two teams are uneven.

        Args:
            ghosts: a team that does not learn now; none if it is gone.
            learners: the one that does. Where a behaviour is in both, it has but one number to set.
        """
        if self._warned or not ghosts or not learners or any(ghost in learners for ghost in ghosts):
            return
        ghost = max(ghosts, key=lambda each: each.turn_steps / each.settings.team_change)
        learner = max(learners, key=lambda each: each.turn_learned / each.settings.team_change)
        learned, turn = learner.turn_learned, learner.settings.team_change
        if not ghost.turn_steps or learned < max(1.0, ENOUGH * turn):
            return
        ratio = ghost.turn_steps / learned
        here = ratio * turn / ghost.settings.swap_steps
        there = ghost.settings.team_change / ratio / learner.settings.swap_steps
        if max(here, there) <= TOLERANCE * min(here, there):
            return
        self._warned = True
        log.warning(
            "Teams of unequal size: %s makes %.2f steps for each of %s. With these swap_steps %s meets new "
            "opponents %.3g times in a turn, and %s %.3g times. For as many in both, set "
            "behaviors.%s.self_play.swap_steps to %d.",
            *(ghost.name, ratio, learner.name, learner.name, here, ghost.name, there, learner.name),
            max(1, round(ghost.settings.team_change / ratio / here)),
        )
