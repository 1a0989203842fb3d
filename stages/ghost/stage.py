"""The ghost stages, which pass on the learning team's trajectories, and count and drop all others as ghost steps.

A run has a single self-play controller. Each behaviour has two stages that use it: `GhostStage` between actors and
trainer, and `GhostPolicies` between trainer and publisher. The stages have no state; the controller's owner saves the
controller's state once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.queues.messages import Matchup, PolicyUpdate, TrajectoryBatch
from headrace.stages.ghost.controller import GhostController
from headrace.stages.stage import Stage, StageContext


class GhostStage(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Passes on the trajectories to learn from, counts ghost steps, rates games and swaps opponents.

    Args:
        controller: the controller, shared by all behaviours.
        publish: called immediately with each new matchup.
    """

    def __init__(self, controller: GhostController, publish: Callable[[Matchup], None]) -> None:
        self._controller = controller
        self._publish = publish
        self._context = StageContext("ghost")

    def start(self, context: StageContext) -> None:
        """Store the context, which provides the statistics."""
        self._context = context

    def process(self, item: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        """Yield the trajectories to learn from."""
        for behavior, statistic, value in self._controller.rate_games(item.games):
            self._context.statistics.add(behavior, statistic, value)
        keep = self._controller.learning_mask(item)
        if keep.any():
            yield item if keep.all() else item.select(keep)
        matchup = self._controller.count_steps(item, keep)
        if matchup is not None:
            self._publish(matchup)


class GhostPolicies(Stage[PolicyUpdate, PolicyUpdate]):
    """Receives the trainer's policies, takes snapshots, changes teams, and addresses policies to the learning team."""

    def __init__(self, controller: GhostController, publish: Callable[[Matchup], None]) -> None:
        self._controller = controller
        self._publish = publish

    def process(self, item: PolicyUpdate) -> Iterator[PolicyUpdate]:
        """Yield the policy once per learning behaviour id; publish a matchup if assignments change."""
        updates, matchup = self._controller.receive_policy(item)
        if matchup is not None:
            self._publish(matchup)
        yield from updates
