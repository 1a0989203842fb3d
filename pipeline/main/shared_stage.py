"""A stage that several behaviours' routes share: self-play or a league."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from headrace.pipeline.roles.stages import StageHost
from headrace.stages.loop import StageHooks
from headrace.stages.stage import Stage
from headrace.stages.trainer.report import TrainerReport


class SharedState:
    """The stage's state: one part of a checkpoint, written once the barrier has passed through every behaviour's route.

    The part therefore includes the effects of all items before the barrier on each route.

    Args:
        name: name of the part.
        stages: hooks and saved states for stages in main.
        state: returns the state.
    """

    def __init__(self, name: str, stages: StageHost, state: Callable[[], Mapping[str, Any]]) -> None:
        self.name = name
        self._stages = stages
        self._state = state
        self._behaviors: list[str] = []
        self._awaited: frozenset[str] = frozenset()
        self._missing: dict[int, set[str]] = {}

    def add(self, behavior: str) -> None:
        """Add a behaviour whose route includes the stage."""
        self._behaviors.append(behavior)

    def begin_checkpoint(self) -> None:
        """Expect a barrier on the route of each behaviour known so far."""
        self._awaited = frozenset(self._behaviors)

    def hooks(self, stage: str, behavior: str) -> StageHooks:
        """Create the hooks for the stage loop that runs the stage on a behaviour's route."""

        def reach(name: str, number: int, state: Mapping[str, Any]) -> None:
            missing = self._missing.setdefault(number, set(self._awaited))
            missing.discard(behavior)
            if not missing:
                self._missing = {other: names for other, names in self._missing.items() if other > number}
                self._stages.save_part(self.name, number, self._state())

        return StageHooks(self._stages.hooks(stage).return_credits, reach)

    def save_now(self, behavior: str, save: Callable[[str, Mapping[str, Any] | None], None]) -> None:
        """Pass the state to `save` without waiting for a barrier, but only once, for the first behaviour."""
        if behavior == self._behaviors[0]:
            save(self.name, self._state())


class SharedPlay(Protocol):
    """The controller for several behaviours' games: the interface that each behaviour's route uses."""

    @property
    def shared(self) -> SharedState:
        """The state that all routes share."""

    def add(self, behavior: str) -> None:
        """Add a behaviour that is about to start training."""

    def add_behavior(self, behavior_id: str) -> None:
        """Add a behaviour id, i.e. a new team."""

    def on_report(self, report: TrainerReport) -> None:
        """Handle a trainer's report for a behaviour that shares this stage."""

    def elo(self, behavior: str) -> float | None:
        """Return the rating of a behaviour's newest policy; None if there is no rating."""

    def trajectory_stage(self, behavior: str) -> Stage[Any, Any]:
        """Create the stage between the actors and the trainer."""

    def policy_stage(self, behavior: str) -> Stage[Any, Any]:
        """Create the stage between the trainer and the publisher."""
