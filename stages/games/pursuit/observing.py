"""The observations of both sides, and views of them for scripted players (`ArenaView`).

An agent sees its own place and speed, the others' places relative to its own and their speeds, and the time left. A
pursuer sees its mate and then the evader; the evader sees the nearer pursuer and then the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from headrace.queues.messages import Floats
from headrace.stages.games.pursuit.motion import Arenas
from headrace.stages.games.pursuit.rules import AGENTS, EVADER, PURSUERS

OBSERVATION_SIZE: Final = 4 * AGENTS + 1
"""x, y, vx, vy of the agent itself and of both others, and the time left as a share of a game."""


def observe(arenas: Arenas, time_left: Floats) -> tuple[Floats, Floats]:
    """Return the observations of pursuers [2 C, 13], arena by arena, and of evaders [C, 13].

    Args:
        arenas: the arenas.
        time_left: [C] share of the game's time that is left.
    """
    state = np.concatenate([arenas.places, arenas.speeds], axis=2)
    count = len(state)
    pursuers = np.empty((count, PURSUERS, OBSERVATION_SIZE), np.float32)
    pursuers[..., :4] = state[:, :PURSUERS]
    pursuers[..., 4:8] = _from(state[:, :PURSUERS], state[:, PURSUERS - 1 :: -1])
    pursuers[..., 8:12] = _from(state[:, :PURSUERS], state[:, EVADER:])
    pursuers[..., 12] = time_left[:, None]
    evaders = np.empty((count, OBSERVATION_SIZE), np.float32)
    evaders[:, :4] = state[:, EVADER]
    others = _from(state[:, EVADER:], state[:, :PURSUERS])
    distance = np.square(others[..., :2]).sum(axis=2)
    second_is_nearer = (distance[:, 1] < distance[:, 0])[:, None]
    evaders[:, 4:8] = np.where(second_is_nearer, others[:, 1], others[:, 0])
    evaders[:, 8:12] = np.where(second_is_nearer, others[:, 0], others[:, 1])
    evaders[:, 12] = time_left
    return pursuers.reshape(count * PURSUERS, OBSERVATION_SIZE), evaders


def _from(viewer: Floats, other: Floats) -> Floats:
    """Return the other's place relative to the viewer's, and its own speed."""
    seen = np.broadcast_to(other, np.broadcast_shapes(viewer.shape, other.shape)).copy()
    seen[..., :2] -= viewer[..., :2]
    return seen


@dataclass(frozen=True, slots=True)
class ArenaView:
    """Observations [d, 13] by agent, each [d, 4]: x, y, vx, vy; places of others are relative to the observer's."""

    own: Floats
    first: Floats
    """A pursuer's mate; the pursuer that is nearer to an evader."""
    second: Floats
    """The evader; the other pursuer."""

    @classmethod
    def of(cls, observations: Floats) -> ArenaView:
        """Split observations."""
        return cls(observations[:, :4], observations[:, 4:8], observations[:, 8:12])
