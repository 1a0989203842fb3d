"""What single environments return is checked in the run's own path: each mistake is named with its place."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import TimeLimit

from headrace.queues.messages import ActionBatch
from headrace.stages.environments.factory import factory_name
from headrace.stages.environments.given import MODULE
from headrace.stages.environments.gymnasium.group import GymnasiumGroup
from headrace.stages.environments.gymnasium.singles import vectorise
from headrace.stages.errors import BrokenEnvironmentError, NotFiniteError

ACTIONS = {"B": ActionBatch(np.zeros((2, 0), np.float32), np.zeros((2, 1), np.int32))}
NAN = float("nan")


class ScriptedEnv(gymnasium.Env):
    """Returns the results that it was made with; from its `begins`-th step on."""

    observation_space: gymnasium.Space = Box(-1, 1, (3,), np.float32)
    action_space: gymnasium.Space = Discrete(2)
    render_mode = None

    def __init__(self, first=None, result=None, begins=1, space=None):
        self.first, self.result, self.begins, self.steps = first, result, begins, 0
        self.observation_space = space or self.observation_space

    def reset(self, *, seed=None, options=None):
        if self.first is None:
            return self.observation_space.sample(), {}
        return self.first() if callable(self.first) else self.first

    def step(self, action):
        self.steps += 1
        if self.result is None or self.steps < self.begins:
            return self.observation_space.sample(), 0.0, False, False, {}
        return self.result() if callable(self.result) else self.result


SEEN = np.zeros(3, np.float32)
LIMBS = Dict(arm=Box(0, 1, (2,)), leg=Box(0, 1, (2,)))
AT_RESET = {
    "none": (lambda: None, "its reset() returned a NoneType; expected two values", None),
    "no info": (SEEN, "its reset() returned a ndarray; expected two values", None),
    "shape": ((SEEN[:2], {}), "observation from reset() has shape (2,), but its space has (3,)", None),
    "ragged": (([1, [2, 3]], {}), "expected an array of shape (3,), as in its space", None),
    "lacks a key": (({"arm": SEEN[:2]}, {}), "lacks these keys of its space: 'leg'; it has: 'arm'", LIMBS),
    "kind of number": ((1.5, {}), "is 1.5, which is not in its space Discrete(4)", Discrete(4)),
    "fractions in bytes": ((SEEN, {}), "is of dtype float32, but its space has uint8", Box(0, 255, (3,), np.uint8)),
}
AT_STEP = {
    "four values": ((SEEN, 0.0, False, {}), r"its step\(\) returned 4 values; expected five values.*shimmy"),
    "shape": ((SEEN[:2], 0.0, False, False, {}), r"observation from step\(\) has shape \(2,\)"),
    "reward is a word": ((SEEN, "one", False, False, {}), "reward 'one'; expected a number"),
    "for a vector of rewards": ((SEEN, SEEN, False, False, {}), r"reward array\(\[0., 0., 0.\].*; expected a number"),
    "flag is a word": ((SEEN, 0.0, False, "no", {}), "'no' as `truncated`; expected True or False"),
    "flag is a number": ((SEEN, 0.0, 3, False, {}), ".*3.* as `terminated`; expected True or False"),
    "info is a list": ((SEEN, 0.0, False, False, []), "step.* returned a list as info; expected a dict"),
    "shape at an end": ((SEEN[:2], 0.0, True, False, {}), r"observation from step\(\) has shape \(2,\)"),
}


def group_of(*envs, wrap=None):
    vector = vectorise(envs[0], iter(envs[1:]).__next__, len(envs), "Env", wrap)
    return GymnasiumGroup(vector, "B", "Env")


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("mistake", AT_RESET)
def test_a_wrong_result_of_reset_is_named_with_the_instance(mistake, which):
    first, words, space = AT_RESET[mistake]
    group = group_of(*(ScriptedEnv(first if i == which else None, space=space) for i in range(2)))

    with pytest.raises(BrokenEnvironmentError) as caught:
        group.reset(0)

    assert str(caught.value).startswith(f"Env, instance {which}: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(("which", "begins"), [(0, 1), (1, 3)])
@pytest.mark.parametrize("mistake", AT_STEP)
def test_a_wrong_result_of_step_is_named_with_the_instance(mistake, which, begins):
    result, words = AT_STEP[mistake]
    group = group_of(*(ScriptedEnv(result=result if i == which else None, begins=begins) for i in range(2)))
    group.reset(0)

    with pytest.raises(BrokenEnvironmentError, match=f"^Env, instance {which}: .*{words}"):
        for _ in range(begins):
            group.step(ACTIONS)


LARGE = "1e+300, which is too large for float32"
BEYOND = "1.79769e+308 or beyond, which is too large for float32"


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (NAN, "nan; expected a finite number"),
        (float("inf"), "inf; expected a finite number"),
        (np.float32(NAN), "nan; expected a finite number"),
        ([NAN], "nan; expected a finite number"),
        (1e300, LARGE),
        (Fraction(10) ** 300, LARGE),
        pytest.param(10**5000, BEYOND, id="an integer"),
        pytest.param(Fraction(-(10**5000)), f"-{BEYOND}", id="a fraction"),
        (Decimal("1e400"), BEYOND),
        (np.longdouble("1e4000"), BEYOND),
        (np.array([10**400], object), BEYOND),
    ],
)
def test_a_reward_that_float32_can_not_hold_is_named_with_the_instance(reward, words):
    group = group_of(ScriptedEnv(), ScriptedEnv(result=(SEEN, reward, False, False, {})))
    group.reset(0)

    with pytest.raises(NotFiniteError, match=re.escape(f"Env, instance 1: step() returned reward {words}")):
        group.step(ACTIONS)


@pytest.mark.parametrize("reward", [1, 60000])
def test_rewards_of_float16_alone_cause_no_warning(reward):
    group = group_of(*(ScriptedEnv(result=(SEEN, np.float16(reward), False, False, {})) for _ in range(2)))
    group.reset(0)

    assert group.step(ACTIONS).steps["B"].rewards.tolist() == [np.float16(reward)] * 2


WIDE = Box(-np.inf, np.inf, (3,), np.float64)
NOT_FINITE = [
    (WIDE, lambda bad: np.array([0, bad, 0]), "observation"),
    (Box(-np.inf, np.inf, (3,), np.float32), lambda bad: np.array([0, bad, 0]), "observation"),
    (Dict(arm=Box(0, 1, (2,)), leg=WIDE), lambda bad: {"arm": SEEN[:2], "leg": np.array([0, bad, 0])}, "leg"),
    (Tuple((Discrete(2), Dict(leg=WIDE))), lambda bad: (1, {"leg": np.array([0, bad, 0])}), "1.leg"),
]
ENDS = {"in the middle": (False, False), "cut": (False, True), "terminated": (True, False)}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("bad", "words"), [(NAN, "nan; expected a finite"), (-np.inf, "-inf; expected"), (1e300, LARGE)]
)
@pytest.mark.parametrize(("space", "seen", "name"), NOT_FINITE)
def test_a_number_that_float32_can_not_hold_is_named_with_instance_observation_and_element(
    space, seen, name, bad, words, exact, end
):
    envs = ScriptedEnv(space=space), ScriptedEnv(result=(seen(bad), 1.0, *ENDS[end], {}), space=space)
    group = GymnasiumGroup(vectorise(envs[0], lambda: envs[1], 2, "Env"), "B", "Env", exact=exact)
    group.reset(0)

    if end == "terminated":  # no trainer learns from it: diverged simulators return NaN there
        assert group.step(ACTIONS).steps["B"].ended == 1
        return
    with pytest.raises(NotFiniteError, match=re.escape(f"Env, instance 1: the observation '{name}' at [1] is {words}")):
        group.step(ACTIONS)


@pytest.mark.parametrize(
    "reward",
    [2, True, np.float64(2), np.float16(2), Decimal(2), np.int8(2), np.array([2.0]), np.array(2.0), Fraction(4, 2)],
)
def test_any_single_number_is_a_reward(reward):
    group = group_of(
        ScriptedEnv(result=(SEEN, 0.5, False, False, {})), ScriptedEnv(result=(SEEN, reward, False, False, {}))
    )
    group.reset(0)

    np.testing.assert_array_equal(group.step(ACTIONS).steps["B"].rewards, [0.5, float(np.asarray(reward).item())])


@pytest.mark.parametrize("flag", [1, 0, np.int64(1), 1.0, np.array([True])])
def test_zero_and_one_are_flags(flag):
    group = group_of(ScriptedEnv(), ScriptedEnv(result=(SEEN, 0.0, False, flag, {})))
    group.reset(0)

    ticks = [group.step(ACTIONS).steps["B"] for _ in range(3)]

    assert [tick.ended for tick in ticks] == [int(np.asarray(flag).item())] * 3


def test_infos_may_have_any_content():
    group = group_of(
        ScriptedEnv(result=(SEEN, 0.0, True, False, {"x": 1, "y": [1]})),
        ScriptedEnv(result=(SEEN, 0.0, True, False, {"x": "one", "y": np.zeros((2, 2))})),
    )
    group.reset(0)

    assert group.step(ACTIONS).steps["B"].ended == 2


class Clipper(gymnasium.Wrapper):
    """Returns too few values, or another observation."""

    def __init__(self, env, how):
        super().__init__(env)
        self.how = how

    def reset(self, **arguments):
        seen, info = self.env.reset(**arguments)
        return seen if self.how == "reset" else (seen, info)

    def step(self, action):
        seen, *rest = self.env.step(action)
        return {"four": (seen, *rest[1:]), "shape": (seen[:2], *rest), "reward": (seen, "one", *rest[1:])}[self.how]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("reset", "its reset.* returned a ndarray"),
        ("four", "its step.* returned 4 values"),
    ],
)
def test_results_of_wrappers_are_checked(how, words):
    group = group_of(ScriptedEnv(), ScriptedEnv(), wrap=lambda env: Clipper(TimeLimit(env, 10), how))
    with pytest.raises(BrokenEnvironmentError, match=f"Env, instance 0: .*{words}"):
        group.reset(0)
        group.step(ACTIONS)


def test_an_environment_that_raises_is_not_called_again():
    class Failing(ScriptedEnv):
        asked = 0

        def step(self, action):
            Failing.asked += 1
            raise ValueError("not enough values to unpack")

    group = group_of(ScriptedEnv(), Failing(), wrap=lambda env: TimeLimit(env, 10))
    group.reset(0)

    with pytest.raises(
        BrokenEnvironmentError, match=r"Env, instance 1: its step\(\) raised ValueError: .*test_door\.py"
    ):
        group.step(ACTIONS)
    assert Failing.asked == 1


class Vector(VectorEnv):
    """Three instances of its own making; a step's result goes through `change`, and the arrays of all steps are the same."""

    single_observation_space, single_action_space = Box(-9, 9, (2,), np.float32), Discrete(2)

    def __init__(self, mode=AutoresetMode.NEXT_STEP, change=None):
        self.metadata, self.num_envs = {"autoreset_mode": mode}, 3
        self.seen, self.rewards = np.zeros((3, 2), np.float32), np.zeros(3)
        self.ends, self.cuts = np.zeros(3, bool), np.zeros(3, bool)
        self.change, self.time = change or (lambda *result: result), 0

    def reset(self, *, seed=None, options=None):
        self.seen[:] = self.ends[:] = self.time = 0
        return self.seen, {}

    def step(self, actions):
        self.time += 1
        self.seen[:], self.rewards[:] = self.time, self.time
        self.ends[:] = self.time == 2
        return self.change(self.seen, self.rewards, self.ends, self.cuts, {})


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_a_vector_environment_may_return_the_same_arrays_each_time(mode):
    group = GymnasiumGroup(Vector(mode), "B", "Env")
    group.reset(0)
    three = {"B": ActionBatch(np.zeros((3, 0), np.float32), np.zeros((3, 1), np.int32))}
    first, second = group.step(three).steps["B"], group.step(three).steps["B"]

    assert first.observations[0][:, 0].tolist() == [1, 1, 1]
    assert (second.ended, second.terminated.tolist()) == (3, [True] * 3)
    assert second.observations[0][:3, 0].tolist() == [2, 2, 2]
    assert second.rewards.tolist() == [2, 2, 2, 0, 0, 0]


OF_VECTORS = {
    "four": (lambda *rest: rest[:4], r"its step\(\) returned 4 values; expected 5"),
    "shape": (lambda seen, *rest: (seen[:, :1], *rest), r"has shape \(3, 1\), but its space has \(3, 2\)"),
    "rewards are words": (lambda seen, r, *rest: (seen, ["a", "b", "c"], *rest), "Env, instance 0: .* reward .*a"),
    "a reward is None": (lambda seen, r, *rest: (seen, [1, 2, None], *rest), "Env, instance 2: .* reward None"),
    "ends are one": (
        lambda seen, r, e, *rest: (seen, r, False, *rest),
        r"Env: step.* returned terminated of shape \(\)",
    ),
    "ends are counts": (
        lambda seen, r, e, *rest: (seen, r, np.arange(3), *rest),
        "Env, instance 2: .*2.* as `term",
    ),
}


@pytest.mark.parametrize("mistake", OF_VECTORS)
def test_a_wrong_result_of_a_vector_environment_is_named(mistake):
    change, words = OF_VECTORS[mistake]
    group = GymnasiumGroup(Vector(change=change), "B", "Env")
    group.reset(0)
    with pytest.raises(BrokenEnvironmentError, match=words):
        group.step({"B": ActionBatch(np.zeros((3, 0), np.float32), np.zeros((3, 1), np.int32))})


def test_an_environment_that_was_passed_to_run_is_named_in_good_punctuation():
    name = factory_name(f"{MODULE}:NoInfo")
    group = GymnasiumGroup(
        vectorise(ScriptedEnv(result=(SEEN, 1.0, False, False, None)), ScriptedEnv, 2, name), "B", name
    )
    group.reset(0)
    with pytest.raises(
        BrokenEnvironmentError, match=r"^environment NoInfo \(passed to run\(\)\), instance 0: step\(\)"
    ):
        group.step(ACTIONS)
