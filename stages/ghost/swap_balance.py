"""Warns if one side in self-play faces many opponents in a turn and the other side few, judging by step counts."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import behavior_name, behavior_team
from headrace.stages.ghost.policy_history import PolicyHistory

log = logging.getLogger(__name__)

TOLERANCE = 1.5
"""Ratio between two sides' swaps in a turn above which a warning is logged; 5 agents against 4 with equal `swap_steps`
exceed it."""
UNKNOWN = 1 / 6
"""Maximum fraction of a side's steps that may be in flight for the advice to be reliable."""
_ROUND = 4
"""Trajectories per known agent, on average, after which all concurrent agents are assumed to have been seen."""
_MOST_AGENTS = 4096


@dataclass(slots=True)
class _Pace:
    """All steps of a behaviour id's agents that have arrived since the run began, including those not learned from."""

    steps: int = 0
    longest: int = 0
    """Number of steps in the longest trajectory."""
    agents: int = 0
    """Estimated number of concurrent agents; 0 until all of them have been seen."""
    _seen: set[int] = field(default_factory=set)
    _trajectories: int = 0

    @property
    def on_their_way(self) -> float:
        """An upper bound on the number of steps in unfinished trajectories."""
        return self.agents * self.longest if self.agents else math.inf

    def count(self, batch: TrajectoryBatch) -> None:
        """Count the trajectories in a batch."""
        self.steps += batch.num_rows
        self.longest = max(self.longest, int(batch.lengths.max()))
        if (agent_ids := batch.trajectories.get("agent_ids")) is None:
            return  # the batch is from a stage without agent ids, so the steps in flight are unknown
        self._seen.update(agent_ids.tolist())
        self._trajectories += batch.num_trajectories
        if self._trajectories >= _ROUND * len(self._seen) or len(self._seen) >= _MOST_AGENTS:
            self.agents = max(self.agents, len(self._seen))
            self._seen.clear()
            self._trajectories = 0


class SwapBalance:
    """Compares the opponents' step counts with the learners'.

    ML-Agents' rule (in its self-play documentation, "Swap Steps") is: for x swaps during the other team's turn, a
    behaviour's `swap_steps` must be (its agents / their agents) × their `team_change` / x. With teams of unequal size,
    equal `swap_steps` let one side face many opponents in a turn and the other side few. In a team with several
    behaviours, only the behaviour that has completed the largest fraction of its `team_change` counts, because it ends
    the turn.

    The comparison uses all steps since the run began, because counts for single turns depend on whose trajectories end
    in them.
    """

    def __init__(self) -> None:
        self.warned = False
        """True once the warning has been logged."""
        self._paces: dict[str, _Pace] = {}

    def count(self, batch: TrajectoryBatch) -> None:
        """Count the steps in a batch."""
        if batch.num_trajectories and not self.warned:
            self._paces.setdefault(batch.behavior_id, _Pace()).count(batch)

    def check(self, ghosts: Collection[PolicyHistory], learners: Collection[PolicyHistory], learning_team: int) -> None:
        """Warn, once per run, if two teams' swaps are uneven even when all steps in flight are allowed for.

        Args:
            ghosts: the behaviours of a team that is not learning; empty if the team no longer takes part.
            learners: the learning team's behaviours. If a behaviour is in both teams, no check is needed, because it
                has only one `swap_steps`.
            learning_team: the team that learns.
        """
        if self.warned or not ghosts or not learners or any(ghost in learners for ghost in ghosts):
            return
        ghost, made, coming = self._fastest(ghosts, lambda team: team != learning_team)
        learner, learned, to_come = self._fastest(learners, lambda team: team == learning_team)
        if max(coming / max(made, 1), to_come / max(learned, 1)) > UNKNOWN:
            return
        fewest, most = (_swaps(ghost, learner, r) for r in (made / (learned + to_come), (made + coming) / learned))
        if fewest[0] <= TOLERANCE * fewest[1] and most[1] <= TOLERANCE * most[0]:
            return
        self.warned = True
        ratio = made / learned
        here, there = _swaps(ghost, learner, ratio)
        log.warning(
            "Teams of unequal size: %s makes %.2f steps for each step of %s. With these swap_steps, %s meets new "
            "opponents %.3g times per turn, and %s %.3g times. For equal numbers, set "
            "behaviors.%s.self_play.swap_steps to %d.",
            *(ghost.name, ratio, learner.name, learner.name, here, ghost.name, there, learner.name),
            max(1, round(ghost.settings.team_change / ratio / here)),
        )

    def _fastest(self, team: Iterable[PolicyHistory], plays: Callable[[int], bool]) -> tuple[PolicyHistory, int, float]:
        """Return the behaviour that has completed the most of its turn, with its step count and its steps in flight."""

        def steps(history: PolicyHistory) -> tuple[int, float]:
            known = [
                pace
                for behavior_id, pace in self._paces.items()
                if behavior_name(behavior_id) == history.name and plays(behavior_team(behavior_id))
            ]
            return sum(pace.steps for pace in known), sum(pace.on_their_way for pace in known)

        return max(
            ((history, *steps(history)) for history in team), key=lambda found: found[1] / found[0].settings.team_change
        )


def _swaps(ghost: PolicyHistory, learner: PolicyHistory, ratio: float) -> tuple[float, float]:
    """Return how often the learner gets new opponents in its turn, and how often the opponent does in its own turn.

    Args:
        ghost: the opponent.
        learner: the learner.
        ratio: the number of steps that the opponent makes per step of the learner.
    """
    theirs, own = ghost.settings, learner.settings
    return ratio * own.team_change / theirs.swap_steps, theirs.team_change / ratio / own.swap_steps
