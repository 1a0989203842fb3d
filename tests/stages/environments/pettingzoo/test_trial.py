"""The trial of PettingZoo environments before training."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pettingzoo  # type: ignore[import-untyped]
import pytest
from gymnasium.spaces import Box, Discrete

from headrace.config import RunConfig
from headrace.stages.environments.pettingzoo.trial import try_pettingzoo


class Pair(pettingzoo.ParallelEnv):  # type: ignore[misc]
    """Two agents, five steps."""

    metadata = {"name": "pair"}
    possible_agents = ["a", "b"]

    def __init__(self):
        self.spaces = {agent: (Box(-1, 1, (2,), np.float32), Discrete(3)) for agent in self.possible_agents}

    def observation_space(self, agent):
        return self.spaces[agent][0]

    def action_space(self, agent):
        return self.spaces[agent][1]

    def seen(self):
        return {agent: np.zeros(2, np.float32) for agent in self.agents}

    def reset(self, seed=None, options=None):
        self.agents, self.taken = list(self.possible_agents), 0
        return self.seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.taken += 1
        over = self.taken >= 5
        seen, given = self.seen(), list(self.agents)
        self.agents = [] if over else given
        ends = dict.fromkeys(given, over)
        return seen, dict.fromkeys(given, 0.0), ends, dict.fromkeys(given, False), {agent: {} for agent in given}


class WrongShape(Pair):
    def seen(self):
        return {agent: np.zeros(3 if agent == "b" else 2, np.float32) for agent in self.agents}


class WithoutSeed(Pair):
    def reset(self):  # type: ignore[override]
        return super().reset()


class OldStep(Pair):
    def step(self, actions):
        return super().step(actions)[:4]


class Raising(Pair):
    def step(self, actions):
        return {}[next(iter(actions))]


class NanReward(Pair):
    def step(self, actions):
        seen, rewards, *rest = super().step(actions)
        return seen, dict.fromkeys(rewards, float("nan")), *rest


class Lonely(Pair):
    def seen(self):
        return {"a": np.zeros(2, np.float32)}


SERIOUS = {
    WrongShape: ("b's reset() or step()", "(3,)", "(2,)"),
    WithoutSeed: ("takes no seed", "seed=None"),
    OldStep: ("returned 4 values", "five dicts"),
    Raising: ("KeyError", "test_trial.py:", "expected a whole episode"),
    NanReward: ("reward nan", "expected a finite number"),
    Lonely: ("agent 'b'", "no observation", "there are: a"),
}


def tried(made, monkeypatch):
    module = ModuleType("tried_zoo")
    module.make = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return list(try_pettingzoo(configured(factory="tried_zoo:make")))


def configured(**environment):
    return RunConfig.from_plain({"environment": {"kind": "pettingzoo", **environment}, "behaviors": {"B": {}}})


@pytest.mark.parametrize("made", SERIOUS, ids=lambda made: made.__name__)
def test_each_mistake_is_named_with_what_was_expected(made, monkeypatch):
    (remark,) = tried(made, monkeypatch)
    assert remark.serious
    assert all(words in remark.text for words in SERIOUS[made]), remark.text


def test_nothing_is_said_of_a_good_environment(monkeypatch):
    assert tried(Pair, monkeypatch) == []


def test_turn_based_environments_with_masks_are_played_by_their_rules():
    assert list(try_pettingzoo(configured(id="pettingzoo.classic.tictactoe_v3"))) == []


def test_an_id_that_does_not_exist_is_judged_at_its_key():
    (remark,) = try_pettingzoo(configured(id="mpe2.simple_tga_v3"))
    assert remark.key == ("environment", "id")
    assert "did you mean 'mpe2.simple_tag_v3'?" in remark.text
