"""Carts that each keep a pole up: the task of Gymnasium's CartPole with a continuous push. Every step is worth 1."""

from __future__ import annotations

import argparse
import math
import random

from unity_client.report import Report
from unity_client.says import Act, Behavior, Say, Sensor

NAME = "Balance?team=0"
AGENTS = 12
LONGEST = 200
"""Steps after which an episode is interrupted, which is its best return."""
LEAN, TRACK = math.radians(12.0), 2.4
"""The angle and the place at which an episode has failed."""
PUSH = 10.0
"""Newtons of an action of 1."""
SECONDS = 0.02
"""Of a step; the equations are those of Barto, Sutton and Anderson (1983), with a cart of 1 kg, a pole of 0.1 kg and 1 m."""
GRAVITY, MASS, POLE_MASS, HALF_POLE = 9.8, 1.1, 0.1, 0.5


class Balance:
    """Agents that don't know each other; all decide at every step."""

    def __init__(self, options: argparse.Namespace, dice: random.Random, report: Report) -> None:
        self.behaviors = {NAME: Behavior(NAME, (Sensor("pole and cart", (4,)),), 1, ())}
        self._carts = [_Cart(number, dice, report) for number in range(options.agents or AGENTS)]

    def reset(self) -> None:
        for cart in self._carts:
            cart.begin()

    def act(self, behavior: str, agent: int, act: Act) -> None:
        self._carts[agent].push = PUSH * max(-1.0, min(1.0, act.continuous[0]))

    def advance(self) -> list[Say]:
        return [say for cart in self._carts for say in cart.live()]


class _Cart:
    def __init__(self, number: int, dice: random.Random, report: Report) -> None:
        self._number = number
        self._dice = dice
        self._report = report
        self.begin()

    def begin(self) -> None:
        self.push: float | None = None
        self._steps = 0
        self._angle, self._turn, self._place, self._speed = (self._dice.uniform(-0.05, 0.05) for _ in range(4))

    def live(self) -> list[Say]:
        """One step: what it has to say."""
        if self.push is None:
            return [self._say()]
        self._move(self.push)
        self.push = None
        fallen = abs(self._angle) > LEAN or abs(self._place) > TRACK
        if not fallen and self._steps < LONGEST:
            return [self._say(1.0)]
        self._report.measures[NAME].append(self._steps / LONGEST)
        end = self._say(1.0)
        end.done, end.interrupted = True, not fallen
        self.begin()
        return [end, self._say()]

    def _move(self, push: float) -> None:
        sine, cosine = math.sin(self._angle), math.cos(self._angle)
        thrown = (push + POLE_MASS * HALF_POLE * self._turn**2 * sine) / MASS
        turning = (GRAVITY * sine - cosine * thrown) / (HALF_POLE * (4.0 / 3.0 - POLE_MASS * cosine**2 / MASS))
        hastening = thrown - POLE_MASS * HALF_POLE * turning * cosine / MASS
        self._place += SECONDS * self._speed
        self._speed += SECONDS * hastening
        self._angle += SECONDS * self._turn
        self._turn += SECONDS * turning
        self._steps += 1

    def _say(self, reward: float = 0.0) -> Say:
        return Say(NAME, self._number, [[self._angle, self._turn, self._place, self._speed]], reward)
