"""A scripted player for each side. The players see what policies see, keep no state, and draw no random numbers.

The nearer pursuer runs at the evader; the farther one cuts off its escape. The evader considers positions all over the
arena and heads for the one with the greatest lead over the pursuers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array, Floats
from headrace.stages.games.pursuit.motion import (
    CATCH_DISTANCE,
    DIRECTIONS,
    EVADER_SPEED,
    HALF_WIDTH,
    PURSUER_SPEED,
    ArenaView,
)

_LEAD: Final = 0.6
"""A pursuer extrapolates the evader's motion over this fraction of the time it needs to reach the evader."""
_FLANK: Final = 0.35
"""Distance beyond the evader at which the farther pursuer aims, as a fraction of the nearer pursuer's distance."""
_GRID: Final = 7
"""Number of positions along each side of the arena that the evader considers."""
_ON_THE_WAY: Final = (0.25, 0.5, 1.0)
"""Fractions of the way to a position at which the evader compares times of arrival."""

_steps = np.linspace(-HALF_WIDTH, HALF_WIDTH, _GRID)
_REFUGES: Final[Floats] = np.stack(np.meshgrid(_steps, _steps), axis=-1).reshape(-1, 2).astype(np.float32)
"""[49, 2] the positions that the evader considers."""


class ScriptedPursuer:
    """Plays any number of pursuers simultaneously; equal observations always get equal actions."""

    def act(self, observations: tuple[Array, ...]) -> ActionBatch:
        """Decide for d pursuers, given their observations [d, 13]."""
        seen = ArenaView.of(observations[0])
        mate, evader, flight = seen.first[:, :2], seen.second[:, :2], seen.second[:, 2:]
        distance = _size(evader)[:, None]
        mates_distance = _size(evader - mate)[:, None]
        aim = evader + flight * (_LEAD * distance / PURSUER_SPEED)
        beyond = (evader - mate) / np.maximum(mates_distance, 1e-6)
        flank = aim + beyond * (_FLANK * np.minimum(mates_distance, distance))
        aim = np.where(distance <= mates_distance, aim, flank)
        inside = np.clip(aim + seen.own[:, :2], -HALF_WIDTH, HALF_WIDTH) - seen.own[:, :2]
        return _towards(inside)

    __call__ = act


class ScriptedEvader:
    """Plays any number of evaders simultaneously; equal observations always get equal actions."""

    def act(self, observations: tuple[Array, ...]) -> ActionBatch:
        """Decide for d evaders, given their observations [d, 13]."""
        seen = ArenaView.of(observations[0])
        way = _REFUGES - seen.own[:, None, :2]
        ahead = np.full(way.shape[:2], np.inf, np.float32)
        for share in _ON_THE_WAY:
            there = share * way
            mine = _size(there) / EVADER_SPEED
            for pursuer in (seen.first, seen.second):
                theirs = (_size(there - pursuer[:, None, :2]) - CATCH_DISTANCE) / PURSUER_SPEED
                np.minimum(ahead, theirs - mine, out=ahead)
        return _towards(way[np.arange(len(way)), ahead.argmax(axis=1)])

    __call__ = act


def _size(way: Floats) -> Floats:
    """Return the lengths [...] of vectors [..., 2]."""
    return np.asarray(np.sqrt(np.square(way).sum(axis=-1)), np.float32)


def _towards(way: Floats) -> ActionBatch:
    """Return the action whose direction is nearest to each vector [d, 2]."""
    return _choices((way @ DIRECTIONS[1:].T).argmax(axis=1) + 1)


def _choices(choices: NDArray[np.signedinteger]) -> ActionBatch:
    return ActionBatch(np.zeros((len(choices), 0), np.float32), choices[:, None].astype(np.int32))
