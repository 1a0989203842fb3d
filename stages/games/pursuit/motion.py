"""Many arenas at once: the agents' places and speeds, and one tick of their motion.

Pure mechanics, no rules: nothing here knows of games or rewards. Agents pass through each other. Axis letters: C
arenas; the agents' axis has the pursuers first and the evader last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Floats
from headrace.stages.games.pursuit.rules import (
    ACCELERATION,
    AGENTS,
    CATCH_DISTANCE,
    EVADER,
    EVADER_SPEED,
    HALF_WIDTH,
    PURSUER_SPEED,
    PURSUERS,
    START_WITHIN,
    TICK_S,
)

SPEEDS: Floats = np.array([PURSUER_SPEED] * PURSUERS + [EVADER_SPEED], np.float32)
"""[3] top speed of each agent."""

_angles = np.arange(8) * (np.pi / 4)
DIRECTIONS: Floats = np.concatenate([np.zeros((1, 2)), np.stack([np.cos(_angles), np.sin(_angles)], 1)]).astype(
    np.float32
)
"""[9, 2] directions of the actions: stand still, then eight directions, anticlockwise from +x."""


@dataclass(frozen=True, slots=True)
class Arenas:
    """Places and speeds of all agents in C arenas; `advance` changes the arrays in place."""

    places: Floats
    """[C, 3, 2] x, y"""
    speeds: Floats
    """[C, 3, 2] metres per second in x and y"""

    @classmethod
    def empty(cls, arenas: int) -> Arenas:
        """Return arenas with all agents in the middle, at rest."""
        return cls(np.zeros((arenas, AGENTS, 2), np.float32), np.zeros((arenas, AGENTS, 2), np.float32))

    def place(self, arenas: NDArray[np.signedinteger], random: np.random.Generator) -> None:
        """Put all agents at their starts: the evader near the middle, each pursuer anywhere at a wall."""
        count = len(arenas)
        draws = random.random((count, AGENTS, 2), dtype=np.float32)
        places = (2 * draws - 1) * np.float32(HALF_WIDTH)
        places[:, EVADER] *= np.float32(START_WITHIN / HALF_WIDTH)
        wall = random.integers(0, 4, (count, PURSUERS))
        sides = np.where(wall % 2, HALF_WIDTH, -HALF_WIDTH).astype(np.float32)
        pursuers = places[:, :PURSUERS]
        pursuers[..., 0] = np.where(wall < 2, sides, pursuers[..., 0])
        pursuers[..., 1] = np.where(wall < 2, pursuers[..., 1], sides)
        self.places[arenas] = places
        self.speeds[arenas] = 0.0


def advance(arenas: Arenas, wanted: Floats) -> None:
    """Move all agents by one tick, changing `arenas`.

    Args:
        arenas: changed in place.
        wanted: [C, 3, 2] the velocity that each agent aims at.
    """
    speeds, places = arenas.speeds, arenas.places
    change = wanted - speeds
    size = np.sqrt(np.square(change).sum(axis=2, keepdims=True))
    most = np.float32(ACCELERATION * TICK_S)
    change *= most / np.maximum(size, most)
    speeds += change
    places += speeds * np.float32(TICK_S)
    speeds[np.abs(places) > HALF_WIDTH] = 0.0
    np.clip(places, -HALF_WIDTH, HALF_WIDTH, out=places)


def caught(arenas: Arenas, distance: float = CATCH_DISTANCE) -> NDArray[np.bool_]:
    """Return [C] true where a pursuer is at most `distance` metres from the evader."""
    way = arenas.places[:, :PURSUERS] - arenas.places[:, EVADER:]
    return np.asarray((np.square(way).sum(axis=2) <= distance**2).any(axis=1))
