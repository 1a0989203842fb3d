"""Agents come and go at random, and decide at every fifth step. Each sees a list, now longer, now shorter, of marks
that point to -1 or 1; it is paid for pointing there too.
"""

from __future__ import annotations

import argparse
import itertools
import random

from unity_client.channels import Channels
from unity_client.report import Report
from unity_client.says import VARIABLE, Act, Behavior, Say, Sensor

NAME = "Crowd?team=0"
MARKS, FEATURES = 6, 3
"""Of the list: how many there may be, and what is known of each: which way it points, noise, and that it is there."""
LONGEST = 60
"""Steps after which an episode is interrupted; groups as a whole."""
SPAWN, DESPAWN = 0.1, 0.01
"""Chances per step, of a free place to be taken and of an agent to go."""
GROUP_SIZE = 3


class Crowd:
    """Places for agents, each taken or free; with `--groups`, three places make a group."""

    def __init__(self, options: argparse.Namespace, dice: random.Random, channels: Channels, report: Report) -> None:
        self._options = options
        self._dice = dice
        self._channels = channels
        self._report = report
        branches = tuple(options.branches)
        goal = (Sensor("goal", (1,), goal=True),) if options.goal_signal else ()
        continuous = options.continuous or (0 if branches else 1)
        sensors = (Sensor("marks", (MARKS, FEATURES), VARIABLE), Sensor("age", (1,)), *goal)
        self.behaviors = {NAME: Behavior(NAME, sensors, continuous, branches)}
        self._ids = itertools.count()
        self._places: list[_Agent | None] = [None] * (options.agents or 9)
        self._clock = 0
        self._group_clock = 0

    def reset(self) -> None:
        self._group_clock = 0
        for agent in self._agents():
            agent.begin()

    def act(self, behavior: str, agent: int, act: Act) -> None:
        next(a for a in self._agents() if a.id == agent).act = act

    def advance(self) -> list[Say]:
        says: list[Say] = []
        while not says:
            says = self._step()
        return says

    def _agents(self) -> list[_Agent]:
        return [agent for agent in self._places if agent is not None]

    def _step(self) -> list[Say]:
        self._clock += 1
        self._group_clock += 1
        self._pay()
        says = self._end_groups() if self._options.groups else self._interrupt()
        says += self._despawn()
        self._spawn()
        if self._clock % self._options.decision_period == 0:
            says += [agent.say() for agent in self._agents()]
        return says

    def _pay(self) -> None:
        for number, agents in self._groups().items():
            shares = [agent.work() / self._options.decision_period for agent in agents]
            for agent, share in zip(agents, shares, strict=True):
                if number:
                    agent.group_reward += sum(shares) / len(shares)
                else:
                    agent.reward += share

    def _groups(self) -> dict[int, list[_Agent]]:
        groups: dict[int, list[_Agent]] = {}
        for agent in self._agents():
            groups.setdefault(agent.group, []).append(agent)
        return groups

    def _interrupt(self) -> list[Say]:
        says = []
        for agent in self._agents():
            if agent.age >= LONGEST:
                says.append(agent.end(self._report, interrupted=True))
                agent.begin()
        return says

    def _end_groups(self) -> list[Say]:
        if self._group_clock < LONGEST:
            return []
        self._group_clock = 0
        says = [agent.end(self._report, interrupted=True) for agent in self._agents()]
        for agent in self._agents():
            agent.begin()
        return says

    def _despawn(self) -> list[Say]:
        says = []
        for place, agent in enumerate(self._places):
            if agent is not None and agent.age > 0 and self._dice.random() < DESPAWN:
                says.append(agent.end(self._report, interrupted=False))
                self._places[place] = None
        return says

    def _spawn(self) -> None:
        for place, agent in enumerate(self._places):
            if agent is None and self._dice.random() < self._channels.value("spawn", SPAWN):
                group = 1 + place // GROUP_SIZE if self._options.groups else 0
                self._places[place] = _Agent(next(self._ids), group, self._options, self._dice, self._ids)


class _Agent:
    def __init__(
        self, number: int, group: int, options: argparse.Namespace, dice: random.Random, ids: itertools.count[int]
    ) -> None:
        self.id = number
        self.group = group
        self._options = options
        self._dice = dice
        self._ids = ids
        self._episodes = 0
        self.begin()

    def begin(self) -> None:
        if self._options.new_ids and self._episodes:
            self.id = next(self._ids)
        self._episodes += 1
        self.act: Act | None = None
        self.age = 0
        self.reward = 0.0
        self.group_reward = 0.0
        self._goal = self._dice.choice((-1.0, 1.0))
        self._worked: list[float] = []

    def work(self) -> float:
        """One step of what it was last told, which is nothing at first."""
        self.age += 1
        if self.act is None:
            return 0.0
        way = self.act.continuous[0] if self.act.continuous else 2.0 * min(1, self.act.discrete[0]) - 1.0
        self._worked.append(max(-1.0, min(1.0, way)) * self._goal)
        return self._worked[-1]

    def end(self, report: Report, interrupted: bool) -> Say:
        if self._worked:
            report.measures[NAME].append(sum(self._worked) / len(self._worked))
        last = self.say()
        last.done, last.interrupted = True, interrupted
        return last

    def say(self) -> Say:
        shown = self._dice.randint(1, MARKS)
        marks = [number for _ in range(shown) for number in (self._goal, self._dice.uniform(-1, 1), 1.0)]
        marks += [0.0] * (MARKS * FEATURES - len(marks))
        seen = [marks, [self.age / LONGEST], *([[self._goal]] if self._options.goal_signal else [])]
        said = Say(NAME, self.id, seen, self.reward, group=self.group, group_reward=self.group_reward)
        self.reward = self.group_reward = 0.0
        return said
