"""The show: steps one instance at the game's own pace, and shows a picture of each moment."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from queues.messages import ActionBatch
from queues.specs import behavior_team
from stages.environment.protocol import EnvironmentGroup, StepResult
from stages.exhibition.cast import Cast
from stages.exhibition.film import FilmedGroup, Picture

FASTEST_S = 0.019
"""Seconds between two pictures at least; at a higher pace some are left out."""
COUNT_DOWN = 3
COUNT_S = 0.6
"""Seconds of each number that is counted down when a person's game begins."""
ROUND_S = 0.9
"""Seconds for which a point is looked at; persons need as long again to get ready."""
GAME_S = 2.0
"""Seconds for which the end of a game is looked at."""
_LATE_S = 0.3
"""Whoever is later than that goes on from here, and does not hurry."""
_WAIT_S = 0.1
"""Between two looks at whether a person has gone, while the game waits for a key."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A picture, and what is said about it."""

    picture: Picture
    note: str = ""
    """`3`, `2`, `1`, `point`, `won`, `drawn`, `over`, `key` (waits for one) or nothing."""
    about: str = ""
    """The behaviour id that the note is about."""


class Standings:
    """How the games that were shown have ended."""

    def __init__(self) -> None:
        self.wins: dict[str, int] = {}
        """Won games by behaviour id, where teams play."""
        self.games = 0
        """Games, or episodes, that have ended."""
        self.returns: dict[str, float] = {}
        """Return of the last episode, the mean over agents, by behaviour id."""
        self._running: dict[int, float] = {}

    def add(self, result: StepResult, ids: Mapping[str, Any]) -> tuple[bool, str]:
        """Add a tick; returns whether a game or an episode has ended, and the winner if there is one."""
        over = False
        for behavior_id, steps in result.steps.items():
            ended = []
            rewards = steps.rewards if steps.group_rewards is None else steps.rewards + steps.group_rewards
            for row, agent in enumerate(steps.agent_ids.tolist()):
                total = self._running.get(agent, 0.0) + float(rewards[row])
                if row < steps.ended:
                    ended.append(total)
                    self._running.pop(agent, None)
                else:
                    self._running[agent] = total
            if ended:
                self.returns[behavior_id] = sum(ended) / len(ended)
                over = True
        if result.games is not None and len(result.games.env_ids):
            self.games += 1
            return True, self._winner(result.games.outcomes[0].tolist(), ids)
        self.games += over and result.games is None
        return over and result.games is None, ""

    def _winner(self, outcomes: list[float], ids: Mapping[str, Any]) -> str:
        best = max(outcomes)
        if outcomes.count(best) > 1:
            return ""
        winners = [behavior_id for behavior_id in ids if behavior_team(behavior_id) == outcomes.index(best)]
        for behavior_id in winners:
            self.wins[behavior_id] = self.wins.get(behavior_id, 0) + 1
        return winners[0] if winners else ""


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
        self.speed = 1.0
        """1: the game's own pace."""
        self.standings = Standings()
        self._group = group
        self._film = film
        self._cast = cast
        self._show = show
        self._played = played
        self._clock = clock
        self._sleep = sleep
        self._running = asyncio.Event()
        self._running.set()
        self._restart = False
        self._due = 0.0
        self._shown_at = -1.0

    def pause(self, paused: bool) -> None:
        """Stand still, or go on."""
        (self._running.clear if paused else self._running.set)()

    @property
    def paused(self) -> bool:
        """True if it stands still."""
        return not self._running.is_set()

    def restart(self) -> None:
        """Begin a new game, and count from 0 : 0: somebody else plays."""
        self._restart = True

    async def run(self, seed: int) -> None:
        """Play game after game."""
        result = await _settled(self._group.reset(seed))
        self._film.take()
        self._due = self._clock()
        await self._begin_game()
        while True:
            await self._running.wait()
            if self._restart:
                self._restart, self.standings = False, Standings()
                result = await _settled(self._group.reset())
                self._film.take()
                await self._begin_game()
            actions = await self._decide(result)
            if self._restart:
                continue
            self._played(result, actions)
            before = self._film.now().score
            result = await _settled(self._group.step(actions))
            last = await self._roll()
            over, winner = self.standings.add(result, self._group.behavior_specs)
            if over:
                note = ("won" if winner else "drawn") if result.games is not None else "over"
                await self._rest(last, GAME_S if self._cast.persons else ROUND_S, note, winner)
                await self._begin_game()
            elif scorer := _scorer(before, self._film.now().score):
                await self._rest(last, ROUND_S, "point", scorer)
                if self._cast.persons:
                    await self._rest(self._film.now(), ROUND_S, "1")

    async def _decide(self, result: StepResult) -> dict[str, ActionBatch]:
        """Ask all that have to decide; waits while a person has to, in a game that waits."""
        specs = self._group.behavior_specs
        order = sorted(result.steps, key=lambda behavior_id: self._cast.person(behavior_id) is None)
        actions: dict[str, ActionBatch] = {}
        for behavior_id in order:
            while (decided := self._cast.decide(specs[behavior_id], result.steps[behavior_id])) is None:
                await self._show(Shown(self._film.now(), "key", behavior_id))
                hands = self._cast.hands(behavior_id)
                if hands is not None:
                    hands.changed.clear()
                    await _wait_for(hands.changed, _WAIT_S)
                await self._running.wait()
                self._due = self._clock()
                if self._restart:
                    return actions
            actions[behavior_id] = decided
        return {behavior_id: actions[behavior_id] for behavior_id in result.steps}

    async def _roll(self) -> Picture:
        """Show the pictures of a step, each at its time; returns the last one."""
        pictures = self._film.take() or [self._film.now()]
        for picture in pictures:
            await self._wait(self._film.frame_s / self.speed)
            if self._clock() - self._shown_at >= FASTEST_S:
                await self._put(Shown(picture))
        return pictures[-1]

    async def _begin_game(self) -> None:
        if not self._cast.persons:
            return
        for left in range(COUNT_DOWN, 0, -1):
            await self._rest(self._film.now(), COUNT_S, str(left))
        for behavior_id in self._cast.persons:
            hands = self._cast.hands(behavior_id)
            if hands is not None:
                hands.decided()  # what was tapped meanwhile was meant for the game before

    async def _rest(self, picture: Picture, seconds: float, note: str, about: str = "") -> None:
        await self._put(Shown(picture, note, about))
        await self._wait(seconds / max(1.0, self.speed))

    async def _put(self, shown: Shown) -> None:
        self._shown_at = self._clock()
        await self._show(shown)

    async def _wait(self, seconds: float) -> None:
        self._due += seconds
        left = self._due - self._clock()
        if left < -_LATE_S:
            self._due = self._clock()
        await self._sleep(max(0.0, left))
        if not self._running.is_set():
            await self._running.wait()
            self._due = self._clock()


def _scorer(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    return next((behavior_id for behavior_id, points in after.items() if points > before.get(behavior_id, 0)), "")


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


async def _settled(result: StepResult | Awaitable[StepResult]) -> StepResult:
    return await result if inspect.isawaitable(result) else result
