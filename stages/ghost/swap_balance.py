"""The warning about teams of unequal size whose `swap_steps` are not adapted to it."""

from __future__ import annotations

import logging
from collections.abc import Collection

from headrace.stages.ghost.policy_history import PolicyHistory

log = logging.getLogger(__name__)

ENOUGH = 0.75
"""Share of a turn after which the teams' steps are compared; before, a single batch shifts the ratio too far."""
TOLERANCE = 1.5
"""Ratio of the sides' swaps in a turn above which a warning is logged (5 against 4 with the same `swap_steps`)."""


class SwapBalance:
    """Compares the opponents' steps with the learners' steps, which differ with team sizes and decision rates.

    ML-Agents' rule (its documentation of self-play, "Swap Steps"): for x swaps in a turn of the others, a behaviour's
    `swap_steps` are (its agents / their agents) × their `team_change` / x. With teams of unequal size, equal
    `swap_steps` let one side meet many opponents in a turn and the other few. Of a team with several behaviours the
    one with the largest share of its `team_change` is compared, as it ends the turn.
    """

    def __init__(self) -> None:
        self._warned = False

    def check(self, ghosts: Collection[PolicyHistory], learners: Collection[PolicyHistory]) -> None:
        """Warn, once in a run, if the swaps of two teams are uneven.

        Args:
            ghosts: the behaviours of a team that does not learn now; empty if the team is gone.
            learners: the learning team's. A behaviour in both teams has one `swap_steps`, so nothing is checked.
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
