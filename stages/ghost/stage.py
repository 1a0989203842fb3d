"""The ghost stage: owns self-play. Trajectories of the learning team pass, everyone else's end here as ghost steps.

It has two sides that share one controller: this stage stands between actors and trainer, and `GhostPolicies` between
trainer and publisher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from queues.messages import Matchup, PolicyUpdate, TrajectoryBatch
from stages.ghost.controller import GhostController
from stages.stage import Stage, StageContext


class GhostStage(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Judges trajectories by their stamp, counts ghost steps, rates games, swaps opponents.

    Args:
        behavior: the behaviour name.
        controller: the bookkeeping, shared with `GhostPolicies`.
        publish: called at once with a new matchup.
    """

    def __init__(self, behavior: str, controller: GhostController, publish: Callable[[Matchup], None]) -> None:
        self._behavior = behavior
        self._controller = controller
        self._publish = publish
        self._context = StageContext("ghost")

    def start(self, context: StageContext) -> None:
        """Take up the context."""
        self._context = context

    def process(self, item: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        """Yield what is learned from."""
        for rating in self._controller.rate(item.games):
            self._context.statistics.add(self._behavior, "Self-play/ELO", rating)
        keep = self._controller.judge(item)
        ghost_steps = int(item.lengths[~keep].sum())
        if keep.any() and keep.all():
            yield item
        elif keep.any():
            yield item.select(keep)
        if ghost_steps:
            matchup = self._controller.count_ghost_steps(ghost_steps)
            if matchup is not None:
                self._publish(matchup)

    def state_dict(self) -> Mapping[str, Any]:
        """The controller's state."""
        return self._controller.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the controller's state, and tell the actors who plays whom."""
        self._controller.load_state_dict(state)


class GhostPolicies(Stage[PolicyUpdate, PolicyUpdate]):
    """The policy side: takes the trainer's policies, keeps snapshots, rotates teams, addresses what is published."""

    def __init__(self, controller: GhostController, publish: Callable[[Matchup], None]) -> None:
        self._controller = controller
        self._publish = publish

    def process(self, item: PolicyUpdate) -> Iterator[PolicyUpdate]:
        """Yield the policy for the learning team; publish a matchup where teams or opponents change."""
        updates, matchup = self._controller.take_policy(item)
        if matchup is not None:
            self._publish(matchup)
        yield from updates
