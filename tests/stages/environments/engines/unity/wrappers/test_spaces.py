"""A behaviour's actions as a space of Gymnasium's, back, and masks as `sample` takes them."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.stages.environments.engines.unity.errors import UnityActionException
from headrace.stages.environments.engines.unity.specs import ActionSpec
from headrace.stages.environments.engines.unity.wrappers.gymnasium_env import ActionMap

KINDS = {
    "numbers": (ActionSpec(2, ()), False, spaces.Box(-1, 1, (2,), np.float32)),
    "one branch": (ActionSpec(0, (3,)), False, spaces.Discrete(3)),
    "branches": (ActionSpec(0, (3, 2)), False, spaces.MultiDiscrete([3, 2])),
    "flattened": (ActionSpec(0, (3, 2)), True, spaces.Discrete(6)),
    "one branch, flattened": (ActionSpec(0, (3,)), True, spaces.Discrete(3)),
    "numbers and a branch": (
        ActionSpec(2, (3,)),
        False,
        spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)]),
    ),
    "numbers and branches": (
        ActionSpec(1, (3, 2)),
        False,
        spaces.Tuple([spaces.Box(-1, 1, (1,), np.float32), spaces.MultiDiscrete([3, 2])]),
    ),
}


@pytest.mark.parametrize(("spec", "flatten", "space"), KINDS.values(), ids=KINDS)
def test_each_kind_of_actions_has_its_space(spec, flatten, space):
    assert ActionMap(spec, "Walker", flatten).space == space


@pytest.mark.lengthy
@given(st.lists(st.integers(1, 4), max_size=3), st.integers(0, 3), st.booleans(), st.integers(0, 2**16))
@examples(25)
def test_masked_samples_are_allowed_and_become_actions(branches, width, flatten, seed):
    if not branches and not width:
        return
    actions = ActionMap(ActionSpec(width, tuple(branches)), "Walker", flatten, seed)
    dice = np.random.default_rng(seed)
    forbidden = [dice.random(count) < 0.5 for count in branches]
    for branch in forbidden:
        branch[dice.integers(len(branch))] = False
    chosen = [actions.space.sample(actions.mask(forbidden)) for _ in range(4)]
    read = actions.read(chosen, ["a", "b", "c", "d"])
    assert read.continuous.shape == (4, width)
    assert read.discrete.shape == (4, len(branches))
    for column, branch in zip(read.discrete.T, forbidden, strict=True):
        assert not branch[column].any()
    if width:
        numbers = [each[0] if branches else each for each in chosen]
        assert np.array_equal(read.continuous, np.stack(numbers))


def test_a_flattened_choice_combines_the_branches():
    actions = ActionMap(ActionSpec(0, (2, 3)), "Walker", flatten=True)
    assert actions.read([4], ["a"]).discrete.tolist() == [[1, 1]]
    forbidden = [np.array([False, True]), np.array([True, False, False])]
    assert actions.mask(forbidden).tolist() == [0, 1, 1, 0, 0, 0]


WRONG = [
    *(
        ("numbers", action)
        for action in (0.5, [0.1], [0.1, 0.2, 0.3], [np.nan, 0], [np.inf, 0], "left", None, [None] * 2)
    ),
    *(("one branch", action) for action in (3, -1, 1.5, None, "left", [0, 1], np.nan)),
    *(("branches", action) for action in ([0, 2], [3, 0], [0], 1, [0, -1], [0, 0.5], None)),
    *(("flattened", action) for action in (6, -1, [0, 1], None)),
    *(
        ("numbers and a branch", action)
        for action in (1, [0.1, 0.2], ([0.1, 0.2], 3), ([0.1], 1), (1, [0.1, 0.2]), None)
    ),
]


@pytest.mark.parametrize(("kind", "action"), WRONG, ids=str)
def test_an_action_that_is_not_in_the_space_is_refused_with_its_agent(kind, action):
    spec, flatten, space = KINDS[kind]
    actions = ActionMap(spec, "Walker", flatten)
    good = space.sample()
    with pytest.raises(UnityActionException, match=r"Walker \d: got action .*; expected one of (Box|.*Discrete|Tuple)"):
        actions.read([good, action], ["Walker 1", "Walker 2"])
    actions.read([good], ["Walker 1"])


def test_choices_may_be_of_any_integer_type():
    actions = ActionMap(ActionSpec(0, (3,)), "Walker")
    chosen = [1, np.int32(1), np.array([1]), np.array(1.0), True]
    assert actions.read(chosen, ["a"] * 5).discrete.tolist() == [[1]] * 5


def test_a_behaviour_without_actions_is_refused():
    with pytest.raises(UnityActionException, match="Walker: it has no actions"):
        ActionMap(ActionSpec(0, ()), "Walker")


def test_samples_follow_the_seed():
    one, other = (ActionMap(ActionSpec(2, (3,)), "Walker", seed=5) for _ in range(2))
    assert repr(one.space.sample()) == repr(other.space.sample())
