"""Action spaces as columns: what is decided, and that the environment gets what its space promises."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.queues.messages import ActionBatch
from headrace.stages.environments.spaces import columns
from headrace.stages.environments.spaces.own_space import own_space
from headrace.stages.errors import StageError


def action_mapping(space, num_envs, owner):
    return columns.action_mapping(own_space(space), num_envs, owner)


FLOAT_MAX = float(np.finfo(np.float32).max)


def continuous(*rows):
    values = np.array(rows, np.float32)
    return ActionBatch(values, np.empty((len(values), 0), np.int32))


def discrete(*rows):
    values = np.array(rows, np.int32)
    return ActionBatch(np.empty((len(values), 0), np.float32), values)


def test_discrete_actions_count_from_the_start_of_the_space():
    mapping = action_mapping(spaces.Discrete(3, start=-1), 3, "Env")

    given_to_env = mapping.to_environment(discrete([0], [1], [2]))

    assert mapping.spec.discrete_branches == (3,)
    assert given_to_env.tolist() == [-1, 0, 1]
    assert given_to_env in batch_space(spaces.Discrete(3, start=-1), 3)


def test_multi_discrete_actions_get_the_shape_of_the_space():
    space = spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 10], [0, 0]]))
    mapping = action_mapping(space, 2, "Env")

    given_to_env = mapping.to_environment(discrete([0, 1, 2, 3], [1, 2, 3, 4]))

    assert mapping.spec.discrete_branches == (2, 3, 4, 5)
    assert given_to_env.tolist() == [[[0, 11], [2, 3]], [[1, 12], [3, 4]]]
    assert given_to_env in batch_space(space, 2)


def test_multi_binary_actions_are_branches_of_two():
    space = spaces.MultiBinary(3)
    mapping = action_mapping(space, 1, "Env")

    given_to_env = mapping.to_environment(discrete([0, 1, 1]))

    assert mapping.spec.discrete_branches == (2, 2, 2)
    assert given_to_env.tolist() == [[0, 1, 1]]
    assert given_to_env in batch_space(space, 1)


def test_box_actions_are_scaled_to_the_bounds_of_each_dimension():
    space = spaces.Box(np.array([0.0, -2.0], np.float32), np.array([10.0, 6.0], np.float32))
    mapping = action_mapping(space, 3, "Env")

    given_to_env = mapping.to_environment(continuous([-1, -1], [0, 0], [1, 0.5]))

    assert mapping.spec.continuous_size == 2
    assert mapping.spec.unbounded == ()
    assert given_to_env.tolist() == [[0, -2], [5, 2], [10, 4]]


def test_unbounded_dimensions_get_the_raw_value_and_are_listed():
    low = np.array([-1.0, -np.inf, 0.0, -FLOAT_MAX], np.float32)
    high = np.array([3.0, np.inf, np.inf, FLOAT_MAX], np.float32)
    mapping = action_mapping(spaces.Box(low, high), 2, "Env")

    given_to_env = mapping.to_environment(continuous([0, 7.5, 7.5, 7.5], [1, -7.5, -7.5, -7.5]))

    assert mapping.spec.unbounded == (1, 2, 3)
    assert given_to_env.tolist() == [
        [1, 7.5, 7.5, 7.5],
        [3, -7.5, 0, -7.5],
    ]  # 0: the one bound it has is kept


@settings(deadline=None)
@given(
    low=st.floats(-1e6, 1e6, width=32),
    extent=st.floats(2.0**-10, 1e6, width=32),
    value=st.floats(-3, 3, width=32),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_a_scaled_action_is_always_in_the_space(low, extent, value, dtype):
    space = spaces.Box(np.array([low], dtype), np.array([low + extent], dtype), dtype=dtype)
    mapping = action_mapping(space, 3, "Env")

    given_to_env = mapping.to_environment(continuous([value], [-1], [1]))

    assert given_to_env.dtype == dtype
    assert given_to_env in batch_space(space, 3)


def test_whole_number_boxes_are_rounded_and_keep_shape_and_dtype():
    space = spaces.Box(0, 4, (2, 2), np.uint8)
    mapping = action_mapping(space, 1, "Env")

    given_to_env = mapping.to_environment(continuous([-1, 1, 0, 0.6]))

    assert given_to_env.dtype == np.uint8
    assert given_to_env.tolist() == [[[0, 4], [2, 3]]]


# Names of heads.


def test_heads_of_nested_spaces_have_the_names_of_their_keys():
    space = spaces.Dict(
        {
            "arm": spaces.Dict({"grip": spaces.Discrete(2), "turn": spaces.Box(-1, 1, (2,))}),
            "legs": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (1,)))),
        }
    )

    spec = action_mapping(space, 1, "Env").spec

    assert spec.continuous_heads == ("arm.turn.0", "arm.turn.1", "legs.1")
    assert spec.branch_heads == ("arm.grip", "legs.0.0", "legs.0.1")


def test_heads_of_a_space_without_keys_are_numbered():
    assert action_mapping(spaces.MultiDiscrete([2, 3]), 1, "Env").spec.branch_heads == ("branch_0", "branch_1")
    assert action_mapping(spaces.Box(-1, 1, (2,)), 1, "Env").spec.continuous_heads == ("continuous_0", "continuous_1")


# Hybrid actions.

CAR = spaces.Dict(
    {
        "gear": spaces.Discrete(3, start=-1),
        "pedals": spaces.Tuple([spaces.Box(0, 10, (2,)), spaces.MultiBinary(2)]),
        "aim": spaces.Box(-np.inf, np.inf, (1,), np.float64),
        "radio": spaces.MultiDiscrete([2, 4]),
    }
)


def test_composed_actions_stand_side_by_side_in_the_spaces_own_order():
    spec = action_mapping(CAR, 2, "Env").spec

    # Sorted by Gymnasium: aim, gear, pedals, radio.
    assert spec.continuous_size == 3
    assert spec.unbounded == (0,)
    assert spec.discrete_branches == (3, 2, 2, 2, 4)


def test_an_environment_gets_composed_actions_in_the_structure_of_its_space():
    mapping = action_mapping(CAR, 2, "Env")
    actions = ActionBatch(
        np.array([[7.5, -1, 1], [-7.5, 0, 0.5]], np.float32), np.array([[0, 1, 0, 1, 3], [2, 0, 1, 0, 2]], np.int32)
    )

    given_to_env = mapping.to_environment(actions)

    assert given_to_env in batch_space(CAR, 2)
    first, second = iterate(batch_space(CAR, 2), given_to_env)
    assert first in CAR
    assert (first["aim"].tolist(), first["gear"], first["radio"].tolist()) == ([7.5], -1, [1, 3])
    assert [part.tolist() for part in first["pedals"]] == [[0, 10], [1, 0]]
    assert (second["aim"].tolist(), second["gear"], second["radio"].tolist()) == ([-7.5], 1, [0, 2])
    assert [part.tolist() for part in second["pedals"]] == [[5, 7.5], [0, 1]]


@pytest.mark.lengthy
@given(seed=st.integers(0, 500), n=st.integers(1, 4))
def test_any_decision_is_an_action_of_the_composed_space(seed, n):
    space = spaces.Tuple([spaces.Discrete(3, start=2), CAR["pedals"], spaces.Dict(a=spaces.Box(-1, 3, (2, 2)))])
    mapping, random = action_mapping(space, n, "Env"), np.random.default_rng(seed)
    drawn = random.uniform(-1, 1, (n, mapping.spec.continuous_size)).astype(np.float32)
    chosen = random.integers(0, mapping.spec.discrete_branches, (n, len(mapping.spec.discrete_branches)))

    given_to_env = mapping.to_environment(ActionBatch(drawn, chosen.astype(np.int32)))

    assert given_to_env in batch_space(space, n)


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Tuple([spaces.Discrete(2), spaces.Text(3)])])
def test_unsupported_action_spaces_are_refused(space):
    with pytest.raises(
        StageError, match=r"Env: a policy can't choose actions in a Text space; .*environment\.wrappers"
    ):
        action_mapping(space, 2, "Env")


def test_an_empty_action_space_is_refused():
    with pytest.raises(StageError, match="Env: its action space has no actions"):
        action_mapping(spaces.Dict({}), 2, "Env")
