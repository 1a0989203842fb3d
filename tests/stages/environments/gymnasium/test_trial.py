"""The trial of Gymnasium environments before training: each mistake of an environment is one remark in plain words."""

from __future__ import annotations

import sys
from types import ModuleType

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text

from headrace.config import RunConfig
from headrace.stages.environments.gymnasium.trial import try_gymnasium


class Good(gymnasium.Env):
    """Ten steps of noise."""

    observation_space: gymnasium.Space = Box(-1, 1, (3,), np.float32)
    action_space: gymnasium.Space = Discrete(2)
    taken = 0

    def seen(self):
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = 0
        return self.seen(), {}

    def step(self, action):
        self.taken += 1
        return self.seen(), 0.0, self.taken >= 10, False, {}


class WithoutSpaces(gymnasium.Env):
    pass


class WithoutSeed(Good):
    def reset(self):  # type: ignore[override]
        return self.seen(), {}


class WithoutInfo(Good):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class FailingReset(Good):
    def reset(self, *, seed=None, options=None):
        raise FileNotFoundError("level.txt")


class Failing(Good):
    def __init__(self):
        raise RuntimeError("no licence")


class OldStep(Good):
    def step(self, action):
        return self.seen(), 0.0, False, {}


class FailingStep(Good):
    def step(self, action):
        return 1 / 0


class WiderObservation(Good):
    def seen(self):
        return np.zeros(4, np.float32)


class LaterShape(Good):
    def seen(self):
        return np.zeros(3 + self.taken, np.float32)


class WithNan(Good):
    def seen(self):
        return np.array([0, 0, np.nan if self.taken else 0], np.float32)


class LackingKey(Good):
    observation_space = Dict(arm=Box(0, 1, (2,)), leg=Box(0, 1, (2,)))

    def seen(self):
        return {"arm": np.zeros(2, np.float32)}


class WrongPart(LackingKey):
    def seen(self):
        return {"arm": np.zeros(2, np.float32), "leg": np.zeros(5, np.float32)}


class Writing(Good):
    observation_space = Text(3)

    def seen(self):
        return "abc"


class WordyReward(Good):
    def step(self, action):
        return self.seen(), "one", False, False, {}


class NanReward(Good):
    def step(self, action):
        return self.seen(), float("nan"), False, False, {}


class VagueEnd(Good):
    def step(self, action):
        return self.seen(), 0.0, None, False, {}


class ListedInfo(Good):
    def step(self, action):
        return self.seen(), 0.0, False, False, []


class Outside(Good):
    def seen(self):
        return np.full(3, 7, np.float32)


class Unrepeatable(Good):
    def seen(self):
        return np.random.default_rng().uniform(-1, 1, 3).astype(np.float32)


class Masked(Good):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"action_mask": np.array([1, 0], np.int8)}

    def step(self, action):
        assert action == 0, "a forbidden action"
        seen, *rest, _ = super().step(action)
        return seen, *rest, {"action_mask": np.array([1, 0], np.int8)}


SERIOUS = {
    WithoutSpaces: ("no observation_space", "gymnasium.spaces"),
    WithoutSeed: ("takes no seed", "seed=None"),
    WithoutInfo: ("reset() returned a ndarray", "return observation, {}"),
    FailingReset: ("reset() raised FileNotFoundError: level.txt", "expected (observation, info)"),
    Failing: ("RuntimeError: no licence", "in __init__"),
    OldStep: ("4 values", "terminated", "split `done`"),
    FailingStep: ("ZeroDivisionError", "test_trial.py:", "action_space"),
    WiderObservation: ("reset() has shape (4,)", "space says (3,)"),
    LaterShape: ("step() has shape (4,)", "space says (3,)"),
    WithNan: ("nan at [2]", "not the policy", "division by zero"),
    LackingKey: ("lacks the keys 'leg'", "it has: 'arm'"),
    WrongPart: ("observation 'leg'", "(5,)", "(2,)"),
    Writing: ("Text", "expected Box", "wrapper"),
    WordyReward: ("reward 'one'", "expected a number"),
    NanReward: ("reward nan", "expected a finite number"),
    VagueEnd: ("None as `terminated`", "expected True or False"),
    ListedInfo: ("a list as info", "expected a dict"),
}


def tried(made, monkeypatch):
    module = ModuleType("tried_environments")
    module.make = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return list(try_gymnasium(configured(factory=f"{module.__name__}:make")))


def configured(**environment):
    return RunConfig.from_plain({"environment": {"kind": "gymnasium", **environment}, "behaviors": {"B": {}}})


@pytest.mark.parametrize("made", SERIOUS, ids=lambda made: made.__name__)
def test_each_mistake_is_named_with_what_was_expected(made, monkeypatch):
    first, *others = tried(made, monkeypatch)
    assert first.serious
    assert all(words in first.text for words in SERIOUS[made]), first.text
    assert len(others) == (made is WithoutSpaces)  # which lacks two


@pytest.mark.parametrize("made", [Good, Masked])
def test_nothing_is_said_of_a_good_environment(made, monkeypatch):
    assert tried(made, monkeypatch) == []


def test_observations_outside_their_box_are_one_warning(monkeypatch):
    (remark,) = tried(Outside, monkeypatch)
    assert not remark.serious
    assert "outside its space" in remark.text


def test_what_gymnasiums_checker_alone_finds_is_a_warning(monkeypatch):
    (remark,) = tried(Unrepeatable, monkeypatch)
    assert not remark.serious
    assert "gymnasium.utils.env_checker" in remark.text


@pytest.mark.parametrize(
    ("given", "words", "key"),
    [
        ({"id": "CartPole-v9"}, "`v9` for environment `CartPole` doesn't exist", "id"),
        ({"id": "CartPole-v1", "options": {"gravitas": 9}}, "unexpected keyword argument 'gravitas'", "options"),
    ],
)
def test_ids_and_options_are_judged_at_their_key(given, words, key):
    (remark,) = try_gymnasium(configured(**given))
    assert remark.serious
    assert words in remark.text
    assert remark.key == ("environment", key)


@pytest.mark.parametrize("options", [{}, {"render_mode": "human"}])
def test_a_registered_environment_is_tried_without_a_window(options):
    assert list(try_gymnasium(configured(id="CartPole-v1", options=options))) == []
