"""A scripted player for each side. They see what policies see, keep nothing, and know nothing of chance.

The pursuer that is nearer runs at the evader; the farther one runs to where it would cut off the flight. The evader
thinks of the eight directions and takes the one that leaves most room to the pursuers and the walls a moment later.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from queues.messages import Array
from stages.environment.protocol import ActionBatch
from stages.environment.pursuit.motion import DIRECTIONS, Floats
from stages.environment.pursuit.observing import Seen
from stages.environment.pursuit.rules import EVADER_SPEED, HALF_WIDTH, PURSUER_SPEED

_LEAD: Final = 0.6
"""Share of the time to the evader over which a pursuer believes in the evader's present speed."""
_FLANK: Final = 0.35
"""How far beyond the evader the farther pursuer aims, as a share of the mate's distance from it."""
_FORESIGHT_S: Final = 0.45
"""How far the evader thinks ahead."""
_WALL_CARE: Final = 0.35
"""How much a metre from the nearest wall counts for the evader, where one from a pursuer counts 1."""


class ScriptedPursuer:
    """Plays any number of pursuers at once; the same observations always get the same actions."""

    def act(self, observations: tuple[Array, ...]) -> ActionBatch:
        """Decide for d pursuers from their observations [d, 13]."""
        seen = Seen.of(observations[0])
        mate, evader, flight = seen.first[:, :2], seen.second[:, :2], seen.second[:, 2:]
        distance = _length(evader)
        mates_distance = _length(evader - mate)
        aim = evader + flight * (_LEAD * distance / PURSUER_SPEED)
        beyond = (evader - mate) / np.maximum(mates_distance, 1e-6)
        flank = aim + beyond * (_FLANK * np.minimum(mates_distance, distance))
        aim = np.where(distance <= mates_distance, aim, flank)
        inside = np.clip(aim + seen.own[:, :2], -HALF_WIDTH, HALF_WIDTH) - seen.own[:, :2]
        return _towards(inside)

    __call__ = act


class ScriptedEvader:
    """Plays any number of evaders at once; the same observations always get the same actions."""

    def act(self, observations: tuple[Array, ...]) -> ActionBatch:
        """Decide for d evaders from their observations [d, 13]."""
        seen = Seen.of(observations[0])
        own = seen.own[:, None, :2]
        moved = np.clip(own + DIRECTIONS * (EVADER_SPEED * _FORESIGHT_S), -HALF_WIDTH, HALF_WIDTH) - own
        room = np.minimum(*(self._distance(moved, pursuer) for pursuer in (seen.first, seen.second)))
        to_wall = HALF_WIDTH - np.abs(own + moved).max(axis=2)
        return _choices((room + _WALL_CARE * to_wall).argmax(axis=1))

    __call__ = act

    @staticmethod
    def _distance(moved: Floats, pursuer: Floats) -> Floats:
        """[d, 9] from a pursuer that goes on as it does, after each of the moves."""
        then = pursuer[:, None, :2] + pursuer[:, None, 2:] * _FORESIGHT_S
        return np.asarray(np.sqrt(np.square(then - moved).sum(axis=2)), np.float32)


def _length(way: Floats) -> Floats:
    return np.asarray(np.sqrt(np.square(way).sum(axis=1, keepdims=True)), np.float32)


def _towards(way: Floats) -> ActionBatch:
    """The direction nearest to each way [d, 2]."""
    return _choices((way @ DIRECTIONS[1:].T).argmax(axis=1) + 1)


def _choices(choices: NDArray[np.signedinteger]) -> ActionBatch:
    return ActionBatch(np.zeros((len(choices), 0), np.float32), choices[:, None].astype(np.int32))
