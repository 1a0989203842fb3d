"""Many agents with many numbers each, and nothing to learn: for speed, and for the order of actions."""

from __future__ import annotations

import argparse
import random

from unity_client.says import Act, Behavior, Say, Sensor

NAME = "Many?team=0"
FLOATS = 32
EPISODE = 100
"""Decisions; agents end at different times."""


class Many:
    """All agents decide at every step."""

    def __init__(self, options: argparse.Namespace, dice: random.Random) -> None:
        branches = tuple(options.branches)
        self.behaviors = {NAME: Behavior(NAME, (Sensor("numbers", (FLOATS,)),), options.continuous or 2, branches)}
        self._agents = options.agents or 64
        self._sights = [[dice.uniform(-1.0, 1.0) for _ in range(FLOATS)] for _ in range(self._agents + 97)]
        self._clock = 0

    def reset(self) -> None:
        self._clock = 0

    def act(self, behavior: str, agent: int, act: Act) -> None:
        pass

    def advance(self) -> list[Say]:
        says = []
        for agent in range(self._agents):
            age = (self._clock + agent) % EPISODE
            seen = [self._sights[agent + self._clock % 97]]
            if age == 0 and self._clock > 0:
                says.append(Say(NAME, agent, seen, 1.0, done=True, interrupted=True))
            says.append(Say(NAME, agent, seen, 0.0 if age == 0 or self._clock == 0 else 0.01))
        self._clock += 1
        return says
