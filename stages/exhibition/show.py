"""A game that people see: one instance, stepped at the game's own pace, which waits for the people who play.

The same group serves a separate game, played only for viewers, and the run's only instance in which people play.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.protocol import EnvironmentGroup, StepResult, WrappedGroup, maybe_await
from headrace.stages.evaluation.scores import ScoreKeeper
from headrace.stages.exhibition.film import FilmedGroup, Picture
from headrace.stages.exhibition.people import HumanControllers

T = TypeVar("T")


class Standings:
    """The results of the games shown so far."""

    def __init__(self) -> None:
        self.wins: dict[str, int] = {}
        """Number of games won, keyed by behaviour id, if teams play each other."""
        self.games = 0
        """Number of games, or episodes, that have ended."""
        self.returns: dict[str, float] = {}
        """The last episode's return, averaged over agents, keyed by behaviour id."""
        self._scores = ScoreKeeper()

    def begin(self, result: StepResult) -> None:
        """Add the result of a reset, which begins a game."""
        self._scores.begin(1, result)

    def add(self, result: StepResult, ids: Mapping[str, Any]) -> tuple[bool, str]:
        """Add a step's result; return whether a game or an episode has ended, and the winner, if any."""
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
_ABSENCE_S = 0.1
"""Seconds between checks for whether the person has left, while the game waits for a key."""


@dataclass(frozen=True, slots=True)
class ShownFrame:
    """A frame and a note about it."""

    picture: Picture
    note: str = ""
    """`3`, `2`, `1`, `point`, `won`, `drawn`, `over`, `key` (the game waits for a key) or empty."""
    about: str = ""
    """Behaviour id that the note is about; empty if there is none."""


class PacedGroup(WrappedGroup):
    """A group that takes the time of its frames for each step, and withholds its rows until people can decide on them.

    While rows are withheld, ticks are empty, and each ends when `HumanControllers.changed` is set, so an actor can
    handle messages between ticks even while the game waits for people.

    Args:
        group: the group to step, with one instance; it is closed together with this one.
        film: the source of frames.
        people: the people who play.
        show: called with each frame.
        tell: called with the behaviour ids whose people the game begins to wait for, and with none when they are back.

    Attributes:
        has_deadlines: True while the game waits for people or for the time of the next frame, during which no progress
            is expected.
        standings: the results of the games so far.
    """

    def __init__(
        self,
        group: EnvironmentGroup,
        film: FilmedGroup,
        people: HumanControllers,
        show: Callable[[ShownFrame], Awaitable[None]],
        tell: Callable[[list[str]], None] = lambda missing: None,
    ) -> None:
        super().__init__(group)
        self.behavior_specs: Mapping[str, BehaviorSpec] = group.behavior_specs
        self.has_deadlines = False
        self.standings = Standings()
        self._film = film
        self._people = people
        self._show = show
        self._tell = tell
        self._withheld: StepResult | None = None
        """A result whose rows no one has decided on yet; None if the next tick steps the environment."""
        self._begins = False
        """True if a game begins with the withheld rows, so people get a countdown first."""
        self._restarting = self._ending = False
        self._waits_for: list[str] = []
        self._due = 0.0
        self._shown_at = -1.0
        if hasattr(group, "set_parameters"):
            self.set_parameters = group.set_parameters

    def restart(self) -> None:
        """Start a new game at the next tick, with the standings at zero, because the players have changed."""
        self._restarting = True
        self._people.changed.set()

    def request_stop(self) -> None:
        """End all waits, because the run is ending."""
        super().request_stop()
        self._ending = True
        self._people.changed.set()

    async def reset(self, seed: int | None = None) -> StepResult:
        """Reset the group, but return no rows that need a decision.

        The first `step` returns these rows, because people may be absent now.
        """
        result = await maybe_await(self._group.reset, seed)
        self._begin(result)
        self._withheld = StepResult(result.steps)
        await self._unsupervised(self._show_frame(ShownFrame(self._film.now())))
        return replace(result, steps={})

    async def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Step at the game's own pace, or wait for a change, after which the withheld rows may follow."""
        if self._restarting:
            self._restarting, self.standings = False, Standings()
            self._withheld = await maybe_await(self._group.reset)
            self._begin(self._withheld)
        elif self._withheld is None:
            self._people.decided(behavior_id for behavior_id, batch in actions.items() if len(batch.discrete))
            before = self._film.score
            self._withheld = result = await maybe_await(self._group.step, actions)
            self.behavior_specs = self._group.behavior_specs
            self._begins = await self._unsupervised(self._show_step(before, result))
        if not await self._unsupervised(self._may_go_on(self._withheld)):
            return StepResult({})
        result, self._withheld = self._withheld, None
        return result

    def _begin(self, result: StepResult) -> None:
        self.behavior_specs = self._group.behavior_specs
        self._film.take()
        self.standings.begin(result)
        self._begins = True

    async def _unsupervised(self, waiting: Awaitable[T]) -> T:
        self.has_deadlines = True
        try:
            return await waiting
        finally:
            self.has_deadlines = False

    # Waiting for people. ---------------------------------------------------------------------------------------------

    async def _may_go_on(self, withheld: StepResult) -> bool:
        """Return True if all people who must decide are present; otherwise wait for a change and return False."""
        people = self._people
        if self._begins and not people.paused and not people.missing(self.behavior_specs.values()):
            self._begins = False
            self._due = _now()
            if people.present:
                for left in range(COUNT_DOWN, 0, -1):
                    await self._rest(self._film.now(), COUNT_S, str(left))
                people.decided(people.present)  # taps during the wait were meant for the previous game
        missing = people.missing(self.behavior_specs.values())
        if missing != self._waits_for:
            self._waits_for = missing
            self._tell(missing)
        stopped, about = people.paused or bool(missing), ""
        if not stopped:
            about = people.undecided(self.behavior_specs, withheld.steps)
            if not about:
                return True
            await self._show_frame(ShownFrame(self._film.now(), "key", about))
        self._begins |= stopped
        with suppress(TimeoutError):
            async with asyncio.timeout(_ABSENCE_S if about else None):
                await people.changed.wait()
        people.changed.clear()
        self._due = _now()  # the time of the wait does not count as game time
        return False

    # Frames: a step lasts until its last frame has been shown long enough. -------------------------------------------

    async def _show_step(self, before: Mapping[str, int], result: StepResult) -> bool:
        """Show a step's frames, given the score before the step; return True if a game or an episode has ended.

        A point and the end of a game are followed by a pause, which is longer if people play.
        """
        pictures = self._film.take() or [self._film.now()]
        for picture in pictures:
            await self._wait(self._film.frame_s / self._people.speed)
            if _now() - self._shown_at >= FASTEST_S:
                await self._show_frame(ShownFrame(picture))
        over, winner = self.standings.add(result, self.behavior_specs)
        people = bool(self._people.present)
        if over:
            note = ("won" if winner else "drawn") if result.games is not None else "over"
            await self._rest(pictures[-1], GAME_S if people else ROUND_S, note, winner)
        elif scorer := next((i for i, points in self._film.score.items() if points > before.get(i, 0)), ""):
            await self._rest(pictures[-1], ROUND_S, "point", scorer)
            if people:
                await self._rest(self._film.now(), ROUND_S, "1")
        return over

    async def _rest(self, picture: Picture, seconds: float, note: str, about: str = "") -> None:
        await self._show_frame(ShownFrame(picture, note, about))
        await self._wait(seconds / max(1.0, self._people.speed))

    async def _show_frame(self, frame: ShownFrame) -> None:
        self._shown_at = _now()
        await self._show(frame)

    async def _wait(self, seconds: float) -> None:
        self._due += seconds
        left = self._due - _now()
        if left < -_LATE_S:
            self._due = _now()
        if not self._ending:
            await asyncio.sleep(max(0.0, left))


def _now() -> float:
    return asyncio.get_running_loop().time()
