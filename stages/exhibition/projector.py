"""The projector: shows a game's frames at the right times, and pauses when a point is scored or a game ends.

`Standings` contains the results of the games shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.protocol import StepResult
from headrace.stages.evaluation.scores import ScoreKeeper
from headrace.stages.exhibition.film import FilmedGroup, Picture


class Standings:
    """The results of the games shown so far."""

    def __init__(self) -> None:
        self.wins: dict[str, int] = {}
        """Number of games won, keyed by behaviour id, if teams play each other."""
        self.games = 0
        """Number of games, or episodes, that have ended."""
        self.returns: dict[str, float] = {}
        """The last episode's return, averaged over agents, keyed by behaviour id."""
        self._scores = ScoreKeeper(None, 0, 1, lambda name: False, lambda: None)
        self._scores.begin(1, StepResult({}))

    def add(self, result: StepResult, ids: Mapping[str, Any]) -> tuple[bool, str]:
        """Add a tick's result; return whether a game or an episode has ended, and the winner, if any."""
        self._scores.add(result)
        finished = self._scores.drain()
        over = [behavior_id for behavior_id, episodes in finished.items() if episodes.returns]
        self.returns |= {behavior_id: float(np.mean(finished[behavior_id].returns)) for behavior_id in over}
        if result.games is None or not len(result.games.env_ids):
            ended = bool(over) and result.games is None
            self.games += ended
            return ended, ""
        self.games += 1
        winners = [behavior_id for behavior_id in ids if behavior_id in finished and finished[behavior_id].results[0]]
        for behavior_id in winners:
            self.wins[behavior_id] = self.wins.get(behavior_id, 0) + 1
        return True, winners[0] if winners else ""


FASTEST_S = 0.019
"""Minimum seconds between two frames; at a faster pace some frames are skipped."""
COUNT_DOWN = 3
COUNT_S = 0.6
"""Seconds per number in the countdown before a game that people play."""
ROUND_S = 0.9
"""Length in seconds of the pause after a point. People then get a second pause of this length to prepare."""
GAME_S = 2.0
"""Length in seconds of the pause at the end of a game."""
_LATE_S = 0.3
"""Delay in seconds after which the schedule restarts instead of catching up."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A frame and a note about it."""

    picture: Picture
    note: str = ""
    """`3`, `2`, `1`, `point`, `won`, `drawn`, `over`, `key` (the game waits for a key) or empty."""
    about: str = ""
    """Behaviour id that the note is about; empty if there is none."""


class Projector:
    """Shows one game at its own pace: a step lasts until its last frame has been shown long enough.

    Args:
        film: the source of frames.
        show: called with each frame.
        clock: seconds on a monotonic clock.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        film: FilmedGroup,
        show: Callable[[Shown], Awaitable[None]],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.speed = 1.0
        """Speed relative to the game's own pace; 1 is normal."""
        self.standings = Standings()
        self._film = film
        self._show = show
        self._clock = clock
        self._sleep = sleep
        self._due = 0.0
        self._shown_at = -1.0

    def begin(self) -> None:
        """Restart the schedule now, so the time before it does not count as game time."""
        self._due = self._clock()

    async def follow(
        self, before: Mapping[str, int], result: StepResult, specs: Mapping[str, BehaviorSpec], people: bool
    ) -> bool:
        """Show a step's frames.

        Args:
            before: the score before the step.
            result: the step's result.
            specs: the specs of all behaviours.
            people: whether people play, since they need more time between games.

        Returns:
            True if a game or an episode has ended.
        """
        last = await self._roll()
        over, winner = self.standings.add(result, specs)
        if over:
            note = ("won" if winner else "drawn") if result.games is not None else "over"
            await self._rest(last, GAME_S if people else ROUND_S, note, winner)
        elif scorer := _scorer(before, self._film.score):
            await self._rest(last, ROUND_S, "point", scorer)
            if people:
                await self._rest(self._film.now(), ROUND_S, "1")
        return over

    async def count_down(self) -> None:
        """Count down so people can get ready for a game."""
        for left in range(COUNT_DOWN, 0, -1):
            await self._rest(self._film.now(), COUNT_S, str(left))

    async def put(self, note: str = "", about: str = "") -> None:
        """Show the current state, without waiting."""
        await self._put(Shown(self._film.now(), note, about))

    async def _roll(self) -> Picture:
        """Show each of a step's frames at the right time; return the last frame."""
        pictures = self._film.take() or [self._film.now()]
        for picture in pictures:
            await self._wait(self._film.frame_s / self.speed)
            if self._clock() - self._shown_at >= FASTEST_S:
                await self._put(Shown(picture))
        return pictures[-1]

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
            self.begin()
        await self._sleep(max(0.0, left))


def _scorer(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    return next((behavior_id for behavior_id, points in after.items() if points > before.get(behavior_id, 0)), "")
