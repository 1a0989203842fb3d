"""The goal is -1 or 1: see which, and move every coordinate there. With pictures it is the scene `visual`."""

from __future__ import annotations

import argparse
import itertools
import random

from unity_client.channels import Channels
from unity_client.pictures import png
from unity_client.report import Report
from unity_client.says import PICTURE, Act, Behavior, Say, Sensor

STEP_SIZE = 0.2
"""How far a step leads at most, unless the parameter `step_size` says otherwise."""
END_REWARD = 1.06
"""For all coordinates at the goal; makes up for what the steps cost."""
STEP_REWARD = -0.01
SIZE = 20
"""Of pictures, in pixels."""


class Simple:
    """Several behaviours of several agents each, who don't know each other."""

    def __init__(self, options: argparse.Namespace, dice: random.Random, channels: Channels, report: Report) -> None:
        self._options = options
        self._report = report
        self._clock = 0
        names = options.behaviors or ["Simple?team=0"]
        self.behaviors = {name: Behavior(name, _sensors(options), *_actions(options)) for name in names}
        ids = itertools.count()
        self._agents = {
            (name, index): _Agent(ids, name, late=place > 0 and options.second_at > 0, shared=(options, dice, channels))
            for place, name in enumerate(names)
            for index in range(options.agents or 1)
        }

    def reset(self) -> None:
        for agent in self._agents.values():
            agent.begin()

    def act(self, behavior: str, agent: int, act: Act) -> None:
        next(a for a in self._agents.values() if a.behavior == behavior and a.id == agent).act = act

    def advance(self) -> list[Say]:
        self._clock += 1
        says = []
        for agent in self._agents.values():
            if agent.late and self._clock < self._options.second_at:
                continue
            says += agent.live(self._report)
        return says


class _Agent:
    def __init__(
        self,
        ids: itertools.count[int],
        behavior: str,
        late: bool,
        shared: tuple[argparse.Namespace, random.Random, Channels],
    ) -> None:
        self.behavior = behavior
        self.late = late
        self.act: Act | None = None
        self._options, self._dice, self._channels = shared
        self._continuous, self._branches = _actions(self._options)
        self._ids = ids
        self.id = next(ids)
        self.begin()

    def begin(self) -> None:
        if self._options.new_ids:
            self.id = next(self._ids)
        self.act = None
        self._goal = self._dice.choice((-1.0, 1.0))
        self._positions = [0.0] * (self._continuous + len(self._branches))
        self._steps = 0
        self._mask = self._draw_mask()

    def live(self, report: Report) -> list[Say]:
        """One step: what it has to say."""
        if self.act is None:
            return [self._say()]
        self._move(self.act)
        self.act = None
        arrived = all(abs(position) == 1.0 for position in self._positions)
        interrupted = not arrived and 0 < self._options.max_steps <= self._steps
        if not (arrived or interrupted):
            return [self._say(STEP_REWARD)]
        right = sum(position * self._goal for position in self._positions) / len(self._positions)
        report.measures[self.behavior].append(right if arrived else 0.0)
        end = self._say(END_REWARD * right if arrived else STEP_REWARD)
        end.done, end.interrupted = True, interrupted
        self.begin()
        return [end, self._say()]

    def _move(self, act: Act) -> None:
        size = self._channels.value("step_size", STEP_SIZE)
        wanted = [*act.continuous, *(0.0 if choice > 1 else 2.0 * choice - 1.0 for choice in act.discrete)]
        for place, way in enumerate(wanted):
            step = max(-size, min(size, way))
            self._positions[place] = max(-1.0, min(1.0, self._positions[place] + step))
        self._steps += 1
        self._mask = self._draw_mask()

    def _say(self, reward: float = 0.0) -> Say:
        seen = [_seen(sensor, self._goal) for sensor in _sensors(self._options)]
        return Say(self.behavior, self.id, seen, reward, mask=self._mask)

    def _draw_mask(self) -> list[bool]:
        if not self._options.mask:
            return []
        return [choice > 1 and self._dice.random() < 0.5 for size in self._branches for choice in range(size)]


def _actions(options: argparse.Namespace) -> tuple[int, tuple[int, ...]]:
    if options.continuous or options.branches:
        return options.continuous, tuple(options.branches)
    return 1, ()


def _sensors(options: argparse.Namespace) -> tuple[Sensor, ...]:
    visual = options.scene == "visual"
    vectors = options.vectors if options.vectors is not None else int(not visual)
    visuals = options.visuals if options.visuals is not None else int(visual)
    made = [Sensor(f"vector{i}", (1,), goal=options.goal_signal and i == 0) for i in range(vectors)]
    return (*made, *(_picture_sensor(options.picture, f"picture{i}") for i in range(visuals)))


def _picture_sensor(form: str, name: str) -> Sensor:
    match form:
        case "gray":
            return Sensor(name, (1, SIZE, SIZE), PICTURE, png=True)
        case "stack":  # two of three channels each, in two files
            return Sensor(name, (6, SIZE, SIZE), PICTURE, png=True)
        case "mapped":  # two gray ones, each in a file of three equal channels
            return Sensor(name, (2, SIZE, SIZE), PICTURE, png=True, mapping=(0, 0, 0, 1, 1, 1))
        case "uncompressed":
            return Sensor(name, (3, SIZE, SIZE), PICTURE)
        case _:
            return Sensor(name, (3, SIZE, SIZE), PICTURE, png=True)


def _seen(sensor: Sensor, value: float) -> list[float] | bytes:
    if len(sensor.shape) == 1:
        return [value]
    if not sensor.png:
        return [value] * (sensor.shape[0] * SIZE * SIZE)
    level = round((value + 1) * 127.5)
    files = 2 if sensor.shape[0] in (2, 6) else 1
    return png(SIZE, SIZE, (level, level, level)) * files
