"""The show: steps one instance at the game's own pace, and shows a picture of each moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from headrace.queues.messages import ActionBatch
from headrace.stages.environments.protocol import EnvironmentGroup, StepResult, settled
from headrace.stages.exhibition.cast import Cast
from headrace.stages.exhibition.film import FilmedGroup
from headrace.stages.exhibition.projector import Projector, Shown
from headrace.stages.exhibition.standings import Standings

_WAIT_S = 0.1
"""Between two looks at whether a person has gone, while the game waits for a key."""


class Show:
    """Plays one instance for those who watch, until it is cancelled.

    Args:
        group: one instance, to be stepped.
        film: gives its pictures.
        cast: decides.
        show: called with each picture.
        played: called with each tick's rows and the actions decided on them.
        clock: seconds on a monotonic clock.
        sleep: waits.
    """

    def __init__(
        self,
        group: EnvironmentGroup,
        film: FilmedGroup,
        cast: Cast,
        show: Callable[[Shown], Awaitable[None]],
        played: Callable[[StepResult, Mapping[str, ActionBatch]], None],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._group = group
        self._film = film
        self._cast = cast
        self._played = played
        self._sleep = sleep
        self._projector = Projector(film, show, clock, self._wait)
        self._running = asyncio.Event()
        self._running.set()
        self._restart = False

    def pace(self, speed: float, paused: bool) -> None:
        """Go on so many times as fast as the game's own pace, or stand still."""
        self._projector.speed = speed
        (self._running.clear if paused else self._running.set)()

    @property
    def standings(self) -> Standings:
        """How the games have ended so far."""
        return self._projector.standings

    def restart(self) -> None:
        """Begin a new game, and count from 0 : 0: somebody else plays."""
        self._restart = True

    async def run(self, seed: int) -> None:
        """Play game after game."""
        result = await settled(self._group.reset(seed))
        self._film.take()
        self._projector.begin()
        await self._begin_game()
        while True:
            await self._running.wait()
            if self._restart:
                self._restart, self._projector.standings = False, Standings()
                result = await settled(self._group.reset())
                self._film.take()
                await self._begin_game()
            actions = await self._decide(result)
            if self._restart:
                continue
            self._played(result, actions)
            before = self._film.score
            result = await settled(self._group.step(actions))
            if await self._projector.follow(before, result, self._group.behavior_specs, bool(self._cast.persons)):
                await self._begin_game()

    async def _decide(self, result: StepResult) -> dict[str, ActionBatch]:
        """Ask all that have to decide; waits while a person has to, in a game that waits."""
        specs = self._group.behavior_specs
        order = sorted(result.steps, key=lambda behavior_id: self._cast.person(behavior_id) is None)
        actions: dict[str, ActionBatch] = {}
        for behavior_id in order:
            while (decided := self._cast.decide(specs[behavior_id], result.steps[behavior_id])) is None:
                await self._projector.put("key", behavior_id)
                hands = self._cast.hands(behavior_id)
                if hands is not None:
                    hands.changed.clear()
                    await _wait_for(hands.changed, _WAIT_S)
                await self._running.wait()
                self._projector.begin()
                if self._restart:
                    return actions
            actions[behavior_id] = decided
        return {behavior_id: actions[behavior_id] for behavior_id in result.steps}

    async def _begin_game(self) -> None:
        if not self._cast.persons:
            return
        await self._projector.count_down()
        for behavior_id in self._cast.persons:
            hands = self._cast.hands(behavior_id)
            if hands is not None:
                hands.decided()  # what was tapped meanwhile was meant for the game before

    async def _wait(self, seconds: float) -> None:
        await self._sleep(seconds)
        if not self._running.is_set():
            await self._running.wait()
            self._projector.begin()


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
