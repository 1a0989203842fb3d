"""What PettingZoo environments return is checked in the run's own path: each mistake is named with agent and part."""

from __future__ import annotations

import re
import sys
from types import ModuleType

import numpy as np
import pytest
from small_zoo import Counting, Crowd, play

from headrace.config import RoleSettings, RunConfig
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.environments.pettingzoo.group import PettingZooGroup
from headrace.stages.environments.pettingzoo.instances import instance_of
from headrace.stages.errors import BrokenEnvironmentError, NotFiniteError, StageError

TEAM = {"*": RoleSettings(team=0)}
SCRIPT = {"a": (0, 4, 1.0), "b": (0, 9, 1.0)}


def group_of(*envs):
    return PettingZooGroup([instance_of(env, f"Zoo, instance {i}") for i, env in enumerate(envs)], "B", "Zoo", TEAM)


class ChangedCrowd(Crowd):
    """Changes what a step, or the reset, returns from a time on."""

    def __init__(self, change, call="step", begins=1):
        super().__init__(SCRIPT)
        self.change, self.call, self.begins = change, call, begins

    def reset(self, seed=None, options=None):
        result = super().reset(seed, options)
        return self.change(*result) if self.call == "reset" else result

    def step(self, actions):
        result = super().step(actions)
        return self.change(*result) if self.call == "step" and self._time >= self.begins else result


def with_part(number, value):
    def change(*result):
        return *result[:number], value(result[number]) if callable(value) else value, *result[number + 1 :]

    return change


def of_b(value):
    return lambda part: {**part, "b": value}


AT_STEP = {
    "four": (
        lambda *result: result[:4],
        "its step() returned 4 values; expected five dicts keyed by agent: observations, rewards",
    ),
    "ends are a flag": (with_part(2, False), "its step() returned a bool as terminations; expected a dict"),
    "rewards are a number": (with_part(1, 1.0), "returned a float as rewards; expected a dict"),
    "no infos": (with_part(4, None), "returned a NoneType as infos; expected a dict"),
    "a reward is a word": (with_part(1, of_b("one")), "agent 'b': step() returned reward 'one'; expected a number"),
    "a flag is a word": (with_part(2, of_b("")), "agent 'b': step() returned '' as `terminated`; expected True"),
    "a flag is two": (with_part(2, of_b(2)), "agent 'b': step() returned 2 as `terminated`; expected True or False"),
    "a flag is a half": (with_part(3, of_b(0.5)), "agent 'b': step() returned 0.5 as `truncated`; expected True"),
    "an observation is NaN": (
        with_part(0, of_b(np.array([np.nan, 0], np.float32))),
        "agent 'b' of B in instance 1: the observation 'observation' at [0] is nan; expected a finite number",
    ),
    "an observation is large": (
        with_part(0, of_b(np.array([0, 1e300]))),
        "the observation 'observation' at [1] is 1e+300, which is too large for float32",
    ),
    "an observation's shape": (
        with_part(0, of_b(np.zeros(3))),
        "agent 'b' of B in instance 1: observation from reset()",
    ),
}
AT_FIRST_STEP = {
    "an info is a list": (with_part(4, of_b([1])), "agent 'b': step() returned a list as info; expected a dict"),
}
AT_RESET = {
    "no infos": (
        lambda seen, infos: seen,
        "its reset() returned a dict; expected two dicts keyed by agent: observations, infos",
    ),
    "infos are a list": (with_part(1, [{}, {}]), "its reset() returned a list as infos; expected a dict"),
}


@pytest.mark.parametrize(
    ("change", "words", "begins"),
    [
        *(pytest.param(*AT_STEP[name], begins, id=f"{name} {begins}") for name in AT_STEP for begins in (1, 3)),
        *(pytest.param(*AT_FIRST_STEP[name], 1, id=name) for name in AT_FIRST_STEP),
    ],
)
def test_a_wrong_result_of_step_is_named(change, words, begins):
    group = group_of(Crowd(SCRIPT), ChangedCrowd(change, begins=begins))
    with pytest.raises((BrokenEnvironmentError, NotFiniteError), match=f"^Zoo(, instance 1)?: .*{re.escape(words)}"):
        play(group, begins)


def test_a_last_observation_that_is_not_finite_is_refused_unless_the_task_ended_the_episode():
    class Diverging(Crowd):
        def step(self, actions):
            seen, *rest = super().step(actions)
            return {**seen, "a": np.array([np.inf if self._time == 4 else 0, 0], np.float32)}, *rest

    play(group_of(Diverging(SCRIPT)), 4)
    words = "agent 'a' of B in instance 0: the observation 'observation' at [0] is inf; expected a finite number"
    with pytest.raises(NotFiniteError, match=re.escape(words)):
        play(group_of(Diverging(SCRIPT, ["a"])), 4)


@pytest.mark.parametrize("mistake", AT_RESET)
def test_a_wrong_result_of_reset_is_named(mistake):
    change, words = AT_RESET[mistake]
    with pytest.raises(BrokenEnvironmentError, match=f"^Zoo, instance 1: {re.escape(words)}"):
        group_of(Crowd(SCRIPT), ChangedCrowd(change, "reset")).reset(0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda result: result[:4], r"its last\(\) returned 4 values; expected five values: observation, reward"),
        (lambda result: (result[0], "one", *result[2:]), r"agent 'player_0': last\(\) returned reward 'one'; expected"),
        (lambda result: (*result[:2], 2, *result[3:]), r"last\(\) returned 2 as `terminated`; expected True or False"),
        (lambda result: (result[0] * np.nan, *result[1:]), r"instance 1: the observation 'observation' at .* is nan"),
        (lambda result: (*result[:4], [1]), r"last\(\) returned a list as info; expected a dict"),
        (lambda result: (np.zeros(3), *result[1:]), r"agent 'player_0' of B in instance 1: observation .* \(3,\)"),
    ],
)
def test_a_wrong_result_of_last_is_named(change, words):
    class Odd(Counting):
        def last(self, observe=True):
            return change(super().last(observe))

    with pytest.raises((BrokenEnvironmentError, NotFiniteError), match=f"^Zoo(, instance 1)?: .*{words}"):
        group_of(Counting(masks=""), Odd(masks="")).reset(0)


@pytest.mark.parametrize("kind", [bool, int, float, np.bool_, np.int8, np.float32, np.array])
def test_zero_and_one_stand_for_flags(kind):
    def change(seen, rewards, terminations, truncations, infos):
        return seen, rewards, *({a: kind(f) for a, f in each.items()} for each in (terminations, truncations)), infos

    steps = play(group_of(ChangedCrowd(change)), 4)[-1].steps["B"]
    assert (steps.ended, steps.terminated.tolist(), steps.truncated.tolist()) == (1, [True], [False])


@pytest.mark.parametrize("made", [Crowd, lambda script: Counting(masks="")])
@pytest.mark.parametrize("space", [None, 5])
def test_invalid_spaces_are_named_with_the_agent(made, space):
    env = made(SCRIPT)
    env.action_space = lambda agent: space
    with pytest.raises(
        StageError, match=r"^Zoo: agent '(a|player_0)': it.*action_space.* a space from gymnasium.spaces"
    ):
        group_of(env)


def test_agents_must_be_a_list():
    class Late(Crowd):
        def reset(self, seed=None, options=None):
            result = super().reset(seed, options)
            self.agents = None
            return result

    with pytest.raises(BrokenEnvironmentError, match="^Zoo, instance 0: its agents is a NoneType; expected a list"):
        group_of(Late(SCRIPT)).reset(0)


class Wrapped:
    """As PettingZoo's wrappers: passes on everything."""

    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.env, name)

    def reset(self, seed=None, options=None):
        return self.env.reset(seed=seed, options=options)


def test_a_turn_that_raises_is_named():
    class Forgetful(Counting):
        def last(self, observe=True):
            self.infos.pop(self.agent_selection)
            return super().last(observe)

    with pytest.raises(
        BrokenEnvironmentError, match=r"^Zoo, instance 0: its last\(\) raised KeyError: 'player_0' \(at"
    ):
        group_of(Forgetful(masks="")).reset(0)


def test_an_observation_may_be_missing_at_an_end_by_turns():
    class Blind(Counting):
        def observe(self, agent):
            return None if self._over else super().observe(agent)

    ticks = play(group_of(Blind(masks="")), 4)
    steps = ticks[-1].steps["B"]
    assert (steps.ended, steps.terminated.tolist()) == (2, [True, True])
    assert steps.observations[0][:2, 0].tolist() == [2, 3], "what they saw last"


@pytest.mark.parametrize("made", [Crowd, lambda script: Counting(masks="")])
def test_instances_may_return_arrays_that_they_share(made):
    array = np.zeros(2, np.float32)

    def sharing(number):
        env = made(SCRIPT)
        seen_by, observe = getattr(env, "seen_by", None), getattr(env, "observe", None)

        def of_one(agent):
            array[:] = number
            return array

        if seen_by is not None:
            env.seen_by = lambda agents: {agent: of_one(agent) for agent in agents}
        if observe is not None:
            env.observe = of_one
        return env

    for tick in play(group_of(*map(sharing, range(3))), 5):
        steps = tick.steps["B"]
        np.testing.assert_array_equal(steps.observations[0][:, 0], steps.env_ids)


@pytest.mark.parametrize("count", [1, 2])
def test_wrappers_of_the_yaml_are_named_if_they_return_something_else(count, monkeypatch):
    module = ModuleType("wrapped_zoo")
    module.make = lambda: Crowd(SCRIPT)  # type: ignore[attr-defined]
    module.Clipper = type("Clipper", (Wrapped,), {"step": lambda self, a: self.env.step(a)[:4]})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wrapped_zoo", module)
    environment = {"kind": "pettingzoo", "factory": "wrapped_zoo:make", "num_envs": count}
    wrappers = [{"use": "wrapped_zoo:Clipper"}]
    config = RunConfig.from_plain({"environment": {**environment, "wrappers": wrappers}, "behaviors": {"B": {}}})
    group = make_group(EnvironmentRequest(config))
    with pytest.raises(
        BrokenEnvironmentError, match=r"make'(, instance 0)?, in wrapped_zoo:Clipper: its step.* 4 values"
    ):
        play(group, 1)
