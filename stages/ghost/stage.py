"""The ghost stages: trajectories of the learning team pass, everyone else's end here as ghost steps.

Self-play has one controller for the whole run. Each behaviour's way has two stages that share it: `GhostStage` stands
between actors and trainer, `GhostPolicies` between trainer and publisher. Neither has a state of its own; the
controller's is saved once, by whoever owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from queues.messages import Matchup, PolicyUpdate, TrajectoryBatch
from stages.ghost.controller import GhostController
from stages.stage import Stage, StageContext


class GhostStage(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Judges trajectories by their stamp, counts ghost steps, rates games, swaps opponents.

    Args:
        controller: the bookkeeping, shared by all behaviours.
        publish: called at once with a new matchup.
    """

    def __init__(self, controller: GhostController, publish: Callable[[Matchup], None]) -> None:
        self._controller = controller
        self._publish = publish
        self._context = StageContext("ghost")

    def start(self, context: StageContext) -> None:
        """Take up the context."""
        self._context = context

    def process(self, item: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        """Yield what is learned from."""
        for behavior, statistic, value in self._controller.rate(item.games):
            self._context.statistics.add(behavior, statistic, value)
        keep = self._controller.judge(item)
        if keep.any():
            yield item if keep.all() else item.select(keep)
        matchup = self._controller.count(item, keep)
        if matchup is not None:
            self._publish(matchup)


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
