"""Many arenas simultaneously: constants, the agents' positions and velocities, one tick of motion, and observations.

Pure mechanics: this module has no games or rewards. Lengths are in metres, times in seconds. The constants are tuned so
that the scripted players of both sides win about half of their games, and skill decides the rest. Agents pass through
each other. Axis letters: C arenas; the agents' axis has the pursuers first and the evader last.

An agent observes its own position and velocity, the other agents' positions relative to its own and their velocities,
and the time left. A pursuer sees its teammate and then the evader; the evader sees the nearer pursuer and then the
other one. `ArenaView` splits observations for scripted players.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Floats

PURSUERS: Final = 2
AGENTS: Final = PURSUERS + 1
EVADER: Final = PURSUERS
"""Index of the evader on the agents' axis; the pursuers come first."""
PURSUER_TEAM: Final = 0
EVADER_TEAM: Final = 1

HALF_WIDTH: Final = 1.0
"""Half the side length of the arena, a square around the origin."""
TICK_S: Final = 0.04
"""Seconds per tick of motion; in one tick no agent moves farther than the catch distance."""
TICKS_PER_DECISION: Final = 3

PURSUER_SPEED: Final = 0.5
EVADER_SPEED: Final = 1.0
ACCELERATION: Final = 6.0
CATCH_DISTANCE: Final = 0.07
"""Distance between the centres of a pursuer and the evader at which the evader is caught."""

FASTEST: Final = CATCH_DISTANCE / TICK_S
"""Highest speed at which an agent moves no farther than the catch distance in one tick."""

START_WITHIN: Final = 0.35
"""Bound on both coordinates of the evader's start, near the centre. Pursuers start at the walls."""

STEP_REWARD: Final = 0.005
"""The evader's reward for each decision, and each pursuer's penalty."""
RESULT_REWARD: Final = 1.0
"""The winners' reward at a game's end, and the losers' penalty."""


SPEEDS: Floats = np.array([PURSUER_SPEED] * PURSUERS + [EVADER_SPEED], np.float32)
"""[3] top speed of each agent."""

_angles = np.arange(8) * (np.pi / 4)
DIRECTIONS: Floats = np.concatenate([np.zeros((1, 2)), np.stack([np.cos(_angles), np.sin(_angles)], 1)]).astype(
    np.float32
)
"""[9, 2] the actions' directions: stand still, then eight directions, anticlockwise from +x."""


@dataclass(frozen=True, slots=True)
class Arenas:
    """Positions and velocities of all agents in C arenas; `advance` changes the arrays in place."""

    places: Floats
    """[C, 3, 2] the agents' x and y positions, in metres."""
    speeds: Floats
    """[C, 3, 2] the agents' x and y velocities, in metres per second."""

    @classmethod
    def empty(cls, arenas: int) -> Arenas:
        """Return arenas with all agents at the centre, at rest."""
        return cls(np.zeros((arenas, AGENTS, 2), np.float32), np.zeros((arenas, AGENTS, 2), np.float32))

    def place(self, arenas: NDArray[np.signedinteger], random: np.random.Generator) -> None:
        """Move all agents to their starts: the evader near the centre, each pursuer anywhere along a wall."""
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
    """Move all agents by one tick.

    Args:
        arenas: changed in place.
        wanted: [C, 3, 2] each agent's target velocity.
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
    """Return [C] True where a pursuer is at most `distance` metres from the evader."""
    way = arenas.places[:, :PURSUERS] - arenas.places[:, EVADER:]
    return np.asarray((np.square(way).sum(axis=2) <= distance**2).any(axis=1))


OBSERVATION_SIZE: Final = 4 * AGENTS + 1
"""Size of an observation: x, y, vx, vy of the agent and of both others, and the fraction of the game's time left."""


def observe(arenas: Arenas, time_left: Floats) -> tuple[Floats, Floats]:
    """Return the observations of pursuers [2 C, 13], grouped by arena, and of evaders [C, 13].

    Args:
        arenas: the arenas.
        time_left: [C] the fraction of the game's time that is left.
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
    """Return the other agent's position relative to the viewer's, and the other agent's own velocity."""
    seen = np.broadcast_to(other, np.broadcast_shapes(viewer.shape, other.shape)).copy()
    seen[..., :2] -= viewer[..., :2]
    return seen


@dataclass(frozen=True, slots=True)
class ArenaView:
    """Observations [d, 13] split by agent, each [d, 4]: x, y (relative to the observer for other agents), vx, vy."""

    own: Floats
    first: Floats
    """[d, 4] the first other agent: a pursuer's teammate, or the pursuer nearer to the evader."""
    second: Floats
    """[d, 4] the second other agent: the evader if a pursuer observes, otherwise the farther pursuer."""

    @classmethod
    def of(cls, observations: Floats) -> ArenaView:
        """Split observations [d, 13]."""
        return cls(observations[:, :4], observations[:, 4:8], observations[:, 8:12])
