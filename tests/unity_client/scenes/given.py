"""Agents of any sensors and actions, who see numbers that anybody can draw again, and report what they are told.

For models and demonstrations that others have made.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from typing import Any

from unity_client.report import Report
from unity_client.says import PICTURE, VARIABLE, Act, Behavior, Say, Sensor

NAME = "Given?team=0"
LONGEST = 20
"""Decisions after which an episode ends, unless `--max-steps` says otherwise; every other one is interrupted."""
REPORTED = 200
"""Decisions that are reported, in their order: agent, its decision's number, what it was told."""
_DIMENSIONS = {1: (1,), 2: VARIABLE, 3: PICTURE}


class Given:
    """All agents decide at every step."""

    def __init__(self, options: argparse.Namespace, dice: random.Random, report: Report) -> None:
        self._shapes = [tuple(map(int, shape.split("x"))) for shape in options.shapes or ["1"]]
        sensors = tuple(Sensor(f"sensor{i}", each, _DIMENSIONS[len(each)]) for i, each in enumerate(self._shapes))
        name = options.behaviors[0] if options.behaviors else NAME
        self.behaviors = {name: Behavior(name, sensors, options.continuous, tuple(options.branches))}
        self._name = name
        self._mask = options.mask
        self._dice = dice
        self._longest = options.max_steps or LONGEST
        self._ages = [0] * (options.agents or 2)
        self._clock = 0
        self._told: list[Any] = report.facts.setdefault("told", [])

    def reset(self) -> None:
        self._ages = [0] * len(self._ages)

    def act(self, behavior: str, agent: int, act: Act) -> None:
        if len(self._told) < REPORTED:
            self._told.append([agent, self._clock, list(act.continuous), list(act.discrete)])

    def advance(self) -> list[Say]:
        self._clock += 1
        says = []
        for agent, age in enumerate(self._ages):
            if age == self._longest:
                interrupted = self._clock // self._longest % 2 == 0
                says.append(Say(self._name, agent, self._seen(agent), 1.0, done=True, interrupted=interrupted))
                self._ages[agent] = age = 0
            says.append(Say(self._name, agent, self._seen(agent), 0.1 * (age > 0), mask=self._forbidden()))
            self._ages[agent] += 1
        return says

    def _seen(self, agent: int) -> list[list[float]]:
        return seen(agent, self._clock, self._shapes)

    def _forbidden(self) -> list[bool]:
        if not self._mask:
            return []
        branches = self.behaviors[self._name].branches
        return [choice > 0 and self._dice.random() < 0.5 for size in branches for choice in range(size)]


def seen(agent: int, clock: int, shapes: Sequence[tuple[int, ...]]) -> list[list[float]]:
    """What an agent sees: flat numbers from 0 to 1 for each sensor, as the shape says."""
    dice = random.Random(f"{agent} at {clock}")
    return [[dice.random() for _ in range(math.prod(shape))] for shape in shapes]
