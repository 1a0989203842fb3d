"""Two teams race to the same end of a line: who is there first has won. The steps' luck keeps it from being a draw."""

from __future__ import annotations

import argparse
import random

from unity_client.channels import Channels
from unity_client.report import Report
from unity_client.says import Act, Behavior, Say, Sensor

STEP_SIZE = 0.25
LONGEST = 60
"""Steps after which a match is a draw."""
NAMES = ("Duel?team=0", "Duel?team=1")


class Duel:
    """Several matches, each between agents 2m and 2m + 1."""

    def __init__(self, options: argparse.Namespace, dice: random.Random, channels: Channels, report: Report) -> None:
        branches = tuple(options.branches)
        continuous = options.continuous or (0 if branches else 1)
        self.behaviors = {name: Behavior(name, (Sensor("course", (3,)),), continuous, branches) for name in NAMES}
        self._matches = [_Match(2 * number, dice, channels, report) for number in range(options.agents or 1)]

    def reset(self) -> None:
        for match in self._matches:
            match.begin()

    def act(self, behavior: str, agent: int, act: Act) -> None:
        self._matches[agent // 2].told[NAMES.index(behavior)] = act

    def advance(self) -> list[Say]:
        return [say for match in self._matches for say in match.live()]


class _Match:
    def __init__(self, first_id: int, dice: random.Random, channels: Channels, report: Report) -> None:
        self._first_id = first_id
        self._dice = dice
        self._channels = channels
        self._report = report
        self.begin()

    def begin(self) -> None:
        self.told: list[Act | None] = [None, None]
        self._goal = self._dice.choice((-1.0, 1.0))
        self._positions = [0.0, 0.0]
        self._steps = 0
        self._right = [0, 0]

    def live(self) -> list[Say]:
        """One step of both."""
        if self.told == [None, None]:
            return self._say()
        for team, act in enumerate(self.told):
            assert act is not None, "both are asked at once, so both answers come at once"
            self._move(team, act)
        self.told = [None, None]
        self._steps += 1
        if max(map(abs, self._positions)) < 1.0 and self._steps < LONGEST:
            return self._say()
        return self._end()

    def _move(self, team: int, act: Act) -> None:
        way = act.continuous[0] if act.continuous else 2.0 * act.discrete[0] - 1.0
        way = max(-1.0, min(1.0, way))
        self._right[team] += way * self._goal > 0
        size = self._channels.value("step_size", STEP_SIZE) * self._dice.uniform(0.5, 1.5)
        self._positions[team] += way * size

    def _end(self) -> list[Say]:
        ahead = (self._positions[0] - self._positions[1]) * self._goal
        drawn = max(map(abs, self._positions)) < 1.0 or ahead == 0
        won = 0.0 if drawn else (1.0 if ahead > 0 else -1.0)
        ends = self._say((won, -won), done=True, interrupted=drawn)
        for team, name in enumerate(NAMES):
            self._report.measures[name].append(self._right[team] / self._steps)
        self.begin()
        return ends + self._say()

    def _say(
        self, rewards: tuple[float, float] = (0.0, 0.0), done: bool = False, interrupted: bool = False
    ) -> list[Say]:
        return [
            Say(
                name,
                self._first_id + team,
                [[self._goal, self._positions[team], self._positions[1 - team]]],
                rewards[team],
                done,
                interrupted,
            )
            for team, name in enumerate(NAMES)
        ]
