"""Masks in every form, of every kind of environment with spaces: strict ones raise where a mask is not obeyed."""

from __future__ import annotations

import itertools
import re
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from predicted import saved

from headrace.pipeline.prediction.policy import load_policy
from headrace.stages.environments.gymnasium.group import GymnasiumGroup
from headrace.stages.environments.gymnasium.singles import vectorise
from headrace.stages.environments.pettingzoo.group import PettingZooGroup
from headrace.stages.environments.pettingzoo.instances import instance_of
from headrace.stages.environments.stepping_time import random_actions

SEEN = spaces.Box(0, 1, (1,), np.float32)
CHOICE, PAIR, FLAGS, BODY = "Discrete", "MultiDiscrete", "MultiBinary", "Dict"
SPACES: dict[str, Any] = {
    CHOICE: spaces.Discrete(3, start=1),
    PAIR: spaces.MultiDiscrete([2, 3]),
    FLAGS: spaces.MultiBinary(2),
}
SPACES[BODY] = spaces.Dict({"hand": SPACES[PAIR], "leg": spaces.Box(-1, 1, (1,)), "walk": spaces.Discrete(2)})
BRANCHES = {CHOICE: (3,), PAIR: (2, 3), FLAGS: (2, 2), BODY: (2, 3, 2)}


def parts_of(space, column):
    return np.split(column, np.cumsum(BRANCHES[space])[:-1])


def rows(space, column):
    parts = parts_of(space, column)
    most = max(map(len, parts))
    return np.array([np.pad(part, (0, most - len(part))) for part in parts])


def by_key(space, column):
    first, second, walk = parts_of(space, column)
    return {"hand": (first, second), "walk": walk}


FORMS = {
    "flat": (lambda space, column: column, (CHOICE, PAIR, FLAGS, BODY)),
    "rows": (rows, (CHOICE, PAIR, FLAGS, BODY)),
    "bool": (lambda space, column: column.astype(np.bool_), (CHOICE, PAIR, FLAGS, BODY)),
    "floats": (lambda space, column: column.astype(np.float32), (CHOICE, PAIR)),
    "tuple": (lambda space, column: tuple(parts_of(space, column)), (CHOICE, PAIR, FLAGS, BODY)),
    "map": (by_key, (BODY,)),
}
CASES = [pytest.param(form, space, id=f"{name}-{space}") for name, (form, fit) in FORMS.items() for space in fit]


def column_of(space, t):
    """The column of the mask at time t: something is forbidden, and something allowed of each branch."""
    random, parts = np.random.default_rng(t), []
    for size in BRANCHES[space]:
        part = (random.random(size) < 0.4).astype(np.int8)
        part[random.integers(size)] = 1
        parts.append(part)
    return np.concatenate(parts)


def check(space, action, t):
    """Raise if an action of the space is forbidden at time t."""
    assert action in SPACES[space]
    given = [action["hand"], action["walk"]] if space == BODY else [action - (space == CHOICE)]
    chosen = np.concatenate([np.ravel(each) for each in given])
    parts = parts_of(space, column_of(space, t))
    assert all(part[choice] for part, choice in zip(parts, chosen, strict=True)), f"forbidden at {t}: {action}"


def space_of(mask):
    """The space of a mask in an observation."""
    if isinstance(mask, dict):
        return spaces.Dict({key: space_of(part) for key, part in mask.items()})
    if isinstance(mask, tuple):
        return spaces.Tuple([space_of(part) for part in mask])
    return spaces.Box(0, 2 if mask.dtype.kind != "b" else 1, mask.shape, mask.dtype.type)


class Rule:
    """What a strict environment asks for; each place and time has its own mask."""

    def __init__(self, space, form, observed, seed):
        self.space, self.form, self.observed, self.t = space, form, observed, 100 * seed
        self.length = 3 + seed % 2
        mask = form(space, column_of(space, 0))
        self.seen_space = spaces.Dict({"sign": SEEN, "action_mask": space_of(mask)}) if observed else SEEN

    def look(self):
        seen, mask = np.zeros(1, np.float32), self.form(self.space, column_of(self.space, self.t))
        return ({"sign": seen, "action_mask": mask}, {}) if self.observed else (seen, {"action_mask": mask})

    def advance(self, action):
        check(self.space, action, self.t)
        self.t += 1
        return self.t % self.length == 0


class Strict(gymnasium.Env):
    def __init__(self, rule):
        self.rule = rule
        self.observation_space, self.action_space = rule.seen_space, SPACES[rule.space]

    def reset(self, *, seed=None, options=None):
        self.rule.t += 1
        return self.rule.look()

    def step(self, action):
        over = self.rule.advance(action)
        seen, info = self.rule.look()
        return seen, 0.0, over, False, info


class StrictParallel:
    """The same with two agents at once."""

    render_mode, possible_agents = None, ["a", "b"]

    def __init__(self, *rules):
        self.rules, self.agents = dict(zip("ab", rules, strict=True)), []

    def observation_space(self, agent):
        return self.rules[agent].seen_space

    def action_space(self, agent):
        return SPACES[self.rules[agent].space]

    def reset(self, seed=None, options=None):
        self.agents = ["a", "b"]
        return self._look()

    def step(self, actions):
        ends = {agent: self.rules[agent].advance(actions[agent]) for agent in self.agents}
        over = dict.fromkeys(self.agents, any(ends.values()))
        seen, infos = self._look()
        rewards, never = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, False)
        self.agents = [agent for agent in self.agents if not over[agent]]
        return seen, rewards, over, never, infos

    def _look(self):
        told = {agent: self.rules[agent].look() for agent in self.agents}
        return {agent: each[0] for agent, each in told.items()}, {agent: each[1] for agent, each in told.items()}


class StrictByTurns(StrictParallel):
    def reset(self, seed=None, options=None):
        self.agents, self.agent_selection, self.over = ["a", "b"], "a", False

    @property
    def infos(self):
        return {agent: self.rules[agent].look()[1] for agent in self.agents}

    def observe(self, agent):
        return self.rules[agent].look()[0]

    def last(self, observe=True):
        seen, info = self.rules[self.agent_selection].look()
        return seen, 0.0, self.over, False, info

    def step(self, action):
        if self.over:
            self.agents.remove(self.agent_selection)
            self.agent_selection = self.agents[0] if self.agents else ""
            return
        self.over = self.rules[self.agent_selection].advance(action)
        self.agent_selection = "b" if self.agent_selection == "a" else "a"


def gymnasium_group(rules, mode=None):
    envs = [Strict(rule) for rule in rules]
    left = iter(envs[1:])
    if mode is None:
        return GymnasiumGroup(vectorise(envs[0], lambda: next(left), len(envs), "Env"), "B", "Env")
    vector = SyncVectorEnv([partial(_same, env) for env in envs], autoreset_mode=mode)
    return GymnasiumGroup(vector, "B", "Env")


def _same(env):
    return env


def zoo_group(kind):
    def make(rules):
        instances = [instance_of(kind(*pair), "Env") for pair in (rules[:2], rules[2:])]
        return PettingZooGroup(instances, "B", "Env")

    return make


KINDS = {
    "gymnasium": gymnasium_group,
    "next step": lambda rules: gymnasium_group(rules, AutoresetMode.NEXT_STEP),
    "disabled": lambda rules: gymnasium_group(rules, AutoresetMode.DISABLED),
    "parallel": zoo_group(StrictParallel),
    "by turns": zoo_group(StrictByTurns),
}


PLACES = ("info", "observation")


def obeyed():
    """Two of three kinds for each form and space, by turns in an info and in an observation."""
    for number, (name, (form, fit)) in enumerate(FORMS.items()):
        for turn, (space, kind) in enumerate(itertools.product(fit, KINDS), number):
            if len(fit) == 1 or turn % 3:
                place = PLACES[turn // 2 % 2]
                yield pytest.param(form, space, kind, place == "observation", id=f"{name}-{space}-{kind}-{place}")


OBEYED = [*obeyed()]


@pytest.mark.parametrize(("form", "space", "kind", "observed"), OBEYED)
def test_every_form_is_obeyed_by_every_kind(form, space, kind, observed):
    rules = [Rule(space, form, observed, seed) for seed in range(4)]
    group, random = KINDS[kind](rules), np.random.default_rng(0)

    result = group.reset(0)
    for _ in range(8):
        for behavior_id in result.steps:
            spec = group.behavior_specs[behavior_id]
            assert spec.actions.masked
            assert [observation.name for observation in spec.observations] == (
                ["sign"] if observed else ["observation"]
            )
        result = group.step(random_actions(group, result, random))  # raises where one is forbidden
    group.close()


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """A policy for each space, as of a run, and its spec."""
    known: dict[Any, Any] = {}
    for space in SPACES:
        group = gymnasium_group([Rule(space, FORMS["flat"][0], False, 0)])
        group.reset(0)
        known[space] = group.behavior_specs["B"]
        known[space, "policy"] = load_policy(saved(tmp_path_factory.mktemp("policy"), known[space]))
    return known


@pytest.mark.parametrize(("form", "space"), CASES)
def test_every_form_is_obeyed_by_predict(policies, form, space):
    policy = policies[space, "policy"]
    masks = [form(space, column_of(space, t)) for t in range(12)]
    for t, mask in enumerate(masks):
        check(space, policy.predict(np.zeros(1), False, mask=mask)[0], t)
        if not isinstance(mask, tuple | dict):
            check(space, policy.predict({"observation": np.zeros(1)}["observation"], mask=mask.tolist())[0], t)
    actions, _ = policy.predict(np.zeros((12, 1)), False, mask=masks)
    for t in range(12):
        check(space, {key: actions[key][t] for key in actions} if space == BODY else actions[t], t)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_that_comes_late_is_an_error_of_every_kind(kind):
    class Late(Rule):
        def look(self):
            seen, info = super().look()
            return seen, info if self.t % 100 > 1 else {}

        def advance(self, action):
            self.t += 1
            return False

    group = KINDS[kind]([Late(PAIR, FORMS["flat"][0], False, seed) for seed in range(4)])
    random = np.random.default_rng(0)
    result = group.reset(0)
    assert not next(iter(group.behavior_specs.values())).actions.masked
    with pytest.raises(Exception, match=r"the infos now contain action_mask, .* at the first reset"):
        for _ in range(6):
            result = group.step(random_actions(group, result, random))


@pytest.mark.parametrize("observed", [False, True], ids=["info", "observation"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            lambda space, column: np.ones(7, np.float32),
            r"has shape \(7,\)|has shape \(4, 7\)|has shape \(2, 7\)",
        ),
        (
            lambda space, column: np.where(column, 0, -1e9).astype(np.float32),
            r"has -1000000000.0 at index .*; expected 1 for each allowed",
        ),
        (lambda space, column: np.zeros(5, np.float32), "forbids all 2 choices of branch 0"),
    ],
    ids=["size", "additive", "nothing left"],
)
def test_a_mask_that_can_not_be_obeyed_is_an_error_of_every_kind(kind, observed, wrong, words):
    group = KINDS[kind]([Rule(PAIR, wrong, observed, seed) for seed in range(4)])
    with pytest.raises(Exception, match=f"^Env.*action_mask.*({words})"):
        group.reset(0)


class Maskable(gymnasium.Env):
    """Has its masks where sb3-contrib's MaskablePPO asks for them."""

    observation_space, action_space = SEEN, SPACES[CHOICE]

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def action_masks(self):
        return np.ones(3, np.bool_)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Maskable, r"Env: it has 'action_masks\(\)', which Headrace ignores"),
        (lambda: gymnasium.wrappers.RecordEpisodeStatistics(Maskable()), r"Env: it has 'action_masks\(\)'"),
        (
            lambda: gymnasium.wrappers.FlattenObservation(Strict(Rule(PAIR, FORMS["flat"][0], True, 0))),
            "Env: it has 'action_mask in the observations within FlattenObservation', which Headrace ignores",
        ),
    ],
)
def test_a_mask_that_headrace_does_not_read_is_warned_of(make, words, caplog):
    group = GymnasiumGroup(vectorise(make(), make, 2, "Env"), "B", "Env")
    group.reset(0)
    (message,) = caplog.messages
    assert re.search(words, message)
