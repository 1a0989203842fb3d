"""A stage that the ways of several behaviours have in common: self-play, or a league."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from headrace.pipeline.roles.stages import StageHost
from headrace.stages.loop import StageHooks
from headrace.stages.stage import Stage
from headrace.stages.trainer.report import TrainerReport


class SharedState:
    """Its state: one part of a checkpoint, written when the barrier has passed the ways of all behaviours.

    So the part holds the effects of all items before the barrier, on each way.

    Args:
        name: of the part.
        stages: hooks and saved states of stages in main.
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
        """Add a behaviour on whose way it is."""
        self._behaviors.append(behavior)

    def begin_checkpoint(self) -> None:
        """Await a barrier on the ways of all behaviours that are known now."""
        self._awaited = frozenset(self._behaviors)

    def hooks(self, stage: str, behavior: str) -> StageHooks:
        """Make the hooks of the loop that runs the stage on a behaviour's way."""

        def reach(name: str, number: int, state: Mapping[str, Any]) -> None:
            missing = self._missing.setdefault(number, set(self._awaited))
            missing.discard(behavior)
            if not missing:
                self._missing = {other: names for other, names in self._missing.items() if other > number}
                self._stages.save_part(self.name, number, self._state())

        return StageHooks(self._stages.hooks(stage).return_credits, reach)

    def save_now(self, behavior: str, save: Callable[[str, Mapping[str, Any] | None], None]) -> None:
        """Pass the state to `save` without waiting for a barrier; once, for the first of all behaviours."""
        if behavior == self._behaviors[0]:
            save(self.name, self._state())


class SharedPlay(Protocol):
    """Who decides about the games of several behaviours, as the way of one of them sees it."""

    @property
    def shared(self) -> SharedState:
        """The state, and its name."""

    def add(self, behavior: str) -> None:
        """Add a behaviour, which is trained from now on."""

    def add_behavior(self, behavior_id: str) -> None:
        """A team has appeared."""

    def on_report(self, report: TrainerReport) -> None:
        """The trainer of such a behaviour has reported."""

    def elo(self, behavior: str) -> float | None:
        """Return the rating of a behaviour's newest policy; None if it has none."""

    def trajectory_stage(self, behavior: str) -> Stage[Any, Any]:
        """Make the stage between actors and trainer."""

    def policy_stage(self, behavior: str) -> Stage[Any, Any]:
        """Make the stage between trainer and publisher."""
