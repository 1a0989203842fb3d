"""The constants of the pursuit game, in metres and seconds, and the order of its agents.

`motion` moves by them, `group` counts by them. They were tuned so that the scripted
players of both sides win about half of their games, and skill decides the rest.
"""

from __future__ import annotations

from typing import Final

PURSUERS: Final = 2
AGENTS: Final = PURSUERS + 1
EVADER: Final = PURSUERS
"""Index of the evader among the agents of an arena; the pursuers come first."""
PURSUER_TEAM: Final = 0
EVADER_TEAM: Final = 1

HALF_WIDTH: Final = 1.0
"""The arena is a square; its middle is the origin."""
TICK_S: Final = 0.04
"""Length of a tick of motion; nobody moves farther in it than a catch reaches."""
TICKS_PER_DECISION: Final = 3

PURSUER_SPEED: Final = 0.5
EVADER_SPEED: Final = 1.0
ACCELERATION: Final = 6.0
CATCH_DISTANCE: Final = 0.07
"""Between the middles of a pursuer and the evader."""

FASTEST: Final = CATCH_DISTANCE / TICK_S
"""Highest speed at which an agent moves no farther in a tick than a catch reaches."""

START_WITHIN: Final = 0.35
"""The evader starts in the middle: both coordinates are at most so far from 0. Pursuers start at the walls."""

STEP_REWARD: Final = 0.005
"""Reward of the evader for each decision, and cost of each pursuer."""
RESULT_REWARD: Final = 1.0
"""Reward of the winners at a game's end, and cost of the losers."""
