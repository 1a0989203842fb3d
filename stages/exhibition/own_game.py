"""The run's own game: its only instance at a pace at which persons can play in it, which waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.protocol import EnvironmentGroup, StepResult, settled
from headrace.stages.exhibition.film import FilmedGroup
from headrace.stages.exhibition.projector import Projector, Shown
from headrace.stages.exhibition.seats import Seats

T = TypeVar("T")
PAUSED = "paused"
KEY = "key"


class OwnGame:
    """A group that holds its rows back until all persons are there who have to decide on them.

    Meanwhile its ticks are empty: there is one whenever `Seats.changed` is set, so that the actor follows what it is
    told while it waits for persons, as it does between any two ticks.

    Args:
        group: one instance, to be stepped; closed with this one.
        film: gives its pictures.
        seats: know who is there.
        show: called with each picture.
        tell: called when it begins to wait, or goes on: why it waits (`paused`, `key` or behaviour ids), or nothing.
        clock: seconds on a monotonic clock.
        sleep: waits.
    """

    def __init__(
        self,
        group: EnvironmentGroup,
        film: FilmedGroup,
        seats: Seats,
        show: Callable[[Shown], Awaitable[None]],
        tell: Callable[[str], None],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.num_envs = group.num_envs
        self.behavior_specs: Mapping[str, BehaviorSpec] = group.behavior_specs
        self.projector = Projector(film, show, clock, self._wait)
        self.has_deadlines = False
        """True while it waits, for persons or for the next picture's time: nobody is silent then."""
        self._group = group
        self._film = film
        self._seats = seats
        self._tell = tell
        self._sleep = sleep
        self._kept: StepResult | None = None
        self._score: Mapping[str, int] = {}
        self._fresh = self._ending = False
        self._told = ""
        if hasattr(group, "set_parameters"):
            self.set_parameters = group.set_parameters

    async def reset(self, seed: int | None = None) -> StepResult:
        """Reset; what there is to decide on comes with the first step, as persons may have to come."""
        result = await settled(self._group.reset(seed))
        self.behavior_specs = self._group.behavior_specs
        self._film.take()
        self._kept, self._fresh = StepResult(result.steps), True
        await self._watched(self.projector.put())
        return replace(result, steps={})

    async def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Step at the game's own pace; or wait until there is something new, and maybe give what was held back."""
        if self._kept is None:
            self._seats.decided()
            before = self._film.score
            self._kept = result = await settled(self._group.step(actions))
            self.behavior_specs = self._group.behavior_specs
            self._fresh = await self._watched(self.projector.follow(before, result, self.behavior_specs, persons=True))
        if not await self._watched(self._may_go_on(self._kept)):
            return StepResult({})
        kept, self._kept = self._kept, None
        return kept

    def request_stop(self) -> None:
        """Wait no longer for anything: the run ends."""
        self._ending = True
        self._seats.changed.set()

    def close(self) -> Awaitable[None] | None:
        """Close the group."""
        return self._group.close()

    async def _may_go_on(self, kept: StepResult) -> bool:
        """Return whether all are there who have to decide; if not, once there is something new."""
        self.projector.speed = self._seats.speed
        absent, about = self._absent(), ""
        if not absent and self._fresh:
            self._fresh = False
            self.projector.begin()
            await self.projector.count_down()
            self._seats.decided()  # what was tapped meanwhile was meant for the game before
            absent = self._absent()
        if not absent:
            about = self._seats.undecided(self.behavior_specs, kept.steps)
        await self._say(absent or (KEY if about else ""), about)
        if not absent and not about:
            return True
        self._fresh |= bool(absent)
        await self._seats.changed.wait()
        self._seats.changed.clear()
        self.projector.begin()
        return False

    def _absent(self) -> str:
        return PAUSED if self._seats.paused else ", ".join(self._seats.empty(self.behavior_specs.values()))

    async def _say(self, why: str, about: str) -> None:
        if why != self._told:
            self._told = why
            self._tell(why)
            if why:
                await self.projector.put(KEY if about else "", about)

    async def _watched(self, waiting: Awaitable[T]) -> T:
        self.has_deadlines = True
        try:
            return await waiting
        finally:
            self.has_deadlines = False

    async def _wait(self, seconds: float) -> None:
        if not self._ending:
            await self._sleep(seconds)
